"""The call tree of one profile, or of several merged: the weights of nodes and frames.

Nodes are in breadth-first order, so a parent comes before its children; the children of a node are adjacent, ordered by
label. All is numpy: a tree of n nodes made from m samples costs O(m log m + n log n) and a pass per level of depth, and
about 100 bytes a node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.stacks.forest import NO_PARENT, Forest, Ints, merged
from whystall.tools.stacks.model import NO_STACK, NO_TIME, StackProfile

NO_NODE = NO_PARENT
Roots = Literal["none", "comm", "process", "thread"]
_NONE = "[no stack]"
_UNKNOWN = "[unknown thread]"
_LABELS = pl.Schema({"label": pl.String, "name": pl.String, "file": pl.String, "line": pl.Int32, "kind": pl.String})
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """The part of a profile that goes into a tree, as one side of it.

    `event`: row of its events (`whystall.tools.stacks.events.choose_event`). `span_ns`: only [start, end); a sample
    with a duration counts by its share inside, one without an instant not at all. `outside`: all but that span.
    `threads`: only these rows of its threads.
    """

    profile: StackProfile
    event: int = 0
    span_ns: tuple[int, int] | None = None
    outside: bool = False
    threads: Collection[int] | None = None


@dataclass(frozen=True)
class CallTree:
    """A call tree. Arrays `parent` (`NO_NODE`: outermost), `depth` (outermost 0) and `frame` (row of `frames`) have an
    entry per node; `own` and `total` a row per side, in the sides' units: the weight at the node itself, and including
    all below it.

    `frames`: label, name, file, line, kind; one per label, ordered by it. `sums`: the weight of each side. `cut`:
    number of nodes left out by `pruned`; their weight is still in the totals above them.
    """

    parent: Ints
    depth: Ints
    frame: Ints
    own: _Floats
    total: _Floats
    frames: pl.DataFrame
    sums: _Floats
    cut: int = 0

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def sides(self) -> int:
        """Number of profiles in it."""
        return len(self.sums)

    @cached_property
    def labels(self) -> list[str]:
        """The label of each frame, by its row."""
        return self.frames["label"].to_list()

    def label(self, node: int) -> str:
        """Return the label of `node`: ``save (train.py:212)`` in Python, else its name."""
        return self.labels[int(self.frame[node])]

    def path(self, node: int) -> list[int]:
        """Return the nodes from the outermost to `node`."""
        found = []
        while node != NO_NODE:
            found.append(int(node))
            node = int(self.parent[node])
        return found[::-1]

    @cached_property
    def levels(self) -> list[slice]:
        """The nodes of each depth, outermost first."""
        edges = np.searchsorted(self.depth, np.arange(self.depth[-1] + 2)) if len(self) else np.zeros(1, np.int64)
        return [slice(int(start), int(end)) for start, end in pairwise(edges)]

    @cached_property
    def preorder(self) -> tuple[Ints, Ints]:
        """(position, end) of each node in depth-first order, siblings by label: the nodes below `node` are at the
        positions between position[node] and end[node], both excluded."""
        size = np.ones(len(self), np.int64)
        for level in self.levels[:0:-1]:
            np.add.at(size, self.parent[level], size[level])
        place = np.zeros(len(self), np.int64)
        for depth, level in enumerate(self.levels):
            before = np.cumsum(size[level]) - size[level]
            if not depth:
                place[level] = before
                continue
            parents = self.parent[level]
            first = np.searchsorted(parents, parents)  # siblings are neighbours, and parents ascend
            place[level] = place[parents] + 1 + before - before[first]
        return place, place + size

    @cached_property
    def outermost(self) -> NDArray[np.bool_]:
        """Whether no node above has the same frame: in a recursion only the outermost counts for its frame."""
        place, end = self.preorder
        order = np.lexsort((place, self.frame))
        frame, place, end = self.frame[order], place[order], end[order]
        furthest = np.maximum.accumulate(end + frame * (len(self) + 1)) if len(self) else end
        inner = np.zeros(len(self), bool)
        inner[1:] = (frame[1:] == frame[:-1]) & (furthest[:-1] - frame[1:] * (len(self) + 1) > place[1:])
        found = np.empty(len(self), bool)
        found[order] = ~inner
        return found

    @cached_property
    def frame_own(self) -> _Floats:
        """Weight at each frame itself, a row per side."""
        return self._by_frame(self.own)

    @cached_property
    def frame_total(self) -> _Floats:
        """Weight at each frame and below it, a row per side; once where it calls itself."""
        return self._by_frame(np.where(self.outermost, self.total, 0.0))

    def pruned(self, min_share: float) -> CallTree:
        """Return the tree without nodes that have less than `min_share` of the sum on every side."""
        floor = self.sums[:, None] * min_share
        keep = ((self.total >= floor) & (self.total > 0)).any(axis=0)
        if keep.all():
            return self
        number = np.cumsum(keep) - 1
        parent = self.parent[keep]
        return CallTree(
            parent=np.where(parent == NO_NODE, NO_NODE, number[parent]),
            depth=self.depth[keep],
            frame=self.frame[keep],
            own=self.own[:, keep],
            total=self.total[:, keep],
            frames=self.frames,
            sums=self.sums,
            cut=self.cut + int((~keep).sum()),
        )

    def _by_frame(self, weights: _Floats) -> _Floats:
        height = self.frames.height
        return np.array([np.bincount(self.frame, row, height)[:height] for row in weights]).reshape(-1, height)


def call_tree(*parts: Part, roots: Roots = "none", lines: bool = True) -> CallTree:
    """Return the merged tree of all `parts`, a side each.

    Frames are equal if their labels are: two runs of a program match wherever its files are. `lines`: Python frames are
    distinguished by line; else by function. `roots`: a frame of kind ``thread`` beneath everything, for each comm,
    process (``python3 (123)``) or thread. A sample without a stack counts at a frame ``[no stack]``.
    """
    sides = [_Side.of(part, roots, lines) for part in parts]
    frames, numbers = _one_set([side.frames for side in sides])
    for side, number in zip(sides, numbers, strict=True):
        side.renumber(number)
    return _merged(sides, frames)


def labels_of(frames: pl.DataFrame, *, lines: bool = True) -> pl.Series:
    """Return the label of each row of a table of frames."""
    file = pl.col("file").str.extract(r"((?:[^/\\]+[/\\]__init__\.py)|[^/\\]*)$").fill_null("")
    at = pl.when((pl.col("line") > 0) & pl.lit(lines)).then(file + ":" + pl.col("line").cast(pl.String)).otherwise(file)
    known = (pl.col("kind") == "python") & (pl.col("file") != "")
    named = pl.when(known).then(pl.col("name") + " (" + at + ")").otherwise(pl.col("name"))
    return frames.select(named.alias("label"))["label"]


@dataclass
class _Side:
    """One part: the tree of its stacks with the roots, and their weights. `level`: the stacks of each depth."""

    frames: pl.DataFrame
    parent: Ints
    frame: Ints
    weight: _Floats

    @staticmethod
    def of(part: Part, roots: Roots, lines: bool) -> _Side:
        samples = _chosen(part)
        profile = part.profile
        parent = profile.stacks["parent"].to_numpy().astype(np.int64)
        frame = profile.stacks["frame"].to_numpy().astype(np.int64)
        frames = profile.frames.with_columns(labels_of(profile.frames, lines=lines)).select(_LABELS.names())
        stack = samples["stack"].to_numpy().astype(np.int64)
        weight = samples["weight"].to_numpy()
        if (stack == NO_STACK).any():
            stack = np.where(stack == NO_STACK, len(parent), stack)
            parent, frame = np.append(parent, NO_STACK), np.append(frame, frames.height)
            frames = pl.concat([frames, _frame_rows([_NONE], "other")])
        if roots == "none":
            side = _Side(frames, parent, frame, np.bincount(stack, weight, len(parent)).astype(np.float64))
        else:
            names, root = _rooted(profile, samples["thread"].to_numpy(), roots)
            rows = pl.concat([frames, _frame_rows(names, "thread")])
            side = _Side(rows, *_under_roots(parent, frame, frames.height, stack, weight, root, len(names)))
        return side.weighing()

    def weighing(self) -> _Side:
        """Drop stacks without any sample in or below them."""
        sampled = self.weight > 0
        up = self.parent
        innermost = np.ones(len(up), bool)
        innermost[up[up >= 0]] = False
        if sampled[innermost].all():
            return self
        for level in Forest.of(up, self.frame).levels()[:0:-1]:
            sampled[up[level[sampled[level]]]] = True
        number = np.cumsum(sampled) - 1
        parent = up[sampled]
        parent = np.where(parent == NO_NODE, NO_NODE, number[parent])
        return _Side(self.frames, parent, self.frame[sampled], self.weight[sampled])

    def renumber(self, number: Ints) -> None:
        """Replace frames by their rows in the common table."""
        self.frame = number[self.frame]


def _chosen(part: Part) -> pl.DataFrame:
    samples = part.profile.samples.filter(pl.col("event") == part.event)
    if part.threads is not None:
        samples = samples.filter(pl.col("thread").is_in(list(part.threads)))
    if part.span_ns is None:
        return samples
    start, end = part.span_ns
    at, length = pl.col("at_ns"), pl.col("span_ns")
    inside = (pl.min_horizontal(at + length, pl.lit(end)) - pl.max_horizontal(at, pl.lit(start))).clip(lower_bound=0)
    share = pl.when(length > 0).then(inside / length).otherwise(((at >= start) & (at < end)).cast(pl.Float64))
    share = 1.0 - share if part.outside else share
    return samples.filter(at != NO_TIME).with_columns(pl.col("weight") * share)


def _rooted(profile: StackProfile, thread: NDArray[Any], roots: Roots) -> tuple[list[str], Ints]:
    used, at = np.unique(thread, return_inverse=True)
    known_as = {number: row for number, *row in profile.threads.iter_rows()}
    main = {pid: comm for pid, tid, comm in known_as.values() if pid == tid >= 0}
    names: dict[str, int] = {}
    root_of = []
    for number in used.tolist():
        pid, tid, comm = known_as.get(number, (-1, -1, ""))
        known, label = (tid, comm) if roots == "thread" else (pid, main.get(pid, comm))
        name = label or _UNKNOWN if roots == "comm" or known < 0 else f"{label} ({known})".strip()
        root_of.append(names.setdefault(name, len(names)))
    return list(names), np.array(root_of, np.int64)[at]


def _under_roots(
    parent: Ints, frame: Ints, first: int, stack: Ints, weight: _Floats, root: Ints, roots: int
) -> tuple[Ints, Ints, _Floats]:
    """Return (parent, frame, weight) of the stacks, each beneath its roots; root r has the frame first + r."""
    count = len(parent)
    keys, at = np.unique(root * count + stack, return_inverse=True)
    summed = np.bincount(at, weight, len(keys))
    depths = Forest.of(parent, frame).depth[keys % count] if count else keys
    levels: list[Ints] = []
    below = np.empty(0, np.int64)
    for depth in range(int(depths.max(initial=-1)), -1, -1):  # innermost first: a parent is needed because of a child
        here = np.union1d(keys[depths == depth], below)
        levels.append(here)
        below = np.unique((here // count) * count + parent[here % count]) if depth else below
    levels.reverse()
    starts = np.cumsum([roots, *(len(level) for level in levels)])
    ups = [np.full(roots, NO_NODE, np.int64)]
    weights = [np.zeros(roots)]
    for depth, here in enumerate(levels):
        above = (here // count) * count + parent[here % count]
        ups.append(starts[depth - 1] + np.searchsorted(levels[depth - 1], above) if depth else here // count)
        place = np.searchsorted(keys, here).clip(max=len(keys) - 1)
        weights.append(np.where(keys[place] == here, summed[place], 0.0))
    shown = [np.arange(first, first + roots), *(frame[level % count] for level in levels)]
    return np.concatenate(ups), np.concatenate(shown), np.concatenate(weights)


def _one_set(tables: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, list[Ints]]:
    """Return all frames once, ordered by label, and for each table the rows of its frames there."""
    rows = pl.concat([*tables, pl.DataFrame(schema=_LABELS)])
    known_kind = pl.col("kind").sort_by(pl.col("kind") == "other", maintain_order=True).first()
    thread = (pl.col("kind") == "thread").alias("thread")  # a thread with the name of a function is not that function
    frames = (
        rows.group_by("label", thread, maintain_order=True)
        .agg(pl.col("name", "file", "line").first(), known_kind)
        .sort("label", "thread")
    )
    keys = ["label", "thread"]
    place = frames.select(*keys, pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    found = [table.select("label", thread).join(place, on=keys, how="left", maintain_order="left") for table in tables]
    frames = frames.select(_LABELS.names())
    return frames, [one["row"].to_numpy().astype(np.int64) for one in found]


def _frame_rows(names: Sequence[str], kind: str) -> pl.DataFrame:
    rows = pl.DataFrame({"label": list(names)}, schema={"label": pl.String})
    blank = [pl.lit("").alias("file"), pl.lit(0, pl.Int32).alias("line"), pl.lit(kind).alias("kind")]
    return rows.with_columns(pl.col("label").alias("name"), *blank).select(_LABELS.names())


def _merged(sides: Sequence[_Side], frames: pl.DataFrame) -> CallTree:
    forest, node_of = merged([Forest.of(side.parent, side.frame) for side in sides])
    count = len(forest)
    own = np.array([np.bincount(n, s.weight, count)[:count] for n, s in zip(node_of, sides, strict=True)])
    own = own.reshape(len(sides), count).astype(np.float64)
    total = own.copy()
    tree = CallTree(forest.parent, forest.depth, forest.frame, own, total, frames, own.sum(axis=1))
    for level in tree.levels[:0:-1]:
        first = int(forest.parent[level.start])  # parents ascend
        for row in total:
            sums = np.bincount(forest.parent[level] - first, row[level])
            row[first : first + len(sums)] += sums
    return tree
