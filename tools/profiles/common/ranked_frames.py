"""Rank the frames of one event of a stack profile by their share, with 95 % confidence bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.contract.proportion import wilson
from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.contract.result import Model
from whystall.tools.profiles.common.events import only_event
from whystall.tools.profiles.common.folded import folded
from whystall.tools.profiles.common.sample_weight import one_sample
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import NO_NODE, CallTree, Part, Roots, call_tree

_CALLERS = 12
# A frame whose own share of its total is below this only calls others.
_ITSELF = 1e-3


@dataclass(frozen=True)
class Share:
    """A frame's share of the event.

    `self_pct`: the frame itself; `total_pct`: with its callees, recursion counted once. `low_pct` to `high_pct`: 95 %
    bounds of `total_pct`, and `self_low_pct` to `self_high_pct` of `self_pct`; None if weights are measured, not
    sampled. `samples`: of the total, or None likewise. `path`: labels of at most 12 nearest callers on the heaviest
    path, outermost first.
    """

    frame: int
    name: str
    code: str
    kind: str
    self_pct: float
    total_pct: float
    weight: float
    low_pct: float | None = None
    high_pct: float | None = None
    self_low_pct: float | None = None
    self_high_pct: float | None = None
    samples: int | None = None
    path: tuple[str, ...] = ()

    def fields(self, row: type[Model]) -> dict[str, Any]:
        """Return the values of the fields that the model `row` shares with this."""
        return {name: getattr(self, name) for name in row.model_fields if hasattr(self, name)}


@dataclass(frozen=True)
class Ranked:
    """One event of a profile as a tree. `one`: the weight of a sample; 0 if unknown or weights are durations."""

    profile: StackProfile
    tree: CallTree
    event: str
    unit: str
    one: float

    @property
    def samples(self) -> int | None:
        """Return the number of samples; None if unknown."""
        return round(self.weight / self.one) if self.one else None

    def folded(self, name: str) -> ArtifactContent:
        """Return the tree as the file `name` of folded stacks, in samples where their weight is known."""
        return folded(self.tree, name, *(("samples", self.one) if self.one else (self.unit, 1.0)))

    @property
    def weight(self) -> float:
        """Return the weight of the whole tree, in the unit."""
        return float(self.tree.sums[0])

    @cached_property
    def kinds(self) -> list[tuple[str, float]]:
        """Return the percentage of each kind of frame itself, largest first."""
        own, kinds = self.tree.frame_own[0], self.tree.frames["kind"]
        rows = pl.DataFrame({"kind": kinds, "own": own}).group_by("kind").agg(pl.col("own").sum())
        rows = rows.filter(pl.col("own") > 0).sort("own", "kind", descending=[True, False])
        return [(kind, self._pct(weight)) for kind, weight in rows.iter_rows()]

    def itself(self, top: int) -> list[Share]:
        """Return the frames with the largest own share."""
        own = self.tree.frame_own[0]
        return self._best(np.argsort(-own, kind="stable"), own, top)

    def with_calls(self, top: int) -> list[Share]:
        """Return the frames with the largest total; of a chain with equal totals only the innermost."""
        total = self.tree.frame_total[0]
        order = np.argsort(-total, kind="stable")
        return self._best(order[~self._passing[order]], total, top)

    def share(self, frame: int) -> Share:
        """Return the share of the frame in this row of the tree's frames."""
        tree = self.tree
        _, name, file, line, kind = tree.frames.row(frame)
        own, total = float(tree.frame_own[0, frame]), float(tree.frame_total[0, frame])
        low, high = self._bounds(total)
        self_low, self_high = self._bounds(own)
        return Share(
            frame=frame,
            name=name,
            code=_code(file, line),
            kind=kind,
            self_pct=self._pct(own),
            total_pct=self._pct(total),
            weight=total,
            low_pct=low,
            high_pct=high,
            self_low_pct=self_low,
            self_high_pct=self_high,
            samples=None if self.samples is None else round(self.samples * total / self.weight),
            path=self._around(frame),
        )

    @cached_property
    def _roots(self) -> NDArray[np.bool_]:
        """Mark the frames that are threads."""
        return (self.tree.frames["kind"] == "thread").to_numpy()

    @cached_property
    def _passing(self) -> NDArray[np.bool_]:
        """Mark the frames with almost no own weight that everywhere call the same one frame."""
        tree, total = self.tree, self.tree.total[0]
        inner = np.flatnonzero(tree.parent != NO_NODE)
        inner = inner[total[inner] >= total[tree.parent[inner]] * (1 - _ITSELF)]
        called = np.full(len(tree), -1)
        called[tree.parent[inner]] = tree.frame[inner]
        called[called == tree.frame] = -1
        nodes = np.flatnonzero(total > 0)
        least, most = (np.full(tree.frames.height, start) for start in (tree.frames.height, -1))
        np.minimum.at(least, tree.frame[nodes], called[nodes])
        np.maximum.at(most, tree.frame[nodes], called[nodes])
        found: NDArray[np.bool_] = (least == most) & (most >= 0)
        return found

    def _best(self, order: NDArray[np.int64], weights: NDArray[np.float64], top: int) -> list[Share]:
        wanted = order[~self._roots[order] & (weights[order] > 0)]
        return [self.share(int(frame)) for frame in wanted[:top]]

    def _around(self, frame: int) -> tuple[str, ...]:
        """Return the labels of the callers of the frame's heaviest node."""
        tree = self.tree
        nodes = np.flatnonzero(tree.frame == frame)
        weights = tree.own[0, nodes] if tree.own[0, nodes].any() else tree.total[0, nodes]
        path = tree.path(int(nodes[np.argmax(weights)]))[:-1]
        return tuple(tree.label(node) for node in path if not self._roots[tree.frame[node]])[-_CALLERS:]

    def _pct(self, weight: float) -> float:
        return 100 * weight / self.weight if self.weight else 0.0

    def _bounds(self, weight: float) -> tuple[float, float] | tuple[None, None]:
        if self.samples is None or not self.weight:
            return None, None
        low, high = wilson(self.samples * weight / self.weight, self.samples)
        return 100 * low, 100 * high


def ranked(profile: StackProfile, event: str = "") -> Ranked:
    """Rank `event` of `profile`; threads are grouped by command name if known. Raises what `only_event` raises."""
    one = only_event(profile, event)
    one = replace(one, tables={**one.tables, "samples": one.samples.filter(pl.col("event") == 0)})
    _, name, unit, _ = one.events.row(0)
    roots: Roots = "comm" if (one.threads["comm"] != "").any() else "none"
    weighs = one_sample(one.samples, unit, float(one.events["period"][0]))
    return Ranked(one, call_tree(Part(one), roots=roots), name, unit, weighs)


def _code(file: str, line: int) -> str:
    """Return the file name and line, ``train.py:212``, with the package of an ``__init__.py``."""
    parts = file.replace("\\", "/").split("/")
    short = "/".join(parts[-2:]) if parts[-1] == "__init__.py" else parts[-1]
    return f"{short}:{line}" if short and line > 0 else short
