"""Trees of calls as columns: grown from stacks, laid over one another. Vectorised, for millions of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NO_PARENT = -1
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """Nodes: `frame` called by `parent` (`NO_PARENT`: outermost), `depth` of them above it. Parents come first."""

    parent: Ints
    frame: Ints
    depth: Ints

    def __len__(self) -> int:
        return len(self.parent)

    @staticmethod
    def of(parent: Ints, frame: Ints) -> Forest:
        """With the depths, which are found by jumps that double: a deep stack costs no pass a frame. Of nodes in
        breadth-first order they are where the levels begin.
        """
        if len(parent) and (parent[1:] >= parent[:-1]).all():
            edges = [0, int(np.searchsorted(parent, 0))]
            while edges[-1] < len(parent):
                edges.append(int(np.searchsorted(parent, edges[-1])))
            return Forest(parent, frame, np.repeat(np.arange(len(edges) - 1), np.diff(edges)))
        depth = (parent >= 0).astype(np.int64)
        up = parent.copy()
        while len(known := np.nonzero(up >= 0)[0]):
            depth[known] += depth[up[known]]
            up[known] = up[up[known]]
        return Forest(parent, frame, depth)

    def levels(self) -> list[Ints]:
        """The nodes of each depth, outermost first."""
        if not len(self):
            return []
        order = _by_depth(self.depth)
        return np.split(order, np.cumsum(np.bincount(self.depth))[:-1])


EMPTY = Forest(*(np.empty(0, np.int64) for _ in range(3)))


def grown(frames: Ints, lengths: Ints) -> tuple[Forest, Ints]:
    """The tree of stacks that stand one behind another in `frames`, outermost frame first, each as long as `lengths`
    says (at least 1), and the innermost node of each stack.

    What a stack shares with the one before it is shared; what it shares with others is not: see `merged`. So it costs
    O(n), and sorted stacks give few nodes.
    """
    start = np.cumsum(lengths) - lengths
    place = np.arange(len(frames)) - np.repeat(start, lengths)
    before = np.repeat(np.append(0, start[:-1]), lengths) + place  # the same place in the stack before
    shared = place < np.repeat(np.append(0, lengths[:-1]), lengths)
    shared &= frames[np.where(shared, before, 0)] == frames
    first = np.minimum.reduceat(np.where(shared, np.iinfo(np.int64).max, place), start) if len(start) else start
    first = np.minimum(first, lengths)  # the place where it leaves the stack before
    nodes = np.flatnonzero(place >= np.repeat(first, lengths))
    depth = place[nodes]
    added = lengths - first
    upto = np.cumsum(added)
    parent = np.arange(-1, len(nodes) - 1)
    order = _by_depth(depth)
    keys = depth[order] * (len(nodes) + 1) + order

    def last(depths: Ints, until: Ints) -> Ints:
        """The newest of the first `until` nodes that has this depth."""
        return order[np.searchsorted(keys, depths * (len(nodes) + 1) + until) - 1]

    heads = np.flatnonzero(added)
    at = (upto - added)[heads]
    inner = first[heads] > 0
    parent[at] = NO_PARENT
    parent[at[inner]] = last(first[heads][inner] - 1, at[inner])
    return Forest(parent, frames[nodes].astype(np.int64), depth), last(lengths - 1, upto)


def _by_depth(depth: Ints) -> Ints:
    """Nodes by depth, then by number; small numbers are sorted in one pass."""
    small = len(depth) == 0 or int(depth.max()) < 1 << 16
    return np.argsort(depth.astype(np.uint16) if small else depth, kind="stable")


def merged(forests: Sequence[Forest]) -> tuple[Forest, list[Ints]]:
    """All of them over one another, and for each which node its nodes became: equal frames beneath equal parents are
    one. Nodes are in breadth-first order, siblings neighbours ordered by frame. O(n log n).
    """
    levels = [forest.levels() for forest in forests]
    node_of = [np.empty(len(forest), np.int64) for forest in forests]
    width = max((int(forest.frame.max(initial=0)) for forest in forests), default=0) + 1
    parents, frames, depths = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    count = 0
    for depth in range(max(map(len, levels), default=0)):
        here = [one[depth] if depth < len(one) else np.empty(0, np.int64) for one in levels]
        keys: list[Ints] = []
        for forest, nodes, level in zip(forests, node_of, here, strict=True):
            up = nodes[forest.parent[level]] if depth else np.full(len(level), NO_PARENT, np.int64)
            keys.append((up + 1) * width + forest.frame[level])
        unique, place = np.unique(np.concatenate(keys), return_inverse=True)
        edges = np.cumsum([0, *map(len, here)])
        for nodes, level, (start, end) in zip(node_of, here, pairwise(edges), strict=True):
            nodes[level] = count + place[start:end]
        parents.append(unique // width - 1)
        frames.append(unique % width)
        depths.append(np.full(len(unique), depth, np.int64))
        count += len(unique)
    return Forest(np.concatenate(parents), np.concatenate(frames), np.concatenate(depths)), node_of
