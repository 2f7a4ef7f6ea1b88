"""Blind spots of Python frames, for the collectors that record them."""

from __future__ import annotations

from collections import defaultdict

from whystall.bpf.capture import Capture
from whystall.bpf.python_code import PythonResult

_LISTED = 3


def python_notes(raw: Capture, *, switches: bool) -> list[tuple[str, str]]:
    """Return (blind spot, detail): processes whose frames cannot be walked; for `switches`, waits whose frames were
    skipped to limit the cost; walks that ended at unreadable memory."""
    notes = []
    if refused := raw.of(PythonResult).refused:
        notes.append(("python_frames", refusals(refused)))
    walks = raw.seen.get("python_walks", 0)
    skipped, broken = raw.seen.get("python_skipped", 0), raw.seen.get("python_broken", 0)
    if switches and skipped:
        notes.append(("python_skipped", f"{skipped}/{walks + skipped}"))
    if broken:
        notes.append(("python_broken", f"{broken}/{walks}"))
    return notes


def refusals(refused: dict[int, str]) -> str:
    """Return the reasons, each with some of its processes: ``CPython 3.9: pid 12, 13``."""
    groups: dict[str, list[int]] = defaultdict(list)
    for pid, why in sorted(refused.items()):
        groups[why].append(pid)
    parts = []
    for why, pids in list(groups.items())[:_LISTED]:
        more = f" and {len(pids) - _LISTED} more" if len(pids) > _LISTED else ""
        parts.append(f"{why}: pid {', '.join(map(str, pids[:_LISTED]))}{more}")
    return "; ".join(parts)
