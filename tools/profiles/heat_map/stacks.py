"""Which stacks weigh how much in which cells, so that any span of a heat map can be drawn as a flame graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from whystall.tools.profiles.heat_map.cells import ROWS, Grid
from whystall.tools.profiles.heat_map.series import Series
from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.stacks.tree import NO_NODE, CallTree, Part, call_tree, labels_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOST_PIECES = 250_000
"""Weights that are kept; with them a page has some 4 MB. With more, cells are put together."""
_TOGETHER = (1, 5, ROWS, 5 * ROWS, 30 * ROWS)


@dataclass(frozen=True)
class StackCells:
    """Weights of nodes of `tree` in cells, by cell. `together`: how many cells count as one, the first of which is
    named. `per_sample`: what one sample weighs on average.
    """

    tree: CallTree
    cell: Ints
    node: Ints
    weight: Floats
    together: int
    per_sample: float


def stack_cells(series: Series, grid: Grid) -> StackCells:
    """Where the samples of `series` lie in `grid`; one that lasts is spread over its cells."""
    import numpy as np

    samples = series.samples.filter(pl.col("weight") > 0)
    profile = StackProfile({**series.profile.tables, "samples": samples}, series.profile.source)
    tree = call_tree(Part(profile, event=series.event))
    node = _nodes(tree, profile)[samples["stack"].to_numpy()]
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
    """Samples cut at the edges of cells (of `together` each)."""
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


def _nodes(tree: CallTree, profile: StackProfile) -> Ints:
    """The node of `tree` of each stack of `profile`; of `NO_STACK` at the end, so that -1 finds it. `NO_NODE` for
    stacks that nobody was seen in.
    """
    import numpy as np

    height = max(tree.frames.height, 1)
    rows = {label: row for row, label in enumerate(tree.labels)}
    labels = labels_of(profile.frames).to_list()
    frame_row = np.array([rows.get(label, -1) for label in labels], dtype=np.int64)
    keys = (tree.parent + 1) * height + tree.frame
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]

    def find(parent: Ints, frame: Ints) -> Ints:
        wanted = (parent + 1) * height + frame
        place = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
        found: Ints = np.where((ordered[place] == wanted) & (frame >= 0), order[place], NO_NODE)
        return found

    up = profile.stacks["parent"].to_numpy().astype(np.int64)
    frame = frame_row[profile.stacks["frame"].to_numpy()] if profile.stacks.height else up
    node = np.full(len(up) + 1, NO_NODE, dtype=np.int64)
    if not len(tree):
        return node
    waiting = np.arange(len(up))
    level = waiting[up == NO_STACK]
    above = np.full(len(level), NO_NODE, dtype=np.int64)
    children = np.argsort(up, kind="stable")
    starts = np.searchsorted(up[children], np.arange(len(up) + 1))
    while len(level):
        node[level] = find(above, frame[level])
        level = level[node[level] != NO_NODE]
        count = starts[level + 1] - starts[level]
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        above = np.repeat(node[level], count)
        level = children[np.repeat(starts[level], count) + offset]
    nothing = rows.get("[no stack]", -1)
    node[-1] = int(find(np.array([NO_NODE]), np.array([nothing]))[0])
    return node
