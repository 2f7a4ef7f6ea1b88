"""Lay out a flame graph: which frames of a call tree it shows, and where.

A tree may have millions of nodes and a picture a few thousand pixels: nodes that would be narrower than a share of the
picture are left out, and their weight is shown as one rest beside their siblings, so that every total stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT_KIND, REST_KIND = "root", "rest"
"""Kinds of the two added frames: everything, and what is too narrow to be drawn."""
LEAST_SHARE = 1 / 12_000
"""A tenth of a pixel in a picture of 1200."""
MOST_NODES = 40_000
"""Limit in one picture, about; with them a page has 2 to 3 MB."""
MOST_LEVELS = 1500
"""Deeper calls are left out; a recursion of CPython's default limit is still shown."""
_NOTHING = 1e-12

Ints = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FlameTree:
    """A call tree to be drawn, with one side or, for a difference, two: before and after.

    `parent` (-1: outermost; before its children), `depth` (outermost 0) and `frame` (row of `labels`) have an entry per
    node; `own` and `total` a row per side. `labels`, `kinds`, `codes`: a frame's name, its kind, and its file and line
    as shown (may be empty). `proven`: of a difference, whether a node's change is significant.
    """

    parent: Ints
    depth: Ints
    frame: Ints
    own: Floats
    total: Floats
    labels: Sequence[str]
    kinds: Sequence[str]
    codes: Sequence[str]
    proven: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Layout:
    """Nodes to draw: breadth first, siblings by label, the rest of them last; node 0 is everything.

    `x` and `width` are shares of a side's sum, a row per side; the other arrays as in `FlameTree`. `cut`: number of
    nodes that are not drawn because they are narrower than the share `least` on every side (or deeper than
    `MOST_LEVELS`).
    """

    parent: Ints
    depth: Ints
    frame: Ints
    own: Floats
    total: Floats
    x: Floats
    width: Floats
    labels: list[str]
    kinds: list[str]
    codes: list[str]
    proven: NDArray[np.bool_] | None
    cut: int
    least: float

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def sides(self) -> int:
        """Number of profiles."""
        return len(self.own)

    @property
    def levels(self) -> int:
        """Number of rows of the picture."""
        return int(self.depth.max()) + 1

    @property
    def change(self) -> Floats:
        """Of two sides: change of the share of each node in percentage points, after minus before."""
        points: Floats = 100 * (self.width[1] - self.width[0])
        return points


def layout(
    tree: FlameTree, *, root: str, rest: str, least: float = LEAST_SHARE, most: int = MOST_NODES
) -> Layout | None:
    """Return the drawn part of `tree`, None when it has no weight; `root` and `rest`: labels of everything, and of
    frames that are too narrow.

    Raises ValueError for weights that are negative or not finite.
    """
    if not (np.isfinite(tree.own).all() and (tree.own >= 0).all()):
        raise ValueError("a weight is negative or not finite")
    outer = tree.parent < 0
    sums = tree.total[:, outer].sum(axis=1)
    if not sums.any():
        return None
    scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
    kept, least = _kept(tree, scale, least, most)
    gathered = _gather(tree, kept, sums, scale)
    names = _names(tree, gathered, root, rest)
    order = _drawing_order(gathered.parent, gathered.depth, names.rank[gathered.frame])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    parent, depth = gathered.parent[order], gathered.depth[order]
    parent[1:] = place[parent[1:]]
    total = gathered.total[:, order]
    width = total * scale[:, None]
    return Layout(
        parent=parent.astype(np.int32),
        depth=depth.astype(np.int32),
        frame=gathered.frame[order].astype(np.int32),
        own=gathered.own[:, order],
        total=total,
        x=_starts(parent, depth, width),
        width=width,
        labels=names.labels,
        kinds=names.kinds,
        codes=names.codes,
        proven=None if gathered.proven is None else gathered.proven[order],
        cut=len(tree.parent) - len(kept),
        least=least,
    )


@dataclass(frozen=True)
class _Nodes:
    """Return everything, the kept nodes and one rest for each that needs it, in no order; frames by number in the tree,
    followed by the two added ones."""

    parent: Ints
    depth: Ints
    frame: Ints
    own: Floats
    total: Floats
    proven: NDArray[np.bool_] | None


