"""Groups of samples that may change together: a function's own code, a function with its callees, one function's calls
of another, and one place in the tree.

Nodes of the tree in the same groups form one *atom*; later steps work on a few hundred atoms, whatever the tree's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whystall.tools.stacks.tree import NO_NODE, CallTree

What = Literal["own", "total", "calls", "place"]
_Ints = NDArray[np.int64]
_MOST = 3000
"""Maximum number of groups, the heaviest: more groups of little weight only widen the bounds of all."""


@dataclass(frozen=True)
class Group:
    """`what`: ``own``: code of `frame`; ``total``: with its callees; ``calls``: calls of `frame` by `caller`;
    ``place``: `frame` and below at one node. `caller`: a frame, -1 none. `tops`: the group's topmost nodes (for ``own``
    all its nodes); all nodes below belong to it.
    """

    what: What
    frame: int
    caller: int
    tops: _Ints


@dataclass(frozen=True)
class Groups:
    """`member`: groups (rows) by atoms (columns). `atom`: of each node; -1 without samples. `function`: the frame whose
    own code an atom is, if that is a group; else -1.
    """

    groups: tuple[Group, ...]
    member: NDArray[np.bool_]
    atom: _Ints
    function: _Ints

    def nodes(self, tree: CallTree, group: Group) -> NDArray[np.bool_]:
        """Mark the nodes of `tree` in `group`."""
        if group.what == "own":
            return np.asarray(tree.frame == group.frame)
        place, end = tree.preorder
        change = np.zeros(len(tree) + 1, np.int64)
        np.add.at(change, place[group.tops], 1)
        np.add.at(change, end[group.tops], -1)
        return np.asarray(np.cumsum(change)[place] > 0)


def groups_of(tree: CallTree, min_share: float) -> Groups:
    """Return the distinct groups with at least `min_share` of the weight on one of the two sides."""
    sums = np.maximum(tree.sums, np.finfo(float).tiny)[:, None]
    place, end = tree.preorder
    order = np.argsort(place)
    seen = np.asarray((tree.own > 0).any(axis=0))
    mark = np.random.default_rng(1).integers(1, 1 << 63, len(tree), dtype=np.uint64)
    mark[~seen] = 0
    running = np.concatenate([[np.uint64(0)], np.cumsum(mark[order], dtype=np.uint64)])
    known: set[int] = set()
    kept: list[tuple[float, Group]] = []
    for group, share in _all(tree, sums, place, end, min_share):
        if group.what == "own":
            sign = int(mark[group.tops].sum(dtype=np.uint64))
        else:
            sign = int((running[end[group.tops]] - running[place[group.tops]]).sum(dtype=np.uint64))
        if sign not in known:  # of groups with the same samples the simplest comes first
            known.add(sign)
            kept.append((share, group))
    heaviest = sorted(range(len(kept)), key=lambda at: -kept[at][0])[:_MOST]
    groups = tuple(kept[at][1] for at in sorted(heaviest))
    atom, first = _atoms(tree, groups, seen)
    member = np.zeros((len(groups), len(first)), bool)
    function = np.full(len(first), -1, np.int64)
    for row, group in enumerate(groups):
        member[row] = _inside(tree, group, first, place, end)
        if group.what == "own":
            function[member[row]] = group.frame
    return Groups(groups, member, atom, function)


def _all(
    tree: CallTree, sums: NDArray[Any], place: _Ints, end: _Ints, min_share: float
) -> Iterator[tuple[Group, float]]:
    """Yield every group that is heavy enough, simpler ones first."""

    def heavy(weights: NDArray[Any]) -> NDArray[Any]:
        return (weights / sums).max(axis=0) if weights.size else np.zeros(0)

    shares = heavy(tree.frame_own)
    by_frame = _by(tree.frame)
    for frame in np.nonzero(shares >= min_share)[0]:
        yield Group("own", int(frame), -1, by_frame(int(frame))), float(shares[frame])
    shares = heavy(tree.frame_total)
    outermost = tree.outermost
    for frame in np.nonzero(shares >= min_share)[0]:
        tops = by_frame(int(frame))
        yield Group("total", int(frame), -1, tops[outermost[tops]]), float(shares[frame])
    yield from _calls(tree, heavy, place, end, min_share)
    shares = heavy(tree.total)
    for node in np.nonzero(shares >= min_share)[0]:
        up = int(tree.parent[node])
        caller = int(tree.frame[up]) if up != NO_NODE else -1
        yield Group("place", int(tree.frame[node]), caller, np.array([node], np.int64)), float(shares[node])


def _calls(tree: CallTree, heavy: Any, place: _Ints, end: _Ints, min_share: float) -> Iterator[tuple[Group, float]]:
    inner = np.nonzero(tree.parent != NO_NODE)[0]
    if not len(inner):
        return
    height = tree.frames.height
    keys, edge = np.unique(tree.frame[tree.parent[inner]] * height + tree.frame[inner], return_inverse=True)
    top = _topmost(edge, place[inner], end[inner], len(tree))
    shares = heavy(np.array([np.bincount(edge, np.where(top, side[inner], 0.0), len(keys)) for side in tree.total]))
    of = _by(edge)
    for key in np.nonzero(shares >= min_share)[0]:
        rows = of(int(key))
        tops = inner[rows[top[rows]]]
        yield Group("calls", int(keys[key] % height), int(keys[key] // height), tops), float(shares[key])


def _topmost(key: _Ints, place: _Ints, end: _Ints, size: int) -> NDArray[np.bool_]:
    """Mark the rows without a row of the same key above."""
    order = np.lexsort((place, key))
    base = key[order] * (size + 1)
    furthest = np.maximum.accumulate(end[order] + base)
    found = np.ones(len(key), bool)
    found[order[1:]] = ~((base[1:] == base[:-1]) & (furthest[:-1] > place[order[1:]] + base[1:]))
    return found


def _by(key: _Ints) -> Any:
    """Return a function that finds the rows where `key` has a given value."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]

    def rows(value: int) -> _Ints:
        start, stop = np.searchsorted(ordered, [value, value + 1])
        return order[start:stop].astype(np.int64)

    return rows


