"""Find what threads do in the English sentences of the server: the codes of waits, and modes of running."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from whystall.prompts.files import read_file

_SHARE = r"(?: [\d.<]+ % of the time)?"
_END = r"(?=$|[.,;]| \()"
_DETAIL = re.compile(r' \("?(\w+)')
# Sentences that name a function or a system call, with the mode that they mean.
_NAMING = {"code": ("user", r"\S+ \(\S+:\d+\)"), "call": ("system", r"\w+")}
_NO_KIND = ("other", "user", "unknown", "absent", "not_followed")


def activities(text: str) -> list[tuple[str, str]]:
    """Return the waits and modes that a text names, in its order: code, and first word of what follows in brackets.

    For example ``[("queue", ""), ("file", "fsync")]`` of "waits 98.9 % of the time for another thread to hand it work
    or a result, at get (a.py:3); meanwhile python (712) waits for an operation on a file ("fsync ext4", /data/a)".
    """
    codes, pattern = _pattern()
    found = []
    for match in pattern.finditer(text):
        detail = _DETAIL.match(text, match.end())
        found.append((codes[(match.lastindex or 1) - 1], detail[1] if detail else ""))
    return found


def role(text: str) -> str:
    """Return the role of the code in a text, for example "subprocess" of "part: starting other programs"; else ""."""
    words = _words()["path"]
    return next((code for code, name in words["roles"].items() if words["role"].format(name) in text), "")


@cache
def _words() -> dict[str, Any]:
    found: dict[str, Any] = read_file("en.yaml")
    return found


@cache
def _pattern() -> tuple[list[str], re.Pattern[str]]:
    """Return codes, and a pattern whose groups are the sentences with which the server's texts state them."""
    words = _words()
    sentences = words["path_waits"] | words["path"]["modes"]
    codes, patterns = [], []
    for key in sentences.keys() - set(_NO_KIND):
        code, name = _NAMING.get(key, (key, ""))
        parts = re.split(r"(\{\w+\})", sentences[key])
        codes.append(code)
        patterns.append("".join({"{share}": _SHARE}.get(p, name) if p[:1] == "{" else re.escape(p) for p in parts))
    return codes, re.compile("|".join(f"\\b({pattern}){_END}" for pattern in patterns), re.MULTILINE)
