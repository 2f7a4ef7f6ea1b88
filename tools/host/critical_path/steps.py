"""Find the steps of a thread: the times between its visits to a place that it visits once per step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.world import World

_LEAST = 3
"""Visits to a place that is judged. With few steps nothing is tested, but their parts must not be taken for steps."""
_MOST_PLACES = 16
_SHORTEST_NS = 10_000_000
# 95 % of the intervals of a periodic place are below this multiple of their median, as for `whystall watch`.
_PERIODIC, _MOST = 1.8, 0.95
_COVERED = 0.8  # of the time, by steps of the usual length
_ALL = 0.9
"""Of the visits to the place that is visited most often: at others a wait was too short to be recorded now and then,
and two steps would look like one."""
Instants = NDArray[np.int64]


class Spot(NamedTuple):
    """Where a thread waits: the code of the wait, and the line."""

    code: str
    line: str


def common_steps(
    before: tuple[World, Timeline], after: tuple[World, Timeline], moved: Mapping[str, str]
) -> tuple[Spot, tuple[Instants, Instants]] | None:
    """Return the place that a thread visits once per step in both recordings, and when each step ends there, ns; None
    without one. `moved`: see `moved_lines`.

    Such a place is periodic, or is visited in turn with another one, however long that takes. The one with most visits
    is taken, unless another place is visited more often in one recording only.
    """
    spots = [_spots(*before, moved), _spots(*after, {})]
    found = [
        spot
        for spot in spots[0].keys() & spots[1].keys()
        if all(_once_per_step(spot, known) for known in spots)
    ]  # fmt: skip
    most = [max((len(known[spot]) for spot in found), default=0) for known in spots]
    able = [
        spot
        for spot in found
        if all(len(known[spot]) >= _ALL * number for known, number in zip(spots, most, strict=True))
    ]
    best = max(able, key=lambda spot: (len(spots[0][spot]) + len(spots[1][spot]), spot), default=None)
    return (best, (spots[0][best], spots[1][best])) if best is not None else None


def observed(line: Timeline) -> tuple[int, int]:
    """Return from when to when a thread was recorded, ns: it may have become a target within the window."""
    events = [at for wait in (*line.waits[:1], *line.waits[-1:]) for at in (wait.start_ns, wait.end_ns)]
    events += [sample.at_ns for sample in (*line.samples[:1], *line.samples[-1:])]
    return (min(events), max(events)) if events else line.alive


def _spots(world: World, line: Timeline, moved: Mapping[str, str]) -> dict[Spot, Instants]:
    """Return the ends of the visits to each place at which a thread waits all the time, most often first."""
    ends: dict[Spot, list[int]] = {}
    for wait, last in zip(line.waits, world.ends(line), strict=True):
        if last is wait and wait.state != "R" and not wait.open and wait.place.line:
            place = moved.get(wait.place.line, wait.place.line)
            ends.setdefault(Spot(world.kind(line, wait).code, place), []).append(wait.end_ns)
    start, end = observed(line)
    always = [
        spot
        for spot, known in ends.items()
        # the steps at both ends are cut off
        if len(known) >= _LEAST and known[-1] - known[0] >= _COVERED * (end - start) * (1 - 1 / len(known))
    ]
    always.sort(key=lambda spot: (-len(ends[spot]), spot))
    return {spot: np.array(ends[spot], np.int64) for spot in always[:_MOST_PLACES]}


def _once_per_step(spot: Spot, spots: Mapping[Spot, Instants]) -> bool:
    own = spots[spot]
    intervals = np.diff(own)
    middle = float(np.median(intervals))
    if middle < _SHORTEST_NS:
        return False
    if float(np.quantile(intervals, _MOST)) <= _PERIODIC * middle:
        return len(intervals) * middle >= _COVERED * float(own[-1] - own[0])
    return any(_in_turn(own, other) for name, other in spots.items() if name != spot)


def _in_turn(own: Instants, other: Instants) -> bool:
    """Return whether `other` is visited once between two visits to `own`."""
    return bool((np.diff(np.searchsorted(other, own)) == 1).mean() >= _MOST)