def _atoms(tree: CallTree, groups: tuple[Group, ...], seen: NDArray[np.bool_]) -> tuple[_Ints, _Ints]:
    """Return the atom of each node, and a node of each atom. A set of groups is identified by a sum of random numbers
    modulo 2^64; two sets collide with a probability of 1 in 10^19."""
    place, end = tree.preorder
    marks = np.random.default_rng(2).integers(1, 1 << 63, len(groups), dtype=np.uint64)
    own = np.zeros(max(tree.frames.height, 1), np.uint64)
    change = np.zeros(len(tree) + 1, np.uint64)
    for mark, group in zip(marks, groups, strict=True):
        if group.what == "own":
            own[group.frame] += mark
        else:
            np.add.at(change, place[group.tops], mark)
            np.subtract.at(change, end[group.tops], mark)
    sign = own[tree.frame] + np.cumsum(change, dtype=np.uint64)[place]
    here = np.nonzero(seen)[0]
    _, first, number = np.unique(sign[here], return_index=True, return_inverse=True)
    atom = np.full(len(tree), -1, np.int64)
    atom[here] = number
    return atom, here[first]


def _inside(tree: CallTree, group: Group, nodes: _Ints, place: _Ints, end: _Ints) -> NDArray[np.bool_]:
    if group.what == "own":
        return np.asarray(tree.frame[nodes] == group.frame)
    starts = place[group.tops]
    order = np.argsort(starts)
    starts, ends = starts[order], end[group.tops][order]
    at = np.searchsorted(starts, place[nodes], "right") - 1
    return np.asarray((at >= 0) & (place[nodes] < ends[at]))
