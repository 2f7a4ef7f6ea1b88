"""Find the tree nodes of a profile's stacks."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.stacks.tree import CallTree, labels_of


def stack_nodes(tree: CallTree, profile: StackProfile, *, lines: bool = True) -> NDArray[np.int64]:
    """Return the node of each stack of `profile`; -1 if it is not in the tree.

    The last element, which `NO_STACK` indexes, is the node of samples without a stack. `lines`: as in `labels_of`.
    """
    height = max(tree.frames.height, 1)
    labels = labels_of(profile.frames, lines=lines).alias("label").to_frame()
    rows = tree.frames.select("label", pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    known = labels.join(rows, on="label", how="left", maintain_order="left")["row"].fill_null(-1)
    frame = known.to_numpy().astype(np.int64)[profile.stacks["frame"].to_numpy()]
    parent = profile.stacks["parent"].to_numpy().astype(np.int64)
    keys = (tree.parent + 1) * height + tree.frame  # ascending: breadth first, siblings by frame
    nodes = np.full(len(parent) + 1, -1, np.int64)
    if not len(tree):
        return nodes
    level = np.nonzero(parent == NO_STACK)[0]
    up = np.full(len(level), -1, np.int64)
    below = np.argsort(parent, kind="stable")
    starts = np.searchsorted(parent[below], np.arange(len(parent) + 1))
    while len(level):
        wanted = (up + 1) * height + frame[level]
        place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        good = (keys[place] == wanted) & (frame[level] >= 0)
        level, place = level[good], place[good]
        nodes[level] = place
        sizes = starts[level + 1] - starts[level]
        first = np.repeat(starts[level] - np.cumsum(sizes) + sizes, sizes)
        up = np.repeat(place, sizes)
        level = below[first + np.arange(len(up))]
    none = tree.frames["label"].index_of("[no stack]")
    if none is not None:
        place_of = int(np.searchsorted(keys, none))
        if place_of < len(keys) and keys[place_of] == none:
            nodes[-1] = place_of
    return nodes
