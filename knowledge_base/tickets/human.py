"""What people write on a ticket: made inert where it comes in, with its lines kept, and bounded."""

from __future__ import annotations

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

TITLE, TEXT, COMMENT, REASON, NAME, KEY, LABEL = 300, 8000, 4000, 2000, 200, 500, 2000
"""Bounds in characters, before anything is escaped."""


def line(text: str, limit: int) -> str:
    """`text` as one inert line of at most `limit` characters, cut with a mark."""
    return clean(" ".join(text.split()), limit)


def lines(text: str, limit: int) -> str:
    """`text` inert, its lines kept but for blank ones in a row, cut with a mark to `limit` characters."""
    head = text[: 4 * limit]  # a stranger's text may be large: no more of it is looked at than could be kept
    kept: list[str] = []
    for part in head.splitlines():
        made = clean(" ".join(part.split()), 2 * limit)
        if made or (kept and kept[-1]):
            kept.append(made)
    whole = "\n".join(kept).rstrip()
    return whole if len(whole) <= limit and len(head) == len(text) else whole[: limit - 1] + "…"


def required(text: str, limit: int, what: str, remedy: str) -> str:
    """`text` inert, with its lines; `ToolError` (bad_argument) where there is none, or more than `limit` characters.

    A person is told rather than cut: half a remedy may be a wrong one.
    """
    flat = text.strip()
    if not flat:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"no {what} is given", remedy)
    if len(flat) > limit:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"the {what} is too long", f"say it in {limit} characters")
    return lines(flat, 12 * limit)
