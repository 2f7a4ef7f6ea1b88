"""Call trees as columns: built from stacks, and merged. Vectorised, for millions of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_PARENT = -1
Ints = NDArray[Any]
_Small = np.int32


@dataclass(frozen=True)
class Forest:
    """Nodes: `frame` called by `parent` (`NO_PARENT`: outermost), `depth` nodes above it. Parents come first."""

    parent: Ints
    frame: Ints
    depth: Ints

    def __len__(self) -> int:
        return len(self.parent)

    @staticmethod
    def of(parent: Ints, frame: Ints) -> Forest:
        """Compute the depths by doubling jumps: a deep stack costs no pass per frame. For nodes in breadth-first order
        they are where the levels begin."""
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
        """Return the nodes of each depth, outermost first."""
        if not len(self):
            return []
        order = _by_depth(self.depth)
        return np.split(order, np.cumsum(np.bincount(self.depth))[:-1])


EMPTY = Forest(*(np.empty(0, np.int64) for _ in range(3)))


def grown(frames: NDArray[Any], lengths: Ints) -> tuple[Forest, Ints]:
    """Return the tree of the stacks that follow one another in `frames`, outermost frame first, of the given `lengths`
    (at least 1), and the innermost node of each stack. Nodes are level by level.

    Frames shared with the previous stack are shared in the tree; those shared with others are not: see `merged`. So it
    is O(n), and sorted stacks give few nodes.
    """
    start = np.cumsum(lengths) - lengths
    shared = _shared(frames, start, lengths)
    added = lengths - shared
    upto = np.cumsum(added)
    count = int(upto[-1]) if len(upto) else 0
    number = np.arange(count, dtype=_Small)  # half the memory is half the time
    depth = number + np.repeat((shared - upto + added).astype(_Small), added)
    order = _by_depth(depth)
    place = np.empty(count, _Small)
    place[order] = number

    ordered = depth[order]
    keys = ordered * np.int64(count + 1) + order

    def last(depths: Ints, until: Ints) -> Ints:
        """Return the index of the newest of the first `until` nodes that has this depth."""
        return np.searchsorted(keys, depths * (count + 1) + until) - 1

    parent = np.append(_Small(NO_PARENT), place)[
        :count
    ]  # the node before, except where a stack diverges from the one before it
    heads = np.flatnonzero(added)
    at = (upto - added)[heads]
    inner = shared[heads] > 0
    parent[at] = NO_PARENT
    parent[at[inner]] = last(shared[heads][inner] - 1, at[inner])
    innermost_frames = frames[number + np.repeat((start + shared - upto + added).astype(_Small), added)]
    return Forest(parent[order], innermost_frames[order], ordered), last(lengths - 1, upto)


def _shared(frames: NDArray[Any], start: Ints, lengths: Ints) -> Ints:
    """Return how many frames each stack has in common with the one before it."""
    if not len(start):
        return lengths
    before = np.append(0, lengths[:-1])
    back = np.arange(len(frames), dtype=_Small) - np.repeat(before.astype(_Small), lengths)
    other = np.append(np.flatnonzero(frames[back] != frames), len(frames))
    common: Ints = np.minimum(other[np.searchsorted(other, start)] - start, np.minimum(lengths, before))
    return common


def _by_depth(depth: Ints) -> Ints:
    """Sort nodes by depth, then by number; small numbers are sorted in one pass."""
    if (depth[1:] >= depth[:-1]).all():
        return np.arange(len(depth))
    small = len(depth) == 0 or int(depth.max()) < 1 << 16
    return np.argsort(depth.astype(np.uint16) if small else depth, kind="stable")


def merged(forests: Sequence[Forest]) -> tuple[Forest, list[Ints]]:
    """Merge trees, and return for each the merged node of each of its nodes: equal frames beneath equal parents are
    one. Nodes are in breadth-first order, siblings adjacent and ordered by frame. O(n log n); a tree that is already so
    is returned unchanged."""
    if len(forests) == 1 and _in_order(forests[0]):
        return forests[0], [np.arange(len(forests[0]))]
    levels = [forest.levels() for forest in forests]
    node_of = [np.empty(len(forest), np.int64) for forest in forests]
    bits = max((int(forest.frame.max(initial=0)) for forest in forests), default=0).bit_length()
    parents, frames, depths = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    count = 0
    for depth in range(max(map(len, levels), default=0)):
        here = [one[depth] if depth < len(one) else np.empty(0, np.int64) for one in levels]
        keys: list[Ints] = []
        for forest, nodes, level in zip(forests, node_of, here, strict=True):
            up = nodes[forest.parent[level]] if depth else np.full(len(level), NO_PARENT)
            keys.append((up + 1 << bits) + forest.frame[level])
        unique, place = _unique(np.concatenate(keys))
        edges = np.cumsum([0, *map(len, here)])
        for nodes, level, (start, end) in zip(node_of, here, pairwise(edges), strict=True):
            nodes[level] = count + place[start:end]
        parents.append((unique >> bits) - 1)
        frames.append(unique & (1 << bits) - 1)
        depths.append(np.full(len(unique), depth, np.int64))
        count += len(unique)
    return Forest(np.concatenate(parents), np.concatenate(frames), np.concatenate(depths)), node_of


def _in_order(forest: Forest) -> bool:
    """Return whether it has the form that `merged` produces."""
    up, frame = forest.parent, forest.frame
    return bool(((up[1:] > up[:-1]) | ((up[1:] == up[:-1]) & (frame[1:] > frame[:-1]))).all())


def _unique(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct keys (not negative) in order, and the index there of each. If a key and its index fit into
    one number, that is sorted, which is several times as fast as an argsort."""
    bits = len(keys).bit_length()
    if int(keys.max(initial=0)).bit_length() + bits > 63:
        unique, place = np.unique(keys, return_inverse=True)
        return unique, place
    packed = np.sort((keys << bits) | np.arange(len(keys)))
    ordered = packed >> bits
    first = np.diff(ordered, prepend=-1) > 0
    place = np.empty(len(keys), np.int64)
    place[packed & (1 << bits) - 1] = np.cumsum(first) - 1
    return ordered[first], place
