"""Find the few events whose instants cannot be right: one of them would stretch a time line of seconds to hours.

A page of systrace ends with ``dummy-0000 [000] 0.0: 0: trace_event_clock_sync: parent_ts=0.0``, for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import polars as pl

EDGE = 9
"""Events at either end that are needed."""

_TIMES = 10  # farther from the others than so many times all their span,
_APART_NS = 60_000_000_000  # and than a minute
_SHARE = 100  # if the file is out of order, one event of so many may be left out; in order, a single one
_KEPT = 4  # events that must be left


class Edges(NamedTuple):
    """The earliest and latest `EDGE` instants of some events, ascending, and whether all of them were in order."""

    low: list[int]
    high: list[int]
    ordered: bool


def edges(instants: pl.Series) -> Edges:
    """Return the edges of some instants."""
    ordered = instants.is_sorted()
    instants = instants if ordered else instants.sort()
    return Edges(instants.head(EDGE).to_list(), instants.tail(EDGE).to_list(), ordered)


def usual_span(parts: Sequence[Edges], count: int) -> tuple[int, int, list[int]]:
    """Return the first and last instant of all events but the outliers, and the outliers; `count`: of all events."""
    parts = [part for part in parts if part.low]
    low = sorted(at for part in parts for at in part.low)[:EDGE]
    high = sorted(at for part in parts for at in part.high)[-EDGE:]
    if not low:
        return 0, 0, []
    ordered = all(part.ordered for part in parts)
    ordered &= all(one.high[-1] <= other.low[0] for one, other in pairwise(parts))
    most = min(1 if ordered else max(1, min(EDGE - 1, count // _SHARE)), count - _KEPT)
    for left_out in range(1, most + 1):
        for early in range(left_out + 1):
            late = left_out - early
            start, end = low[early], high[-1 - late]
            apart = max(_APART_NS, _TIMES * (end - start))
            far_before = not early or start - low[early - 1] >= apart
            far_after = not late or high[-late] - end >= apart
            if start <= end and far_before and far_after:
                return start, end, [*low[:early], *high[len(high) - late :]]
    return low[0], high[-1], []
