"""What a CPU profile adds up to: shares of frames, of threads and of kinds of code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.contract.proportion import wilson
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import CallTree, Part, call_tree, labels_of

_CALLERS = 12


class ThreadShare(NamedTuple):
    """A thread's part; `cpu_pct` of one CPU, None when it is not known how long was looked."""

    pid: int
    tid: int
    comm: str
    cpu_pct: float | None
    share_pct: float
    samples: int
    frame: str


class KindShare(NamedTuple):
    """A kind of code: the innermost frame is of it, and: some frame is."""

    kind: str
    self_pct: float
    under_pct: float


@dataclass(frozen=True)
class Shares:
    """`tree` has processes as roots, `by_thread` threads. `weight`: of all samples; `samples`: how many they are."""

    tree: CallTree
    by_thread: CallTree
    weight: float
    samples: int
    counted: bool
    """Whether the weights are counts, so that bounds can be told."""
    threads: list[ThreadShare]
    kinds: list[KindShare]

    def bounded(self, weight: float) -> tuple[float, float | None, float | None]:
        """A weight as per cent of all, and the bounds in which that lies with 95 %."""
        share = float(weight) / self.weight
        if not self.counted:
            return 100 * share, None, None
        low, high = wilson(share * self.samples, self.samples)
        return 100 * share, 100 * low, 100 * high

    def count(self, weight: float) -> int:
        """How many samples a weight is."""
        return round(float(weight) / self.weight * self.samples)

    @cached_property
    def by_own(self) -> list[int]:
        """Frames by what was seen at them, the largest first; those that stand for processes left out."""
        own, total = self.tree.frame_own[0], self.tree.frame_total[0]
        real = (self.tree.frames["kind"] != "thread").to_numpy() & (total > 0)
        order = np.lexsort((-total, -own))
        return [int(number) for number in order if real[number]]

    @cached_property
    def python_by_total(self) -> list[int]:
        """Lines of Python by what was seen at them and in what they call, the largest first."""
        total = self.tree.frame_total[0]
        python = np.nonzero((self.tree.frames["kind"] == "python").to_numpy() & (total > 0))[0]
        return [int(number) for number in python[np.argsort(-total[python], kind="stable")]]

    @property
    def unnamed(self) -> float:
        """Share of samples in native code that has no name."""
        rows = (self.tree.frames["kind"] == "native") & self.tree.frames["name"].str.starts_with("[")
        return float(self.tree.frame_own[0][rows.to_numpy()].sum()) / self.weight

    def callers(self, frame: int) -> list[str]:
        """Labels of the frames around `frame` where it weighs most, the outermost first, at most 12 of the nearest."""
        at = int(self._heaviest[frame])
        names = [self.tree.label(node) for node in self.tree.path(at)[1:-1]]  # less the process
        return names[-_CALLERS:]

    def most_of_a_thread(self, frame: int) -> float:
        """What of its weight lies in the thread that has most of it."""
        return float(self._most[self._rows_by_thread.get(self.tree.labels[frame], -1)])

    @cached_property
    def _heaviest(self) -> NDArray[np.int64]:
        order = np.argsort(self.tree.total[0] + self.tree.own[0], kind="stable")
        heaviest = np.zeros(self.tree.frames.height, np.int64)
        heaviest[self.tree.frame[order]] = order  # the last one written is the heaviest
        return heaviest

    @cached_property
    def _rows_by_thread(self) -> dict[str, int]:
        kinds = self.by_thread.frames["kind"]
        return {label: row for row, label in enumerate(self.by_thread.labels) if kinds[row] != "thread"}

    @cached_property
    def _most(self) -> NDArray[np.float64]:
        """By frame of `by_thread`: its largest sum over one root; the last entry, for none, is 0."""
        tree = self.by_thread
        root = np.arange(len(tree))
        for level in tree.levels[1:]:
            root[level] = root[tree.parent[level]]
        first = tree.outermost
        keys, at = np.unique(tree.frame[first] * len(tree) + root[first], return_inverse=True)
        sums = np.bincount(at, tree.total[0][first], len(keys))
        most = np.zeros(tree.frames.height + 1)
        np.maximum.at(most, keys // len(tree), sums)
        return most


def shares_of(profile: StackProfile, event: int, window_ns: int) -> Shares:
    """Shares of the samples of `event`; `window_ns`: how long was looked, 0 when that is not known."""
    unit, period = profile.events.filter(event=event).select("unit", "period").row(0)
    chosen = profile.samples.filter(event=event)
    weight = float(chosen["weight"].sum())
    counted = unit == "samples" or period > 0
    samples = round(weight / (period or 1.0)) if counted else chosen.height
    tree = call_tree(Part(profile, event), roots="process")
    looked = float(window_ns) if unit == "ns" else 0.0
    return Shares(
        tree=tree,
        by_thread=call_tree(Part(profile, event), roots="thread"),
        weight=weight or 1.0,
        samples=samples,
        counted=counted,
        threads=_threads(profile, chosen, weight, samples, looked),
        kinds=_kinds(tree, weight),
    )


def _threads(
    profile: StackProfile, chosen: pl.DataFrame, weight: float, samples: int, looked: float
) -> list[ThreadShare]:
    labels = profile.frames.select("frame", labels_of(profile.frames))
    at = profile.stacks.select("stack", "frame").join(labels, on="frame", how="left").select("stack", "label")
    parts = chosen.join(at, on="stack", how="left").group_by("thread", "label").agg(pl.col("weight").sum())
    found = (
        parts.sort("weight", "label", descending=[True, False])
        .group_by("thread", maintain_order=True)
        .agg(pl.col("label").first(), pl.col("weight").sum())
        .join(profile.threads, on="thread", how="left")
        .sort("weight", "tid", descending=[True, False])
    )
    return [
        ThreadShare(
            pid=row["pid"] if row["pid"] is not None else -1,
            tid=row["tid"] if row["tid"] is not None else -1,
            comm=row["comm"] or "",
            cpu_pct=100 * row["weight"] / looked if looked else None,
            share_pct=100 * row["weight"] / (weight or 1.0),
            samples=round(row["weight"] / (weight or 1.0) * samples),
            frame=row["label"] or "",
        )
        for row in found.iter_rows(named=True)
    ]


def _kinds(tree: CallTree, weight: float) -> list[KindShare]:
    kind_of = tree.frames["kind"].to_numpy()[tree.frame] if len(tree) else np.empty(0, object)
    found = []
    for kind in sorted({str(kind) for kind in kind_of} - {"thread"}):
        here: NDArray[Any] = kind_of == kind
        under = here.copy()
        for level in tree.levels[1:]:
            under[level] |= under[tree.parent[level]]
        own = float(tree.own[0][here].sum())
        found.append(
            KindShare(kind, 100 * own / (weight or 1.0), 100 * float(tree.own[0][under].sum()) / (weight or 1.0))
        )
    return sorted(found, key=lambda kind: -kind.self_pct)
