"""Text written by people: made inert on input, with its lines kept, and bounded."""

from __future__ import annotations

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

TITLE, TEXT, COMMENT, REASON, NAME, KEY, LABEL = 300, 8000, 4000, 2000, 200, 500, 2000
"""Maximum lengths in characters, before escaping."""


def line(text: str, limit: int) -> str:
    """Return `text` as one inert line of at most `limit` characters; a mark shows a cut."""
    return clean(" ".join(text.split()), limit)


def lines(text: str, limit: int) -> str:
    """Return `text` inert, without repeated blank lines, cut to `limit` characters with a mark."""
    head = text[: 4 * limit]  # bounds the work for large foreign texts
    kept: list[str] = []
    for part in head.splitlines():
        made = clean(" ".join(part.split()), 2 * limit)
        if made or (kept and kept[-1]):
            kept.append(made)
    whole = "\n".join(kept).rstrip()
    return whole if len(whole) <= limit and len(head) == len(text) else whole[: limit - 1] + "…"


def required(text: str, limit: int, what: str, remedy: str) -> str:
    """Return `text` inert with its lines; raise `ToolError` (bad_argument) if it is empty or longer than `limit`.

    Refused, not cut: half a remedy may be a wrong one.
    """
    flat = text.strip()
    if not flat:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"no {what} is given", remedy)
    if len(flat) > limit:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"the {what} is too long", f"use at most {limit} characters")
    return lines(flat, 12 * limit)
