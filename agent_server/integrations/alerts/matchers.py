"""Matchers of labels, in Alertmanager's syntax: ``severity="critical"``, ``{job=~"train-.*", team!="web"}``.

As in Alertmanager a missing label is empty, so ``team=""`` and ``team!="web"`` match an alert without a team. Names and
values are UTF-8; those with blanks or any of ``{}!=~,\\"'`` are double-quoted, with the escapes of Go strings
(prometheus/alertmanager, docs/configuration.md, "matcher").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from whystall.agent_server.integrations.alerts.regexes import Pattern

Op = Literal["=", "!=", "=~", "!~"]
MANY = 50
"""Matchers of one route or silence."""
_TEXT_LIMIT = 1000  # characters of a name or value

_BARE = re.compile(r"[^\s{}!=~,\\\"'`]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_OP = re.compile(r"=~|!~|!=|=")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|[0-7]{3}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34}


class BadMatcher(ValueError):
    """Invalid matcher. `at`: position of the error, from 0."""

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True)
class Matcher:
    """One condition on one label. Raises `BadMatcher` on an invalid one."""

    name: str
    op: Op
    value: str
    pattern: Pattern | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if not self.name:
            raise BadMatcher("a matcher begins with the name of a label")
        if len(self.name) > _TEXT_LIMIT or len(self.value) > _TEXT_LIMIT:
            raise BadMatcher(f"names and values have at most {_TEXT_LIMIT} characters")
        if self.op in ("=~", "!~"):
            try:
                object.__setattr__(self, "pattern", Pattern(self.value))
            except ValueError as error:
                raise BadMatcher(f"{self.name}{self.op}: {error}") from None

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.name, "")
        found = value == self.value if self.pattern is None else self.pattern.matches(value)
        return found is (self.op in ("=", "=~"))

    def learn(self, many: Sequence[Mapping[str, str]]) -> None:
        """Match many label sets at once and cache the results; see `Pattern.learn`."""
        if self.pattern is not None:
            self.pattern.learn(labels.get(self.name, "") for labels in many)

    def __str__(self) -> str:
        return format_matcher(self.name, self.value, self.op)


def format_matcher(name: str, value: str, op: Op = "=") -> str:
    """Return a condition in Alertmanager's syntax; no limit of length applies."""
    return f"{name if _BARE.fullmatch(name) else _quote(name)}{op}{_quote(value)}"


Matchers = tuple[Matcher, ...]


def all_match(matchers: Matchers, labels: Mapping[str, str]) -> bool:
    return all(matcher.matches(labels) for matcher in matchers)


def format_matchers(matchers: Sequence[Matcher]) -> str:
    return "{" + ", ".join(map(str, matchers)) + "}"


def parse(text: str) -> Matchers:
    """Parse comma-separated matchers, with or without braces; raises `BadMatcher`."""
    at = _blank(text, 0)
    braced = text.startswith("{", at)
    at = _blank(text, at + braced)
    found: list[Matcher] = []
    while at < len(text) and text[at] != "}":
        matcher, at = _matcher(text, at)
        found.append(matcher)
        if len(found) > MANY:
            raise BadMatcher(f"more than {MANY} matchers", at)
        at = _blank(text, at)
        if not text.startswith(",", at):
            break
        at = _blank(text, at + 1)
    if at < len(text) and text[at] != "}":
        raise BadMatcher(f"a comma or the end is expected before {text[at : at + 20]!r}", at)
    if braced != text.startswith("}", at):
        raise BadMatcher("a closing brace is missing" if braced else "a brace is closed that was not opened", at)
    if (end := _blank(text, at + braced)) < len(text):
        raise BadMatcher(f"after the closing brace stands {text[end : end + 20]!r}", end)
    return tuple(found)


def make(name: str, op: str, value: str) -> Matcher:
    if op not in ("=", "!=", "=~", "!~"):
        raise BadMatcher(f"{op!r} is none of = != =~ !~")
    return Matcher(name, cast(Op, op), value)


def _matcher(text: str, at: int) -> tuple[Matcher, int]:
    name, at = _token(text, at, "the name of a label")
    at = _blank(text, at)
    operator = _OP.match(text, at)
    if operator is None:
        raise BadMatcher(f"after {name!r} stands none of = != =~ !~", at)
    at = _blank(text, operator.end())
    value, end = _token(text, at, "a value")
    try:
        return make(name, operator[0], value), end
    except BadMatcher as error:
        raise BadMatcher(str(error), at) from None


def _token(text: str, at: int, what: str) -> tuple[str, int]:
    bare = _BARE.match(text, at)
    if bare is not None:
        return bare[0], bare.end()
    quoted = _QUOTED.match(text, at)
    if quoted is not None:
        return _unquoted(quoted[1], at), quoted.end()
    if text.startswith('"', at):
        raise BadMatcher("a quote is not closed", at)
    stands = f"{text[at]!r} stands here" if at < len(text) else "the text ends here"
    raise BadMatcher(f"{what} is expected, {stands}; in double quotes it may hold any character", at)


def _unquoted(inner: str, at: int) -> str:
    if "\n" in inner:
        raise BadMatcher("a line ends within quotes: write \\n", at)

    def byte_or_letter(found: re.Match[str]) -> str:
        code = found[1]
        if code in _SIMPLE:
            return chr(_SIMPLE[code])
        if code[0] in "uU" and len(code) > 1:
            if int(code[1:], 16) > 0x10FFFF:
                raise BadMatcher(f"\\{code} is no character", at)
            return chr(int(code[1:], 16))
        if len(code) == 3:  # a byte of UTF-8; surrogateescape joins the bytes below
            value = int(code[1:], 16) if code[0] == "x" else int(code, 8)
            if value > 255:
                raise BadMatcher(f"\\{code} is no byte", at)
            return chr(value) if value < 128 else chr(0xDC00 + value)
        raise BadMatcher(f"\\{code} is no escape; a backslash itself is written \\\\", at)

    try:
        return _ESCAPE.sub(byte_or_letter, inner).encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise BadMatcher("its bytes are no UTF-8", at) from None


def _quote(text: str) -> str:
    body = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{body}"'


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
