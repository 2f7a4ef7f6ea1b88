"""Sums of a CPU profile by thread, by kind of code, and of a frame within one thread."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.profiles.common.ranked_frames import Ranked, Share
from whystall.tools.stacks.tree import Part, call_tree, labels_of


class ThreadShare(NamedTuple):
    """A thread's share; `cpu_pct` of one CPU, None if the length of the window is unknown."""

    pid: int
    tid: int
    comm: str
    cpu_pct: float | None
    share_pct: float
    samples: int | None
    frame: str


class KindShare(NamedTuple):
    """A kind of code. `self_pct`: samples whose innermost frame is of it; `under_pct`: with any frame of it."""

    kind: str
    self_pct: float
    under_pct: float


class CpuShares:
    """`window_ns`: the length of the window, 0 if unknown or the weights are not times."""

    def __init__(self, ranked: Ranked, window_ns: int) -> None:
        self._ranked = ranked
        self._window_ns = window_ns

    def of_a_thread(self, label: str) -> float | None:
        """Return the frame's percentage of the window in the thread that spent most time in it."""
        if not self._window_ns:
            return None
        return min(100.0, 100 * self._most_of_a_thread.get(label, 0.0) / self._window_ns)

    def lines(self, top: int) -> list[Share]:
        """Return the Python lines with the largest total, including those that only call others."""
        tree = self._ranked.tree
        total = tree.frame_total[0]
        python = np.flatnonzero((tree.frames["kind"] == "python").to_numpy() & (total > 0))
        return [self._ranked.share(int(row)) for row in python[np.argsort(-total[python], kind="stable")][:top]]

    @property
    def unnamed(self) -> float:
        """Return the share of samples in native code without a symbol."""
        frames = self._ranked.tree.frames
        rows = (frames["kind"] == "native") & frames["name"].str.starts_with("[")
        return float(self._ranked.tree.frame_own[0][rows.to_numpy()].sum()) / (self._ranked.weight or 1.0)

    def threads(self) -> list[ThreadShare]:
        """Return the threads by CPU time, largest first."""
        profile, weight, samples = self._ranked.profile, self._ranked.weight or 1.0, self._ranked.samples
        labels = profile.frames.select("frame", labels_of(profile.frames))
        at = profile.stacks.select("stack", "frame").join(labels, on="frame", how="left").select("stack", "label")
        parts = profile.samples.join(at, on="stack", how="left").group_by("thread", "label").agg(pl.col("weight").sum())
        found = (
            parts.sort("weight", "label", descending=[True, False])
            .group_by("thread", maintain_order=True)
            .agg(pl.col("label").first(), pl.col("weight").sum())
            .join(profile.threads, on="thread", how="left")
            .with_columns(pl.col("pid", "tid").fill_null(-1), pl.col("comm", "label").fill_null(""))
            .sort("weight", "tid", descending=[True, False])
        )
        return [
            ThreadShare(
                pid=row["pid"],
                tid=row["tid"],
                comm=row["comm"],
                cpu_pct=100 * row["weight"] / self._window_ns if self._window_ns else None,
                share_pct=100 * row["weight"] / weight,
                samples=None if samples is None else round(row["weight"] / weight * samples),
                frame=row["label"],
            )
            for row in found.iter_rows(named=True)
        ]

    def kinds(self) -> list[KindShare]:
        """Return the kinds of code by their own share, largest first."""
        tree, weight = self._ranked.tree, self._ranked.weight or 1.0
        kind_of = tree.frames["kind"].to_numpy()[tree.frame]
        found = []
        for kind in sorted({str(kind) for kind in kind_of} - {"thread"}):
            here: NDArray[Any] = kind_of == kind
            under = here.copy()
            for level in tree.levels[1:]:
                under[level] |= under[tree.parent[level]]
            own, with_calls = float(tree.own[0][here].sum()), float(tree.own[0][under].sum())
            found.append(KindShare(kind, 100 * own / weight, 100 * with_calls / weight))
        return sorted(found, key=lambda kind: -kind.self_pct)

    @cached_property
    def _most_of_a_thread(self) -> dict[str, float]:
        """Return, per frame label, the largest total of the frame in a single thread."""
        tree = call_tree(Part(self._ranked.profile), roots="thread")
        root = np.arange(len(tree))
        for level in tree.levels[1:]:
            root[level] = root[tree.parent[level]]
        first = tree.outermost
        keys, at = np.unique(tree.frame[first] * len(tree) + root[first], return_inverse=True)
        sums = np.bincount(at, tree.total[0][first], len(keys))
        most = np.zeros(tree.frames.height)
        np.maximum.at(most, keys // len(tree), sums)
        rows = zip(tree.labels, tree.frames["kind"], most.tolist(), strict=True)
        return {label: weight for label, kind, weight in rows if kind != "thread"}