@dataclass(frozen=True)
class _Names:
    labels: list[str]
    kinds: list[str]
    codes: list[str]
    rank: Ints


def _kept(tree: FlameTree, scale: Floats, least: float, most: int) -> tuple[Ints, float]:
    """Return the nodes wide enough, and that width as a share: larger than requested when there are too many."""
    share = (tree.total * scale[:, None]).max(axis=0)
    keep = (share >= least) & (share > 0) & (tree.depth < MOST_LEVELS - 1)
    if int(keep.sum()) > most:
        least = float(np.partition(share[keep], -most - 1)[-most - 1])
        keep &= share > least
    kept = np.nonzero(keep)[0]
    while True:  # sums are rounded: a parent may be minimally narrower than its only child
        above = tree.parent[kept]
        lonely = (above >= 0) & ~keep[above]
        if not lonely.any():
            return kept, least
        keep[kept[lonely]] = False
        kept = np.nonzero(keep)[0]


def _gather(tree: FlameTree, kept: Ints, sums: Floats, scale: Floats) -> _Nodes:
    sides, count = len(sums), len(kept) + 1
    number = np.zeros(len(tree.parent) + 1, np.int64)  # the last: the parent of the outermost, everything
    number[kept] = np.arange(1, count)
    parent = np.concatenate([[-1], number[tree.parent[kept]]])
    own = np.concatenate([np.zeros((sides, 1)), tree.own[:, kept]], axis=1)
    total = np.concatenate([sums[:, None], tree.total[:, kept]], axis=1)
    shown = own.copy()
    for side in range(sides):
        shown[side] += np.bincount(parent[1:], total[side, 1:], count)[:count]
    left = np.maximum(total - shown, 0)
    short = np.nonzero((left * scale[:, None] > _NOTHING).any(axis=0))[0]
    depth = np.concatenate([[0], tree.depth[kept] + 1])
    frames = len(tree.labels)
    proven = tree.proven
    return _Nodes(
        parent=np.concatenate([parent, short]),
        depth=np.concatenate([depth, depth[short] + 1]),
        frame=np.concatenate([[frames], tree.frame[kept], np.full(len(short), frames + 1)]).astype(np.int64),
        own=np.concatenate([own, left[:, short]], axis=1),
        total=np.concatenate([total, left[:, short]], axis=1),
        proven=None
        if proven is None
        else np.concatenate([[False], proven[kept], np.zeros(len(short), bool)]).astype(bool),
    )


def _names(tree: FlameTree, nodes: _Nodes, root: str, rest: str) -> _Names:
    """Return the frames in use, and their order among siblings: by label, the rest last. Renumbers frames."""
    used, frame = np.unique(nodes.frame, return_inverse=True)
    nodes.frame[:] = frame
    added = {len(tree.labels): (root, ROOT_KIND, ""), len(tree.labels) + 1: (rest, REST_KIND, "")}
    rows = [added.get(n) or (tree.labels[n], tree.kinds[n], tree.codes[n]) for n in used.tolist()]
    ordered = sorted(range(len(rows)), key=lambda n: (rows[n][1] == REST_KIND, rows[n][0], n))
    rank = np.empty(len(rows), np.int64)
    rank[ordered] = np.arange(len(rows))
    labels, kinds, codes = (list(column) for column in zip(*rows, strict=True))
    return _Names(labels, kinds, codes, rank)


def _drawing_order(parent: Ints, depth: Ints, rank: Ints) -> Ints:
    """Return the nodes level by level, those of a parent together, by rank."""
    place = np.zeros(len(parent), np.int64)
    found, start = [], 0
    for level in _levels(depth):
        level = level[np.lexsort((rank[level], place[parent[level]]))]
        place[level] = start + np.arange(len(level))
        start += len(level)
        found.append(level)
    return np.concatenate(found)


def _starts(parent: Ints, depth: Ints, width: Floats) -> Floats:
    """Return where each node begins: beside the siblings before it."""
    x = np.zeros_like(width)
    for level in _levels(depth)[1:]:
        above = parent[level]
        before = np.cumsum(width[:, level], axis=1) - width[:, level]
        first = np.searchsorted(above, above)  # siblings are adjacent, and parents ascend
        x[:, level] = x[:, above] + before - before[:, first]
    return x


def _levels(depth: Ints) -> list[Ints]:
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1])
