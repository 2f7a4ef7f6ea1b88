"""Regular expressions of settings and silences, matched against labels that strangers wrote.

Python's own engine backtracks: ``(a+)+b`` against forty letters takes it minutes. Here Rust's ``regex``, which polars
brings, does the matching: an automaton like RE2, whose time is bounded by the size of the pattern times that of the
text, and whose size is bounded too (10 MiB). Patterns are written as for Alertmanager, in the syntax of RE2
(github.com/google/re2/wiki/Syntax); where Rust reads them otherwise they are translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PATTERN_LIMIT = 1000
"""Characters of a pattern."""
_REPEATS = 1000  # RE2's own bound
_KNOWN = 1000  # values whose answer is remembered, per pattern

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
    """An anchored pattern: it matches a value as a whole. Raises `ValueError` where `text` is none."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_LIMIT:
            raise ValueError(f"a regular expression has at most {PATTERN_LIMIT} characters")
        self.text = text
        self._words: frozenset[str] | None = None
        if _WORDS.fullmatch(text):
            self._words = frozenset(text.split("|"))
            return
        rust = _translated(text)
        _matched(rust, [""])  # by itself: ``a)|(b`` is none, though it is one between brackets
        self._rust = f"^(?:{rust})$"
        self._known: dict[str, bool] = {}
        _matched(self._rust, [""])

    def matches(self, value: str) -> bool:
        """Whether all of `value` matches."""
        if self._words is not None:
            return value in self._words
        known = self._known  # another thread may begin a new one meanwhile
        found = known.get(value)
        if found is None:
            if len(known) >= _KNOWN:
                self._known = known = {}
            found = known[value] = _matched(self._rust, [value])[0]
        return found

    def learn(self, values: Iterable[str]) -> None:
        """Match many values at once, which costs about as much as a single one, and remember the answers."""
        if self._words is not None:
            return
        fresh = [value for value in dict.fromkeys(values) if value not in self._known]
        if fresh:
            known = self._known if len(self._known) + len(fresh) <= _KNOWN else {}
            known.update(zip(fresh, _matched(self._rust, fresh), strict=True))
            self._known = known


def _matched(rust: str, values: list[str]) -> list[bool]:
    import polars as pl

    try:
        return pl.Series(values, dtype=pl.String).str.contains(rust, strict=True).to_list()
    except pl.exceptions.ComputeError as error:
        said = str(error).split("This error occurred")[0]
        reasons = [line.strip() for line in said.splitlines() if line.strip()]
        reason = reasons[-1].removeprefix("regex ").removeprefix("error: ")
        raise ValueError(f"no regular expression: {reason}") from None


def _translated(text: str) -> str:
    """`text`, RE2's syntax, in Rust's: classes such as ``\\d`` are ASCII, a class holds no other class, a brace that
    counts nothing is a brace. What Rust does not know, it refuses itself.
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
    """What the escape at `at` means to Rust, and where the text goes on."""
    if text.startswith(r"\Q", at):
        end = text.find(r"\E", at)
        literal = text[at + 2 : end if end >= 0 else len(text)]
        return re.escape(literal), end + 2 if end >= 0 else len(text)
    name = text[at + 1 : at + 2]
    return _ASCII.get(name, "\\" + name), at + 2
