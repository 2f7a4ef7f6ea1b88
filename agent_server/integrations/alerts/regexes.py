"""Regular expressions of routes and silences, matched against untrusted labels in linear time.

Python's engine backtracks: ``(a+)+b`` against forty letters takes minutes. Polars contains Rust's ``regex``, an
automaton like RE2 with bounded time and size (10 MiB). Patterns are in RE2's syntax, as for Alertmanager
(github.com/google/re2/wiki/Syntax), and are translated where Rust's differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PATTERN_LIMIT = 1000
"""Maximum characters of a pattern."""
_REPEATS = 1000  # RE2's own limit
_CACHED = 1000  # results per pattern

_WORDS = re.compile(r"[\w/:@% -]*(?:\|[\w/:@% -]*)*", re.ASCII)  # alternatives without any operator
_COUNTED = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
_FLAGS = re.compile(r"\(\?(?!P?<)(?![imsU]*(?:-[imsU]+)?[:)])")
_ASCII = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
    "b": r"(?-u:\b)",
    "B": r"(?-u:\B)",
    "<": "<",
    ">": ">",
}


class Pattern:
    """A pattern that must match the whole value. Raises `ValueError` on an invalid `text`."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_LIMIT:
            raise ValueError(f"a regular expression has at most {PATTERN_LIMIT} characters")
        self.text = text
        self._words: frozenset[str] | None = None
        if _WORDS.fullmatch(text):
            self._words = frozenset(text.split("|"))
            return
        rust = _translated(text)
        _matched(rust, [""])  # alone first: ``a)|(b`` is invalid but would be valid in the group below
        self._rust = f"^(?:{rust})$"
        self._known: dict[str, bool] = {}
        _matched(self._rust, [""])

    def matches(self, value: str) -> bool:
        if self._words is not None:
            return value in self._words
        known = self._known  # another thread may replace the cache
        found = known.get(value)
        if found is None:
            if len(known) >= _CACHED:
                self._known = known = {}
            found = known[value] = _matched(self._rust, [value])[0]
        return found

    def learn(self, values: Iterable[str]) -> None:
        """Match many values at once, which costs about as much as one, and cache the results."""
        if self._words is not None:
            return
        new = [value for value in dict.fromkeys(values) if value not in self._known]
        if new:
            known = self._known if len(self._known) + len(new) <= _CACHED else {}
            known.update(zip(new, _matched(self._rust, new), strict=True))
            self._known = known


def _matched(rust: str, values: list[str]) -> list[bool]:
    import polars as pl

    try:
        return pl.Series(values, dtype=pl.String).str.contains(rust, strict=True).to_list()
    except pl.exceptions.ComputeError as error:
        text = str(error).split("This error occurred")[0]
        reasons = [line.strip() for line in text.splitlines() if line.strip()]
        reason = reasons[-1].removeprefix("regex ").removeprefix("error: ")
        raise ValueError(f"no regular expression: {reason}") from None


def _translated(text: str) -> str:
    """Translate RE2's syntax to Rust's: classes such as ``\\d`` are ASCII, classes do not nest, a brace that is no
    repetition is literal. Rust rejects what it does not know.
    """
    if _FLAGS.search(re.sub(r"\\.", "", text)):
        raise ValueError("no regular expression: after (? stand flags of imsU, or a name")
    out: list[str] = []
    at, inside, first = 0, False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            piece, at = _escape(text, at)
            out.append(piece)
            continue
        counted = _COUNTED.match(text, at) if char == "{" and not inside else None
        if counted is not None:
            if any(int(n) > _REPEATS for n in counted.groups() if n):
                raise ValueError(f"no regular expression: nothing is repeated more than {_REPEATS} times")
            out.append(counted[0])
            at = counted.end()
            continue
        if char == "{":
            char = r"\{"
        elif inside:
            posix = text.startswith("[:", at) and text.find(":]", at)
            if posix and posix > 0:
                out.append(text[at : posix + 2])
                at = posix + 2
                continue
            if char == "]" and at > first:
                inside = False
            elif char in "[]&~" or (char == "-" and text[at - 1] == "-"):
                char = "\\" + char
        elif char == "[":
            inside = True
            negated = text.startswith("^", at + 1)
            out.append("[^" if negated else "[")
            at = first = at + 1 + negated
            continue
        out.append(char)
        at += 1
    return "".join(out)


def _escape(text: str, at: int) -> tuple[str, int]:
    """Return the escape at `at` in Rust's syntax, and the position after it."""
    if text.startswith(r"\Q", at):
        end = text.find(r"\E", at)
        literal = text[at + 2 : end if end >= 0 else len(text)]
        return re.escape(literal), end + 2 if end >= 0 else len(text)
    name = text[at + 1 : at + 2]
    return _ASCII.get(name, "\\" + name), at + 2
