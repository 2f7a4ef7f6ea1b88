"""Snapshots of the collector ``objects`` beside a continuous recording: taken when somebody asks for the past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from whystall.tools.collect.objects import Objects
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import OBJECTS as KIND
from whystall.tools.collect.slice_parts import packed, unpacked
from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    from whystall.tools.recording.collector import Capture


def look_at_objects(pids: Iterable[int]) -> bytes:
    """Return what threads of the processes `pids` and their children wait for now, and who holds it."""
    objects = Objects(Target(everything=False, pids=sorted(pids)))
    objects.take_snapshot(last=True)
    return packed(objects.raw())


def objects_capture(entries: Sequence[Entry], start: int, end: int, margin: int) -> Capture | None:
    """Return the tables of the snapshots in the window [start, end), ns of CLOCK_MONOTONIC, or less than `margin`
    beyond; None without one."""
    from whystall.tools.collect.tables import OBJECTS, filled  # large: not needed to take snapshots
    from whystall.tools.recording.collector import Capture

    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in OBJECTS}
    proven, spots = True, set()
    taken = 0
    for entry in entries:
        if entry.kind != KIND or not start - margin <= entry.end_ns < end + margin:
            continue
        found = unpacked(entry.data)
        taken += bool(found)
        proven &= bool(found.get("proven"))
        spots |= {(str(code), str(detail)) for code, detail in found.get("not_seen", ())}
        offset = len(rows["stacks"])
        for name, more in found.get("tables", {}).items():
            if name in rows:
                places = [
                    at for at, column in enumerate(OBJECTS[name].names()) if column in ("stack", "kstack", "pystack")
                ]
                rows[name] += [_moved(row, places, offset) for row in more]
    if not taken:
        return None
    tables = filled(OBJECTS, **rows)
    count = sum(frame.height for frame in tables.values())
    hooks = ["/proc/PID/task", "sock_diag", "/proc/locks"]
    return Capture(tables, hooks, seen=count, kept=count, lost=0, proven=proven, not_seen=sorted(spots))


def _moved(row: Sequence[Any], places: Sequence[int], offset: int) -> tuple[Any, ...]:
    """Return a row whose keys of stacks, where it has some, are those of the tables of all snapshots."""
    made = list(row)
    for place in places:
        if made[place] >= 0:
            made[place] += offset
    return tuple(made)
