"""When something was busy and when it was quiet, from samples or spans: intervals that alternate.

A sample says that its thread ran at one instant. It stands for the time up to the next one before and after it, so a
spell is quiet only where samples that were due are missing. A span says what it says.
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
"""Quiet: no more than this share of what is usual while anything goes on (`_usual`) is going on."""


@dataclass(frozen=True)
class Runs:
    """Spells in the order of time, none touching another; `starts` and `ends` in ns."""

    starts: Instants
    ends: Instants

    @property
    def lengths(self) -> Instants:
        """How long each is, ns."""
        return self.ends - self.starts

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, chosen: NDArray[np.bool_]) -> Runs:
        """Those that are `chosen`."""
        return Runs(self.starts[chosen], self.ends[chosen])


@dataclass(frozen=True)
class Activity:
    """Quiet spells between `first` and `last`. `resolution`: shorter ones cannot be told, ns. `holes`: spells during
    which nothing was observed.
    """

    quiet: Runs
    first: int
    last: int
    resolution: int
    holes: Runs

    @property
    def busy(self) -> Runs:
        """The spells between the quiet ones."""
        return between(self.quiet, self.first, self.last)


def activity_of(
    at: Instants, span: Instants, first: int, last: int, *, interval: int, holes: Sequence[tuple[int, int]] = ()
) -> Activity:
    """The activity that samples at `at` show between `first` and `last`.

    `interval`: ns between samples of something that runs; used for those without a span. Quiet spells at an edge of
    the window or of a hole have no known beginning or end; they are kept, so that nobody counts on `quiet` for them.
    """
    import numpy as np

    points = span <= 0
    reach = np.where(points, interval, 0)
    starts, ends = at - reach, at + np.where(points, interval, span)
    # half of the reach is given back: what ran at a sample stopped, on average, half an interval later
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
    """The spells that `runs` leave free between `first` and `last`."""
    import numpy as np

    starts = np.concatenate([np.array([first], dtype=np.int64), runs.ends])
    ends = np.concatenate([runs.starts, np.array([last], dtype=np.int64)])
    return Runs(starts, ends).where(ends > starts)


def closed(runs: Runs, gap: int) -> tuple[Runs, Instants]:
    """`runs`, those that are less than `gap` apart as one; and how much of each really is of `runs`, ns."""
    import numpy as np

    if not len(runs):
        return runs, runs.starts
    new = np.concatenate([[True], runs.starts[1:] - runs.ends[:-1] >= gap])
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:] - 1, [len(runs) - 1]])
    return Runs(runs.starts[first], runs.ends[last]), np.add.reduceat(runs.lengths, first)


def _levels(starts: Instants, ends: Instants, first: int, last: int) -> tuple[NDArray[np.int64], Instants]:
    """How many spells are open in each piece, and the edges of the pieces (one more)."""
    import numpy as np

    edges, inverse = np.unique(np.concatenate([starts, ends, np.array([first, last])]), return_inverse=True)
    steps = np.zeros(len(edges), dtype=np.int64)
    count = len(starts)
    np.add.at(steps, inverse[:count], 1)
    np.add.at(steps, inverse[count : 2 * count], -1)
    return np.cumsum(steps)[:-1], edges.astype(np.int64)


def _usual(levels: NDArray[np.int64], lengths: Instants) -> float:
    """The level that is not exceeded for three quarters of the time in which anything goes on."""
    import numpy as np

    on = levels > 0
    if not on.any():
        return 0.0
    order = np.argsort(levels[on], kind="stable")
    passed = np.cumsum(lengths[on][order])
    return float(levels[on][order][np.searchsorted(passed, 0.75 * passed[-1])])


def _runs(edges: Instants, chosen: NDArray[np.bool_]) -> Runs:
    """Neighbouring pieces that are `chosen`, as one."""
    import numpy as np

    padded = np.concatenate([[False], chosen, [False]]).astype(np.int8)
    change = np.diff(padded)
    return Runs(edges[np.flatnonzero(change == 1)], edges[np.flatnonzero(change == -1)])
