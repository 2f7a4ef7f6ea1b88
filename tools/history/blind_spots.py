"""What the history does not have of a span: gaps, restarts of the watch, lowered detail, lost records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from whystall.tools.collect.slice_history import HistoryRow, Minute
from whystall.tools.contract.result import BlindSpot
from whystall.tools.history.grid import Grid
from whystall.tools.history.summary import at_text

_USUAL_MIN_NS = 1_000_000
_SMALL_NS = 30_000_000_000  # the minute that is being recorded, and the start of the watch


def blind_spots(
    grid: Grid,
    minutes: Sequence[Minute],
    kept_since_ns: int,
    end_ns: int,
    wanted: Callable[[Minute, HistoryRow], bool],
) -> list[BlindSpot]:
    """Return what is missing in `grid`, made of the rows of `minutes` that are `wanted`. `kept_since_ns`: the oldest
    minute of the whole history; `end_ns`: of the span, or now."""
    found = []
    if grid.start_ns < kept_since_ns - _SMALL_NS:
        found.append(BlindSpot(code="history_begins", detail=at_text(kept_since_ns)))
    missing = _gaps(grid, kept_since_ns, end_ns)
    if missing:
        longest = max(missing, key=lambda gap: gap[1] - gap[0])
        whole = sum(end - start for start, end in missing) / 1e9
        detail = f"{whole:.0f} s; {at_text(longest[0])} - {at_text(longest[1])}"
        found.append(BlindSpot(code="history_gap", detail=detail))
    runs = list(dict.fromkeys(minute.run for minute in minutes if minute.recorded_ns))
    if len(runs) > 1:
        found.append(BlindSpot(code="history_restart", detail=", ".join(at_text(run) for run in runs[1:6])))
    lowered = [ns for minute in minutes if (ns := _threshold_ns(minute, wanted)) > _USUAL_MIN_NS]
    if lowered:
        detail = f"{max(lowered) / 1e6:g} ms, {len(lowered)}/{len(minutes)} min"
        found.append(BlindSpot(code="history_lowered", detail=detail))
    if lost := sum(minute.lost for minute in minutes):
        found.append(BlindSpot(code="events_lost", detail=str(lost)))
    return found


def _threshold_ns(minute: Minute, wanted: Callable[[Minute, HistoryRow], bool]) -> int:
    """Return the longest threshold of the processes whose rows are wanted; of all, if none has rows."""
    pids = {row.pid for row in minute.rows if wanted(minute, row)} or minute.lowered.keys()
    return max(minute.min_ns, *(minute.lowered.get(pid, 0) for pid in pids), 0)


def _gaps(grid: Grid, kept_since_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Return the stretches (ns) without a record, after the beginning of the history and before `end_ns`, but for short
    ones at both ends."""
    starts = grid.start_ns + np.arange(len(grid.recorded)) * grid.column_ns
    dark = (grid.recorded <= 0) & (starts >= kept_since_ns) & (starts < end_ns)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], dark, [False]]).astype(np.int8)))
    gaps = [(int(starts[a]), int(starts[b - 1]) + grid.column_ns) for a, b in edges.reshape(-1, 2)]
    return [
        (start, end)
        for start, end in gaps
        if end - start > _SMALL_NS or (start > max(kept_since_ns, grid.start_ns) + _SMALL_NS and end < end_ns)
    ]
