"""Weights of stacks per cell, so that any part of a heat map can be drawn as a flame graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from whystall.tools.profiles.common.stack_nodes import stack_nodes
from whystall.tools.profiles.heat_map.cells import ROWS, Grid
from whystall.tools.profiles.heat_map.series import Series
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import CallTree, Part, call_tree

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOST_PIECES = 250_000
"""Most weights of a page, about 4 MB; with more, cells are merged."""
_TOGETHER = (1, 5, ROWS, 5 * ROWS, 30 * ROWS)


@dataclass(frozen=True)
class StackCells:
    """Weights of nodes of `tree`, ordered by cell. `together`: number of cells merged into one, named by the first.
    `per_sample`: mean weight of a sample.
    """

    tree: CallTree
    cell: Ints
    node: Ints
    weight: Floats
    together: int
    per_sample: float


def stack_cells(series: Series, grid: Grid) -> StackCells:
    """Return the weights of `series` in the cells of `grid`; a span is divided among its cells."""
    import numpy as np

    samples = series.samples.filter(pl.col("weight") > 0)
    profile = StackProfile({**series.profile.tables, "samples": samples}, series.profile.source)
    tree = call_tree(Part(profile, event=series.event))
    node = stack_nodes(tree, profile)[samples["stack"].to_numpy()]
    start = samples["at_ns"].to_numpy()
    end = start + np.maximum(samples["span_ns"].to_numpy(), 1)
    weight = samples["weight"].to_numpy()
    first, last = grid.cell_of(np.maximum(start, grid.first)), grid.cell_of(np.minimum(end, grid.last) - 1)
    inside = (first >= 0) & (last >= first)
    start, end, first, last = start[inside], end[inside], first[inside], last[inside]
    node, weight = node[inside], weight[inside]
    cells = node[:0], node[:0], weight[:0]
    together = 1
    for together in _TOGETHER:
        if int((last // together - first // together + 1).sum()) > 20 * MOST_PIECES and together < _TOGETHER[-1]:
            continue
        cells = _summed(*_pieces(grid, start, end, first, last, node, weight, together), len(tree))
        if len(cells[0]) <= MOST_PIECES:
            break
    per_sample = float(weight.mean()) if len(weight) else 1.0
    return StackCells(tree, *cells, together, per_sample)


def _pieces(
    grid: Grid,
    start: Ints,
    end: Ints,
    first: Ints,
    last: Ints,
    node: Ints,
    weight: Floats,
    together: int,
) -> tuple[Ints, Ints, Floats]:
    """Divide samples at the edges of cells (of `together` each)."""
    import numpy as np

    low, high = first // together, last // together
    count = high - low + 1
    which = np.repeat(np.arange(len(low)), count)
    cell = low[which] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    begins = np.repeat(grid.columns, ROWS) + np.tile(np.arange(ROWS) * grid.cell_ns, len(grid.columns))
    begin = begins[cell * together]
    final = begins[np.minimum(cell * together + together, len(begins)) - 1] + grid.cell_ns
    part = np.minimum(end[which], final) - np.maximum(start[which], begin)
    share = np.clip(part / (end - start)[which], 0.0, 1.0)
    return cell * together, node[which], weight[which] * share


def _summed(cell: Ints, node: Ints, weight: Floats, nodes: int) -> tuple[Ints, Ints, Floats]:
    import numpy as np

    keys, place = np.unique(cell * max(nodes, 1) + node, return_inverse=True)
    return keys // max(nodes, 1), keys % max(nodes, 1), np.bincount(place, weight, len(keys)).astype(np.float64)
