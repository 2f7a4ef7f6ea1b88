"""Find functions with another name in the later profile before the comparison: otherwise they and their callees would
seem to have vanished and appeared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from whystall.tools.profiles.flamegraph_diff.frame_names import comparable, renamed
from whystall.tools.stacks.alignment import Aligned, align, renaming
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import NO_NODE, CallTree, Part, call_tree

_PASSES = 6
_SAME_CALLEES = 0.5
"""Least common share of their callees for two functions to be the same."""
_SAME_WEIGHT = 1.25
"""Largest ratio of the shares for two functions without callees to be the same."""


def laid_over(
    before: Part, after: Part, min_share: float
) -> tuple[Part, Part, CallTree, list[tuple[str, str]], list[Aligned]]:
    """Return both parts with comparable names, their tree (side 0: before), (old, new) labels of renamed functions, and
    names that were aligned by a rule.

    `min_share`: smaller functions are not searched for.
    """
    one, other, known = aligned(comparable(before.profile), comparable(after.profile))
    before, after = replace(before, profile=one), replace(after, profile=other)
    tree = call_tree(before, after, lines=False)
    found: list[tuple[str, str]] = []
    for _ in range(_PASSES):
        pairs = _pairs(tree, min_share)
        if not pairs:
            break
        rows = tree.frames
        new = {tree.labels[old]: rows.row(now, named=True) for old, now in pairs}
        found += [(tree.labels[old], tree.labels[now]) for old, now in pairs]
        before = replace(before, profile=renamed(before.profile, new))
        tree = call_tree(before, after, lines=False)
    return before, after, tree, found, known


def aligned(before: StackProfile, after: StackProfile) -> tuple[StackProfile, StackProfile, list[Aligned]]:
    """Return both profiles with aligned names, and what was aligned."""
    found = align(*(set(profile.frames["name"].to_list()) for profile in (before, after)))
    new = renaming(found)
    one, other = (
        replace(side, tables={**side.tables, "frames": side.frames.with_columns(pl.col("name").replace(new))})
        for side in (before, after)
    )
    return one, other, found


def _pairs(tree: CallTree, min_share: float) -> list[tuple[int, int]]:
    """Return (old, new) frames of one profile each with the same caller and similar callees and weights."""
    shares = tree.frame_total / np.maximum(tree.sums, np.finfo(float).tiny)[:, None]
    gone = np.nonzero((shares[0] >= min_share) & (shares[1] == 0))[0]
    come = np.nonzero((shares[1] >= min_share) & (shares[0] == 0))[0]
    if not len(gone) or not len(come):
        return []
    old = {int(frame): _neighbours(tree, int(frame), 0) for frame in gone}
    new = {int(frame): _neighbours(tree, int(frame), 1) for frame in come}
    likely = [
        (alike, one, other)
        for one, (above, calls) in old.items()
        for other, (above_other, calls_other) in new.items()
        if above == above_other
        and (alike := _alike(calls, calls_other, float(shares[0][one]), float(shares[1][other]))) > 0
    ]
    pairs: list[tuple[int, int]] = []
    for _, one, other in sorted(likely, reverse=True):
        if all(one != first and other != second for first, second in pairs):
            pairs.append((one, other))
    return pairs


def _neighbours(tree: CallTree, frame: int, side: int) -> tuple[int, dict[int, float]]:
    """Return the heaviest caller of `frame`, and the shares of its time that `frame` spends in its callees."""
    nodes = np.nonzero(tree.frame == frame)[0]
    top = int(nodes[np.argmax(tree.total[side][nodes])])
    up = int(tree.parent[top])
    below = np.nonzero(np.isin(tree.parent, nodes))[0]
    whole = float(tree.total[side][nodes].sum())
    calls: dict[int, float] = {}
    for node in below:
        callee = int(tree.frame[node])
        calls[callee] = calls.get(callee, 0.0) + float(tree.total[side][node]) / whole
    return (int(tree.frame[up]) if up != NO_NODE else -1), calls


def _alike(one: dict[int, float], other: dict[int, float], share: float, share_other: float) -> float:
    """Return the similarity of two functions, 0 for none: by their callees, else by their weight."""
    called = [sum(calls.values()) for calls in (one, other)]
    if min(called) > _SAME_CALLEES:
        common = sum(min(part, other.get(callee, 0.0)) for callee, part in one.items())
        return common if common >= _SAME_CALLEES * max(called) else 0.0
    if max(called) > _SAME_CALLEES:
        return 0.0
    factor = max(share, share_other) / min(share, share_other)
    return 1 / factor if factor <= _SAME_WEIGHT else 0.0
