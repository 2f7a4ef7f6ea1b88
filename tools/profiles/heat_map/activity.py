"""Divide time into busy and quiet intervals, from samples or spans.

A sample stands for the time up to the neighbouring sampling instants: an interval is quiet only if due samples are
missing. A span is busy from its start to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Instants = NDArray[np.int64]

QUIET_LEVEL = 0.25
"""Quiet: the level is at most this share of the usual one (`_usual`)."""


@dataclass(frozen=True)
class Runs:
    """Disjoint intervals in time order; `starts` and `ends` in ns."""

    starts: Instants
    ends: Instants

    @property
    def lengths(self) -> Instants:
        """Return the length of each interval, ns."""
        return self.ends - self.starts

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, chosen: NDArray[np.bool_]) -> Runs:
        """Return the intervals that are `chosen`."""
        return Runs(self.starts[chosen], self.ends[chosen])


@dataclass(frozen=True)
class Activity:
    """Quiet intervals between `first` and `last`. `resolution`: the shortest detectable, ns. `holes`: not observed."""

    quiet: Runs
    first: int
    last: int
    resolution: int
    holes: Runs

    @property
    def busy(self) -> Runs:
        """Return the intervals between the quiet ones."""
        return between(self.quiet, self.first, self.last)


def activity_of(
    at: Instants, span: Instants, first: int, last: int, *, interval: int, holes: Sequence[tuple[int, int]] = ()
) -> Activity:
    """Return the activity of samples at `at` between `first` and `last`.

    `interval`: ns between samples of a running thread, used for samples without a span. Quiet intervals at the edge of
    the window or of a hole are kept, although their true ends are unknown.
    """
    import numpy as np

    points = span <= 0
    reach = np.where(points, interval, 0)
    starts, ends = at - reach, at + np.where(points, interval, span)
    # a thread that ran at a sample stopped, on average, half an interval later
    back = interval // 2 if bool(points.any()) else 0
    levels, edges = _levels(np.clip(starts, first, last), np.clip(ends, first, last), first, last)
    quiet = levels <= QUIET_LEVEL * _usual(levels, np.diff(edges))
    runs = _runs(edges, quiet)
    grown = Runs(np.maximum(runs.starts - back, first), np.minimum(runs.ends + back, last))
    resolution = interval if bool(points.any()) else 1000
    begin = np.array([a for a, _ in holes], dtype=np.int64)
    end = np.array([b for _, b in holes], dtype=np.int64)
    return Activity(grown, first, last, max(resolution, 1), Runs(begin, end))


def between(runs: Runs, first: int, last: int) -> Runs:
    """Return the intervals between `runs`, from `first` to `last`."""
    import numpy as np

    starts = np.concatenate([np.array([first], dtype=np.int64), runs.ends])
    ends = np.concatenate([runs.starts, np.array([last], dtype=np.int64)])
    return Runs(starts, ends).where(ends > starts)


def closed(runs: Runs, gap: int) -> tuple[Runs, Instants]:
    """Join `runs` less than `gap` apart; return them and the time of the original runs in each, ns."""
    import numpy as np

    if not len(runs):
        return runs, runs.starts
    new = np.concatenate([[True], runs.starts[1:] - runs.ends[:-1] >= gap])
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:] - 1, [len(runs) - 1]])
    return Runs(runs.starts[first], runs.ends[last]), np.add.reduceat(runs.lengths, first)


def _levels(starts: Instants, ends: Instants, first: int, last: int) -> tuple[NDArray[np.int64], Instants]:
    """Return the number of open intervals in each piece of time, and the edges of the pieces (one more)."""
    import numpy as np

    edges, inverse = np.unique(np.concatenate([starts, ends, np.array([first, last])]), return_inverse=True)
    steps = np.zeros(len(edges), dtype=np.int64)
    count = len(starts)
    np.add.at(steps, inverse[:count], 1)
    np.add.at(steps, inverse[count : 2 * count], -1)
    return np.cumsum(steps)[:-1], edges.astype(np.int64)


def _usual(levels: NDArray[np.int64], lengths: Instants) -> float:
    """Return the upper quartile, over time, of the levels above zero."""
    import numpy as np

    on = levels > 0
    if not on.any():
        return 0.0
    order = np.argsort(levels[on], kind="stable")
    passed = np.cumsum(lengths[on][order])
    return float(levels[on][order][np.searchsorted(passed, 0.75 * passed[-1])])


def _runs(edges: Instants, chosen: NDArray[np.bool_]) -> Runs:
    """Join neighbouring pieces that are `chosen`."""
    import numpy as np

    padded = np.concatenate([[False], chosen, [False]]).astype(np.int8)
    change = np.diff(padded)
    return Runs(edges[np.flatnonzero(change == 1)], edges[np.flatnonzero(change == -1)])
