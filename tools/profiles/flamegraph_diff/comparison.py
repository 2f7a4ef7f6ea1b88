"""Explain the difference of two profiles by the few functions whose change causes all others.

Every sample is of the earlier or of the later profile; without a change their ratio is the same everywhere. An
explanation is a group of samples (`groups`: a function's own code, a function with its callees, one function's calls of
another) with another ratio. The best explanation is taken first and its samples are removed; the search continues in
the rest. This reports a change where it arises: in callers it is diluted, and a function explains more than its callees
if all of it grew alike. Among nearly equal explanations the simplest is preferred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from whystall.tools.profiles.flamegraph_diff.bursts import Bursts
from whystall.tools.profiles.flamegraph_diff.groups import Group, Groups, groups_of
from whystall.tools.profiles.flamegraph_diff.noise import LEVEL, Apart, apart, by_chance, critical, furthest, pooled
from whystall.tools.profiles.flamegraph_diff.renames import laid_over
from whystall.tools.profiles.flamegraph_diff.scale import Scale, common_scale
from whystall.tools.profiles.flamegraph_diff.side import Floats, Side, side_of, with_bursts
from whystall.tools.stacks.alignment import Aligned
from whystall.tools.stacks.tree import CallTree, Part

Role = Literal["proven", "possible", "effect"]
Verdict = Literal["differs", "alike", "cannot_tell"]
MIN_RATIO = 1.1
"""Least reported change, relative to the rest: two runs of one program on one machine differ by several percent through
memory layout, neighbours and clock frequency, which the spread within a run does not show (Mytkowicz et al. 2009; own
trials in benchmarks/RESULTS.md)."""
TOO_COARSE_PCT = 25.0
"""If a change of one function by this many points could remain undetected, two profiles are not called alike. 100
independent samples of two functions detect this much."""
_ENOUGH = 128
"""Independent samples of two functions that detect a change of `TOO_COARSE_PCT`, at four standard errors."""
_NEAR = 0.95
_NATS = 1.0
_CANDIDATE = 0.8
_OVERLAP = 0.8
_POSSIBLE = 0.2
"""Probability that chance makes a row of this role."""
_EFFECTS = 5
_WORSE = 4.0
"""Functions that take longer come first, unless another's decrease is this many times as large."""
_MIN_GROUP = 0.7


@dataclass(frozen=True)
class Change:
    """One explaining group; its weights exclude what earlier rows explain.

    `change`: of the share, in points, within `error` points for all groups at once. `cost`: points of the earlier
    profile, relative to what did not change. `relative`: ratio relative to the rest; None without a common scale or if
    the group was not there before.
    """

    group: Group
    role: Role
    atoms: NDArray[np.bool_]
    before: float
    after: float
    change: float
    error: float
    cost: float
    relative: float | None
    p_value: float | None


