"""Samples over time as cells: a column per second with 50 cells of 20 ms; long profiles have longer columns, and short
ones shorter, so that there is something to compare.

A cell's value is its busy time relative to the maximum: 1 if all lanes (threads ever busy at once) are busy all the
time. It is NaN, not zero, where nothing was observed (beyond the edges, in holes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Instants = NDArray[np.int64]
    Floats = NDArray[np.float64]

ROWS = 50
CELL_NS = 20_000_000
MOST_COLUMNS = 2000
"""In longer profiles a column is 2, 5, 10 ... seconds."""
_LONGER: tuple[int, ...] = tuple(m * 10**p for p in range(8) for m in (1, 2, 5))
_FEWEST_COLUMNS = 8
_SHORTER = tuple(CELL_NS * m // 10**p for p in range(1, 4) for m in (5, 2, 1))
"""Cells of short profiles, 10 ms to 20 us."""
_OF_SAMPLE = 10
"""A cell is at least this part of what one sample stands for: finer ones show no more."""
# In a file without a known window, longer gaps (in columns) are cut out; samples isolated by such gaps are outliers (a
# broken clock, a stray line) if they are at most this share and this many.
_GAP_COLUMNS = 30
_OUTLIER_SHARE, _OUTLIERS = 0.01, 10
# A cell needs at least this share of observed time.
_LEAST_OBSERVED = 0.5
# Lanes are counted over this many cells: one cell holds too few samples.
_LANE_CELLS = 10


@dataclass(frozen=True)
class Presence:
    """Busy intervals [`starts`, `ends`), ns. A sample is an interval of one sampling period."""

    starts: Instants
    ends: Instants


@dataclass(frozen=True)
class Grid:
    """Cells of `cell_ns`, `ROWS` in a column. `columns`: their starts, ns, ascending; gaps are cut out.

    `value`: columns x rows, see the module. `first`, `last`: the observed time. `lanes`: most threads busy at once.
    `outliers`: samples left out.
    """

    cell_ns: int
    columns: Instants
    value: Floats
    first: int
    last: int
    lanes: int
    outliers: int

    @property
    def column_ns(self) -> int:
        """Return the length of a column."""
        return self.cell_ns * ROWS

    @property
    def gaps(self) -> int:
        """Return how many gaps were cut out."""
        import numpy as np

        return int((np.diff(self.columns) > self.column_ns).sum())

    def cell_of(self, at: Instants) -> Instants:
        """Return the cell number (column by column) of each time; -1 outside all cells."""
        import numpy as np

        if not len(self.columns):
            return np.full(len(at), -1, dtype=np.int64)
        column = np.searchsorted(self.columns, at, side="right") - 1
        row = (at - self.columns[np.maximum(column, 0)]) // self.cell_ns
        inside = (column >= 0) & (row < ROWS)
        found: Instants = np.where(inside, column * ROWS + row, -1)
        return found


@dataclass(frozen=True)
class Extent:
    """The displayed pieces of time, each (first, last), and the number of samples outside them."""

    pieces: tuple[tuple[int, int], ...]
    outliers: int


def extent_of(presence: Presence, window: tuple[int, int] | None) -> Extent:
    """Return the `window` if known, else the extent of `presence` (in any order) without long gaps and outliers."""
    import numpy as np

    starts, ends = presence.starts, presence.ends
    if window is not None:
        outside = (ends <= window[0]) | (starts >= window[1])
        return Extent((window,), int(outside.sum()))
    if not len(starts):
        return Extent((), 0)
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[0], np.flatnonzero(starts[1:] - reached[:-1] > _GAP_COLUMNS * ROWS * CELL_NS) + 1])
    counts = np.diff(np.concatenate([first, [len(starts)]]))
    alone = (counts <= _OUTLIERS) & (counts <= _OUTLIER_SHARE * len(starts))
    last = np.concatenate([first[1:] - 1, [len(starts) - 1]])
    pieces = tuple((int(starts[a]), int(reached[b])) for a, b, out in zip(first, last, alone, strict=True) if not out)
    return Extent(pieces, int(counts[alone].sum()))


def grid_of(
    presence: Presence, extent: Extent, holes: Sequence[tuple[int, int]] = (), interval_ns: float | None = None
) -> Grid:
    """Return the cells of `presence`; `holes`: intervals that were not observed; `interval_ns`: from sample to sample,
    0 for exact spans; None: no cells below `CELL_NS`."""
    import numpy as np

    cell = _cell_ns(extent, interval_ns)
    column = cell * ROWS
    origin = extent.pieces[0][0] if extent.pieces else 0
    # an incomplete cell at the end gets no column of its own
    reach = [(a - origin, b - origin - int(_LEAST_OBSERVED * cell)) for a, b in extent.pieces]
    numbers = [np.arange(a // column, max(-(-b // column), a // column + 1)) for a, b in reach]
    starts = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *numbers])) * column + origin
    empty = Grid(cell, starts, np.zeros((len(starts), ROWS)), 0, 0, 1, extent.outliers)
    if not len(starts):
        return empty
    first, last = extent.pieces[0][0], extent.pieces[-1][1]
    seen = _spread(empty, np.array([a for a, _ in extent.pieces]), np.array([b for _, b in extent.pieces]))
    if holes:
        seen = seen - _spread(empty, np.array([a for a, _ in holes]), np.array([b for _, b in holes]))
    busy = _spread(empty, np.maximum(presence.starts, first), np.minimum(presence.ends, last))
    observed = np.where(seen >= _LEAST_OBSERVED * cell, seen, np.nan)
    lanes = _lanes(busy, seen, max(_LANE_CELLS, _LANE_CELLS * CELL_NS // cell))
    value = (busy / (observed * lanes)).reshape(len(starts), ROWS)
    return Grid(cell, starts, value, first, last, lanes, extent.outliers)


def _cell_ns(extent: Extent, interval_ns: float | None) -> int:
    """Return the shortest cell that gives at most `MOST_COLUMNS` columns, of one second or more; shorter ones where
    there were only a few."""
    span = sum(b - a for a, b in extent.pieces)
    if interval_ns is not None and 0 < span < _FEWEST_COLUMNS * CELL_NS * ROWS:
        fine = [cell for cell in (CELL_NS, *_SHORTER) if cell * _OF_SAMPLE >= interval_ns]
        return next((cell for cell in fine if span >= _FEWEST_COLUMNS * cell * ROWS), min(fine, default=CELL_NS))
    for times in _LONGER:
        column = CELL_NS * ROWS * times
        if sum(-(-(b - a) // column) + 1 for a, b in extent.pieces) <= MOST_COLUMNS:
            return CELL_NS * times
    return CELL_NS * _LONGER[-1]


def _spread(grid: Grid, starts: Instants, ends: Instants) -> Floats:
    """Return the time of the intervals [starts, ends) in each cell, ns."""
    import numpy as np

    count = len(grid.columns) * ROWS
    out = np.zeros(count + 1)
    column = np.maximum(np.searchsorted(grid.columns, ends - 1, side="right") - 1, 0)
    ends = np.minimum(ends, grid.columns[column] + grid.column_ns)  # an incomplete last cell may have no column
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    first, last = grid.cell_of(starts), grid.cell_of(ends - 1)
    keep = (first >= 0) & (last >= 0)
    starts, ends, first, last = starts[keep], ends[keep], first[keep], last[keep]
    one = first == last
    out[:count] += np.bincount(first[one], (ends - starts)[one], minlength=count)[:count]
    starts, ends, first, last = starts[~one], ends[~one], first[~one], last[~one]
    if len(starts):
        begin_of = np.repeat(grid.columns, ROWS) + np.tile(np.arange(ROWS) * grid.cell_ns, len(grid.columns))
        out[:count] += np.bincount(first, begin_of[first] + grid.cell_ns - starts, minlength=count)[:count]
        out[:count] += np.bincount(last, ends - begin_of[last], minlength=count)[:count]
        whole = np.bincount(first + 1, minlength=count + 1)[: count + 1]
        whole = whole - np.bincount(last, minlength=count + 1)[: count + 1]
        out += np.cumsum(whole) * grid.cell_ns
    return out[:count]


def _lanes(busy: Floats, seen: Floats, cells: int) -> int:
    """Return the largest number of threads busy at once, averaged over a few cells and rounded."""
    import numpy as np

    blocks = np.arange(0, len(busy), cells)
    room = np.add.reduceat(seen, blocks)
    share = np.divide(np.add.reduceat(busy, blocks), room, out=np.zeros(len(blocks)), where=room > 0)
    # ignore blocks that were hardly observed
    share = share[room >= _LEAST_OBSERVED * room.max()] if len(room) and room.max() > 0 else share
    return max(int(np.rint(share.max(initial=1.0))), 1)


def merged(owner: Instants, starts: Instants, ends: Instants) -> tuple[Instants, Presence]:
    """Join overlapping intervals of the same `owner`, so that nested work counts once; return owners and intervals."""
    import numpy as np

    order = np.lexsort((starts, owner))
    owner, starts, ends = owner[order], starts[order], ends[order]
    edges = np.flatnonzero(np.diff(owner)) + 1
    owners, begins, stops = [owner[:0]], [starts[:0]], [ends[:0]]
    for of, begin, end in zip(np.split(owner, edges), np.split(starts, edges), np.split(ends, edges), strict=True):
        reached = np.maximum.accumulate(end)
        first = np.concatenate([[True], begin[1:] > reached[:-1]])[: len(begin)]
        last = np.concatenate([first[1:], [True]])[: len(begin)]
        owners.append(of[first])
        begins.append(begin[first])
        stops.append(reached[last])
    return np.concatenate(owners), Presence(np.concatenate(begins), np.concatenate(stops))
