"""What could not be seen of Python, for the collectors whose stacks have its frames."""

from __future__ import annotations

from collections import defaultdict

from whystall.bpf.capture import Capture
from whystall.bpf.python_code import PythonSeen

_LISTED = 3


def python_notes(seen: Capture, *, switches: bool) -> list[tuple[str, str]]:
    """(blind spot, detail): processes whose frames cannot be walked, and why; waits without Python frames, since
    walking had cost enough (`switches`); walks that ended where memory could not be read.
    """
    notes = []
    if refused := seen.of(PythonSeen).refused:
        notes.append(("python_frames", _refused(refused)))
    walks = seen.seen.get("python_walks", 0)
    skipped, broken = seen.seen.get("python_skipped", 0), seen.seen.get("python_broken", 0)
    if switches and skipped:
        notes.append(("python_skipped", f"{skipped}/{walks + skipped}"))
    if broken:
        notes.append(("python_broken", f"{broken}/{walks}"))
    return notes


def _refused(refused: dict[int, str]) -> str:
    """By reason, with some of the processes."""
    groups: dict[str, list[int]] = defaultdict(list)
    for pid, why in sorted(refused.items()):
        groups[why].append(pid)
    parts = []
    for why, pids in list(groups.items())[:_LISTED]:
        more = f" and {len(pids) - _LISTED} more" if len(pids) > _LISTED else ""
        parts.append(f"{why}: pid {', '.join(map(str, pids[:_LISTED]))}{more}")
    return "; ".join(parts)