@dataclass(frozen=True)
class Difference:
    """`tree`: side 0 before, 1 after; `proven`: marks its nodes in a proven change or above one. `bound`: smallest
    detectable change of a function's own code, in points of share; None if unknown. `bursts`: of samples without times.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    rows: tuple[Change, ...]
    tree: CallTree
    proven: NDArray[np.bool_]
    before: Side
    after: Side
    scale: Scale
    bound: float | None
    bursts: Bursts
    renamed: tuple[tuple[str, str], ...] = ()
    aligned: tuple[Aligned, ...] = ()


def compare(before: Part, after: Part, *, min_pct: float = 1.0, top: int = 10) -> Difference:
    """Compare two parts of profiles, which must have samples and the same unit.

    `min_pct`: smaller changes of share, in points, are ignored; `top`: maximum number of rows.
    """
    before, after, tree, names, known = laid_over(before, after, min_pct / 100)
    groups = groups_of(tree, _MIN_GROUP * min_pct / 100)
    found = _Comparison(before, after, tree, groups, min_pct).explained(top, names)
    return replace(found, aligned=tuple(known))


@dataclass
class _Comparison:
    of_before: Part
    of_after: Part
    tree: CallTree
    groups: Groups
    min_pct: float
    alive: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.member = self.groups.member.astype(np.float64)
        self.is_own = np.array([group.what == "own" for group in self.groups.groups], bool)
        own = self.member[self.is_own]
        atom = self.groups.atom
        sides = [side_of(part, self.tree, row, atom, own) for row, part in enumerate((self.of_before, self.of_after))]
        *sides, self.bursts = with_bursts(self.tree, *sides)
        self.before, self.after = pooled(*sides)
        self.whole = np.ones(self.member.shape[1])
        self.scale = common_scale(self.before, self.after, self.groups.function, [self.before.sum / self.after.sum])
        self.core = self.scale.core.astype(np.float64)
        self.alive = np.ones(self.member.shape[1])
        first = apart(self.before, self.after, self.member, self.core)
        self.draws = furthest(self.before, self.after, self.member, self.core, first.free)
        self.limit = critical(self.draws, LEVEL)
        self.likely = critical(self.draws, _POSSIBLE)
        self.known = self.before.known and self.after.known
        share = (self.before.weights / self.before.sum + self.after.weights / self.after.sum) / 2
        owned = apart(self.before, self.after, own, self.whole)
        parts = own @ share
        self.count = float(2 * (parts * (1 - parts)).sum() / max((owned.error**2).sum(), 1e-12)) if len(own) else 0.0
        self.bound = float(100 * self.limit * owned.error.max()) if len(own) and self.known else None

    def explained(self, top: int, names: Sequence[tuple[str, str]]) -> Difference:
        rows: list[Change] = []
        for role in ("proven", "possible"):
            while len(rows) < top and (found := self._next(role, rows)):
                rows.append(found)
        if not rows and self._coarse():  # nothing is detectable: show what moved most
            self.likely = 0.0
            while len(rows) < top and (found := self._next("possible", rows)):
                rows.append(found)
        if not self.scale.found and any(row.role == "proven" and row.change > 0 for row in rows):
            # with shares alone, a decrease may only be the effect of another's growth
            rows = [self._as_effect(row) if row.change < 0 else row for row in rows]
        order: dict[Role, int] = {"proven": 0, "possible": 1, "effect": 2}
        rows.sort(key=lambda row: (order[row.role], -abs(row.cost) * (_WORSE if row.cost > 0 else 1.0)))
        rows += self._effects(rows)
        proven = np.zeros(len(self.tree), bool)
        for row in rows:
            if row.role == "proven":
                proven |= self.groups.nodes(self.tree, row.group)
        for level in self.tree.levels[:0:-1]:
            proven[self.tree.parent[level][proven[level]]] = True
        verdict, reasons = self._verdict(rows)
        return Difference(
            verdict=verdict,
            reasons=tuple(reasons),
            rows=tuple(rows[:top]),
            tree=self.tree,
            proven=proven,
            before=self.before,
            after=self.after,
            scale=self.scale,
            bound=self.bound,
            bursts=self.bursts,
            renamed=tuple(names),
        )

    def _verdict(self, rows: Sequence[Change]) -> tuple[Verdict, list[str]]:
        reasons = []
        changed = [row for row in rows if row.role == "proven"]
        if changed and not self.scale.found:
            reasons.append("no_common_scale")
        if self.bursts.functions:
            reasons.append("bursts_estimated")
        if not self.known:
            return "cannot_tell", ["not_samples", *reasons]
        if changed:
            return "differs", reasons
        if self._assumed() and self.likely > 0 and any(row.role == "possible" for row in rows):
            return "cannot_tell", ["few_functions"]  # beyond chance only if samples are independent, which is unknown
        if self._coarse():
            return "cannot_tell", [self._why_coarse(), *reasons]
        return "alike", reasons

    def _coarse(self) -> bool:
        """Return whether chance could hide a change of many points."""
        return self.bound is None or self.bound > max(TOO_COARSE_PCT, self.min_pct)

    def _assumed(self) -> bool:
        """Return whether the worst usual bursts are assumed, since they could not be estimated."""
        return self.bursts.factor > 1 and not self.bursts.functions

    def _why_coarse(self) -> str:
        """Return what is lacking: functions to estimate bursts from, samples, steps, or even shares within a run."""
        if self._assumed():
            return "few_functions"
        if min(self.before.samples, self.after.samples) < _ENOUGH:
            return "few_samples"
        return "few_steps" if "steps" in (self.before.how, self.after.how) else "uneven"

    def _next(self, role: Role, rows: Sequence[Change]) -> Change | None:
        """Return the group that explains most of the remaining samples."""
        if role == "proven" and not self.known:
            return None
        living = self.member * self.alive
        now = apart(self.before, self.after, living, self.core)
        fit = self._fit(role, now)
        if not fit.any():
            return None
        gain = self._gain(living)
        best = int(np.argmax(np.where(fit, gain, -1.0)))
        if gain[best] <= 0:
            return None
        chosen = self._simplest(best, gain, fit, living)
        atoms = (living[chosen] > 0) & ((self.before.weights > 0) | (self.after.weights > 0))
        found = self._change(chosen, role, living[chosen], now, atoms)
        self.alive = np.where(atoms, 0.0, self.alive)
        return found

    def _fit(self, role: Role, now: Apart) -> NDArray[np.bool_]:
        """Mark the groups whose change is large and certain enough for `role`."""
        points = 100 * now.change * self._base_share()
        bases = [float(self.core @ side.weights) for side in (self.before, self.after)]
        least = (MIN_RATIO - 1) * np.minimum(now.before / bases[0], now.after / bases[1])
        enough = (np.abs(points) >= self.min_pct) & (np.abs(now.change) > least)
        if role == "proven":
            return np.asarray(enough & (np.abs(now.change) - self.limit * now.error > least))
        return np.asarray(enough & (np.abs(now.score) > self.likely)) if self.known else np.asarray(enough)

    def _base_share(self) -> float:
        return float(self.core @ self.before.weights) / self.before.sum

    def _gain(self, living: Floats) -> Floats:
        """Return the log-likelihood gain, in nats, of each group's own ratio of earlier and later samples over the
        common one, for the effective number of independent samples."""
        early = living @ self.before.weights / self.before.sum * self.count
        late = living @ self.after.weights / self.after.sum * self.count
        both = np.maximum(early + late, 1e-300)
        common = self.scale.ratio / (1 + self.scale.ratio)
        return _part(early, both, 1 - common) + _part(late, both, common)

    def _simplest(self, best: int, gain: Floats, fit: NDArray[np.bool_], living: Floats) -> int:
        """Return the simplest group that explains nearly as much as `best` with nearly the same samples: a function
        before a pair of functions or a place, then the smallest; of those that are `fit`, if there is one. All of it
        must have changed alike."""
        weight = self.before.weights / self.before.sum + self.after.weights / self.after.sum
        sizes = living @ weight
        common = (living * living[best]) @ weight
        same = common >= _OVERLAP * np.minimum(sizes, sizes[best])
        rows = np.nonzero((gain >= _CANDIDATE * gain[best]) & same & (sizes > 0))[0]
        rows = rows[self._changed_alike(living[rows], sizes[rows], weight).all(axis=1)]
        rows = rows[fit[rows]] if fit[rows].any() else rows
        rows = rows[gain[rows] >= _NEAR * gain[rows].max() - _NATS]
        rank = {"own": 0, "total": 0, "calls": 1, "place": 2}
        return min(
            (int(row) for row in rows),
            key=lambda row: (rank[self.groups.groups[row].what], round(float(sizes[row]), 9), row),
        )

    def _changed_alike(self, living: Floats, sizes: Floats, weight: Floats) -> NDArray[np.bool_]:
        """Return for each two groups, of which the first contains the second, whether its other samples changed as
        those of the second did, rather than not; else True. A function that one caller calls more often than before,
        and others do not, has not changed itself."""
        early, late = (living * side.weights / side.sum * self.count for side in (self.before, self.after))
        common = self.scale.ratio / (1 + self.scale.ratio)
        found = np.ones((len(living), len(living)), bool)
        for row, inner in enumerate(living):
            share = float(late[row].sum() / max(early[row].sum() + late[row].sum(), 1e-300))
            share = min(max(share, 1e-9), 1 - 1e-9)
            others = early @ (inner == 0), late @ (inner == 0)
            gain = others[0] * math.log((1 - share) / (1 - common)) + others[1] * math.log(share / common)
            contains = (living * inner) @ weight >= sizes[row] * (1 - 1e-9)
            found[:, row] = ~contains | (gain >= 0)
        return found

    def _change(self, row: int, role: Role, living: Floats, now: Apart, atoms: NDArray[np.bool_]) -> Change:
        one = apart(self.before, self.after, living[None], self.whole)
        shares = [100 * float(living @ side.weights) / side.sum for side in (self.before, self.after)]
        bases = [float(self.core @ side.weights) / side.sum for side in (self.before, self.after)]
        comparable = self.scale.found and shares[0] > 0
        return Change(
            group=self.groups.groups[row],
            role=role,
            atoms=atoms,
            before=shares[0],
            after=shares[1],
            change=shares[1] - shares[0],
            error=float(100 * self.limit * one.error[0]),
            cost=float(100 * now.change[row] * self._base_share()),
            relative=(shares[1] / bases[1]) / (shares[0] / bases[0]) if comparable else None,
            p_value=by_chance(self.draws, float(now.score[row])) if self.known else None,
        )

    def _as_effect(self, row: Change) -> Change:
        return Change(**{**row.__dict__, "role": "effect"})

    def _effects(self, rows: Sequence[Change]) -> list[Change]:
        """Return functions whose share changed only because others changed."""
        if not any(row.role == "proven" for row in rows):
            return []
        now = apart(self.before, self.after, self.member, self.core)
        plain = apart(self.before, self.after, self.member, self.whole)
        taken = np.logical_or.reduce([row.atoms for row in rows])
        free = ~(self.groups.member & taken).any(axis=1) & self.is_own
        moved = free & (100 * np.abs(plain.change) >= self.min_pct) & (np.abs(now.score) <= self.limit)
        order = sorted(np.nonzero(moved)[0], key=lambda row: -abs(plain.change[row]))[:_EFFECTS]
        return [self._change(int(row), "effect", self.member[row], now, self.groups.member[row]) for row in order]


def _part(some: Floats, both: Floats, common: float) -> Floats:
    share = np.maximum(some, 1e-300) / both
    return np.where(some > 0, some * (np.log(share) - math.log(common)), 0.0)
