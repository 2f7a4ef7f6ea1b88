"""Find ranks that hold the others back in some steps only: every so many, the first ones, a stretch, or growing.

Votes and trimmed means lose what happens seldom, so here the lost time of `episodes` is weighed. Neighbouring steps are
not independent: a busy host or a stall slows a rank for several on end, and then any rank may be it. So an episode is
one event, and a rank is accused if its events are no chance:

* they begin every so many steps (`placement.period`), and no other rank would have had as many: together by Fisher's
  method. The second is a permutation of the episodes among the ranks, with the largest loss of any rank as statistic,
  so that the chance of accusing any innocent rank is bounded (Westfall and Young 1993, step-down);
* without a pattern by that permutation alone, at `_NO_PATTERN`, and if it loses `_DOMINANT` times as much as any other;
* a single episode if it is at the start of many steps, or lasts much longer than the others (`placement.at_start`,
  `placement.lasting`), at `EVENT`: one event of a healthy job can look like that;
* it takes longer with every step (`trend`), corrected for all ranks, and grows faster than any other.

Steps in which the peers were slow too are ignored: all ranks warm up, and noise grows with the step. What is no
accusation may still be a loss, of which these steps are too few to tell a fault from chance: then it is `doubtful`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl

from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.episodes import Episode, Episodes, episodes
from whystall.tools.ranks.slow_node_check.grid import Grid, known, middle
from whystall.tools.ranks.statistics import placement, probability
from whystall.tools.ranks.statistics.correlation import widened
from whystall.tools.ranks.statistics.trend import trend

Shape = Literal["start", "stretch", "since", "period", "drift", "scattered"]
"""The first steps; steps in succession; the same up to the end; every `period` steps; more with every step; others."""

EVENT = 0.0025
"""Less likely than this by chance: a single event that is an accusation."""
# The same of events without a pattern: some ranks are more restless than others.
_NO_PATTERN = 0.0001
# Fewer slow steps are chance.
_FEWEST = 3
_DOMINANT = 2.0
# Of the time of all steps: less is not worth a finding.
_LEAST = 0.005
# From these shares on a loss that is no accusation is doubtful: in all episodes, and in a single one.
_DOUBTFUL = 0.05
_DOUBTFUL_ONCE = 0.02
# Of all steps: a rank that is slow in so many is so throughout, if the votes agree.
_MANY = 0.4
# Peers that take so much longer than in other steps are slow themselves.
_SHARED = 1.5
_PERMUTATIONS = 20_000
_AT_ONCE = 1_000_000
# With so many permutations as extreme, p is known well enough (Besag and Clifford 1991).
_EXTREMES = 200
_SEED = 7
# A rank that drifts is at most so far from its peers in the beginning, of its distance at the end.
_BEGINS = 1 / 3
# Noise that stays for a while looks like drift in few steps, the more so where there are few others to compare with.
_FEWEST_OF_DRIFT = (40, 10)
# With fewer ranks one that drifts moves the median of all.
_FEW = 4


@dataclass(frozen=True)
class Intermittent:
    """A rank that is slow in `rows` (of a grid) only. `lost_ns`: all that it cost the job in them. `period`: in steps,
    0 none. `slope_ns`: by how much it takes longer with every step, 0 without drift. `measured`: by work too."""

    rank: int
    shape: Shape
    rows: tuple[int, ...]
    lost_ns: float
    p_value: float
    steps: int
    period: int = 0
    slope_ns: float = 0.0
    measured: bool = True

    @property
    def late(self) -> votes.Late:
        """The same as a vote: its slow steps of all, and the loss per slow step."""
        cost = self.lost_ns / len(self.rows)
        work = cost if self.measured else None
        return votes.Late(self.rank, len(self.rows), self.steps, self.p_value, cost, work, -1)


@dataclass(frozen=True)
class AtTimes:
    """The ranks that are slow in some steps, the costliest first, and those of whom that is `doubtful`."""

    found: list[Intermittent] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)
    episodes: Episodes | None = None


def intermittent(grid: Grid, floor_ns: float, tests: float = 1) -> AtTimes:
    """Return the ranks that hold the others back by at least `floor_ns` in some steps.

    `tests`: number of other tests made. Ranks that are slow throughout may be among them, see `seldom`.
    """
    if len(grid.ranks) < 2 or len(grid.steps) < 2 * _FEWEST or not grid.step_ns:
        return AtTimes()
    distance = dict(zip(grid.ranks, votes.excesses(grid), strict=True))
    every = episodes(grid, distance, floor_ns)
    drifting = [one for rank in grid.ranks if (one := _drift(grid, rank, every, distance, floor_ns, tests))]
    found = drifting + _with_episodes(grid, every, tests, {one.rank for one in drifting})
    found.sort(key=lambda one: (-one.lost_ns, one.rank))
    return AtTimes(found, _doubtful(grid, every, {one.rank for one in found}), every)


def _doubtful(grid: Grid, every: Episodes, accused: set[int]) -> set[int]:
    """Return who of the rest lost much time in some steps, and much more than the others."""
    rest = sorted(set(every.of) - accused, key=every.total, reverse=True)
    if not rest or (len(rest) > 1 and every.total(rest[0]) < _DOMINANT * every.total(rest[1])):
        return set()
    whole = grid.step_ns * len(grid.steps)
    single = max((one.loss_ns for one in every.of[rest[0]] if len(one.rows) >= _FEWEST), default=0.0)
    much = every.total(rest[0]) >= _DOUBTFUL * whole and len(every.rows(rest[0])) >= _FEWEST
    return {rest[0]} if much or single >= _DOUBTFUL_ONCE * whole else set()


def seldom(at_times: AtTimes, late: Sequence[votes.Late], floor_ns: float) -> set[int]:
    """Return the ranks that are slow in some steps only, though they may be in `late` (slow throughout).

    Such a rank is slow in less than `_MANY` of the steps, costs less than half the floor in all others, and did not
    just begin to be slow.
    """
    throughout = {one.rank for one in late}
    kept = set()
    for one in at_times.found:
        slow = set(one.rows)
        losses: list[float] = at_times.episodes.losses[str(one.rank)].to_list() if at_times.episodes else []
        rest = [value for row, value in enumerate(losses) if row not in slow]
        few = one.shape != "since" and len(one.rows) < _MANY * one.steps
        usual = few and 2 * probability.trimmed_mean(rest) < floor_ns
        if one.rank not in throughout or one.shape == "drift" or usual:
            kept.add(one.rank)
    return kept


# --- episodes -------------------------------------------------------------------------------------------------------


def _with_episodes(grid: Grid, every: Episodes, tests: float, apart: set[int]) -> list[Intermittent]:
    """Return the ranks whose episodes are no chance, one after the other: the others are then compared without it."""
    rest = [rank for rank in every.of if rank not in apart]
    alive = len(grid.ranks) - len(apart)
    accused: list[Intermittent] = []
    while alive > 1:
        candidates = [rank for rank in rest if len(every.rows(rank)) >= _FEWEST]
        chances = _chances(every, rest, [rank for rank in candidates if len(every.of[rank]) >= _FEWEST], alive)
        named = [
            found
            for rank in candidates
            if (found := _unlikely(grid, every, rank, [r for r in rest if r != rank], chances.get(rank, 1.0), tests))
        ]
        if not named:
            break
        first = min(named, key=lambda one: (one.p_value, one.rank))
        accused.append(first)
        rest.remove(first.rank)
        alive -= 1
    return accused


def _unlikely(
    grid: Grid, every: Episodes, rank: int, others: Sequence[int], chance: float, tests: float
) -> Intermittent | None:
    """Return `rank` if its episodes are no chance, with the pattern that is the least likely one. `chance`: of any rank
    to lose so much."""
    costs = every.losses[str(rank)]
    named = []
    for one, below in [*_single(grid, every, rank, others), *_several(grid, every, rank, others, chance)]:
        whole = float(sum(costs[row] for row in one.rows))
        p_value = probability.corrected(one.p_value, tests)
        worth_it = len(one.rows) >= _FEWEST and whole >= _LEAST * grid.step_ns * len(grid.steps)
        if p_value < below and worth_it and not _shared(grid, rank, one.rows):
            named.append(replace(one, lost_ns=whole, p_value=p_value))
    return min(named, key=lambda one: one.p_value, default=None)


def _single(grid: Grid, every: Episodes, rank: int, others: Sequence[int]) -> list[tuple[Intermittent, float]]:
    """Return what the first and the longest episode are by themselves, and below what chance they count."""
    count, own = len(grid.steps), every.of[rank]
    first, longest = own[0], max(own, key=lambda one: len(one.rows))
    lengths = [*(len(one.rows) for one in own if one is not longest), *every.lengths(others)]
    alike = sum(_alike(one, first) for each in (rank, *others) for one in every.of[each])
    begins = placement.at_start(first.rows[0], first.length, count, alike)
    lasts = placement.lasting(len(longest.rows), lengths, every.r)
    up_to_end = longest.rows[-1] == count - 1
    shape: Shape = "start" if longest.rows[0] == 0 else "since" if up_to_end else "stretch"
    return [
        (_pattern(grid, rank, "start", [first], begins), EVENT),
        (_pattern(grid, rank, shape, [longest], lasts), EVENT),
    ]


def _alike(one: Episode, other: Episode) -> bool:
    """Return whether `one` is at least half as long and as costly as the `other`."""
    return 2 * len(one.rows) >= len(other.rows) and 2 * one.loss_ns >= other.loss_ns


def _several(
    grid: Grid, every: Episodes, rank: int, others: Sequence[int], chance: float
) -> list[tuple[Intermittent, float]]:
    """Return what all episodes of `rank` are together, with a period and without."""
    own = every.of[rank]
    if len(own) < _FEWEST:
        return []
    length, on_it, p_value = placement.period([one.rows[0] for one in own], grid.steps)
    found = []
    if length:
        combs = sum(len(each) >= placement.TEETH for each in every.of.values())
        together = placement.combined(chance, probability.corrected(p_value, combs))
        periodic = _pattern(grid, rank, "period", [own[index] for index in on_it], together)
        found.append((replace(periodic, period=length), votes.UNLIKELY))
    if every.total(rank) >= _DOMINANT * max((every.total(other) for other in others), default=0.0):
        found.append((_pattern(grid, rank, "scattered", own, chance), _NO_PATTERN))
    return found


def _pattern(grid: Grid, rank: int, shape: Shape, own: Sequence[Episode], p_value: float) -> Intermittent:
    rows = tuple(row for one in own for row in one.rows)
    return Intermittent(rank, shape, rows, 0.0, p_value, len(grid.steps), measured=grid.work is not None)


def _shared(grid: Grid, rank: int, rows: Sequence[int]) -> bool:
    """Return whether the peers took longer in `rows` than in other steps, without their waiting."""
    peers = middle(grid.own, grid.others((rank,)))
    inside = pl.Series(rows)
    outside = known(peers.filter(~pl.int_range(len(peers), eager=True).is_in(inside.implode())))
    return bool(outside) and probability.median(known(peers.gather(inside))) > _SHARED * probability.median(outside)


def _chances(every: Episodes, rest: Sequence[int], wanted: Sequence[int], ranks: int) -> dict[int, float]:
    """Return for each rank in `wanted` the probability that any of `ranks` loses as much by all episodes of `rest`."""
    if not wanted:
        return {}
    losses = [one.loss_ns for rank in rest for one in every.of[rank]]
    return dict(zip(wanted, _by_permutation(losses, ranks, [every.total(rank) for rank in wanted]), strict=True))


def _by_permutation(losses: Sequence[float], ranks: int, observed: Sequence[float]) -> list[float]:
    """Return for each of `observed` the probability that any of `ranks` loses so much, if each of `losses` hits any of
    them alike."""
    import numpy as np  # it takes a tenth of a second, and most jobs need no permutations

    dice = np.random.default_rng(_SEED)
    least = np.array(observed) * (1 - 1e-9)
    extreme, made = np.zeros(len(least), dtype=np.int64), 0
    while losses and made < _PERMUTATIONS and (extreme < _EXTREMES).any():
        size = max(1, min(_PERMUTATIONS // 20, _AT_ONCE // max(len(losses), ranks)))
        names = dice.integers(ranks, size=(size, len(losses))) + ranks * np.arange(size)[:, None]
        sums = np.bincount(names.ravel(), np.tile(losses, size), minlength=size * ranks)
        extreme += (sums.reshape(size, ranks).max(axis=1)[:, None] >= least).sum(axis=0)
        made += size
    return [float(count + 1) / (made + 1) for count in extreme]


# --- drift ----------------------------------------------------------------------------------------------------------


def _drift(
    grid: Grid,
    rank: int,
    every: Episodes,
    distance: Mapping[int, pl.Series],
    floor_ns: float,
    tests: float,
) -> Intermittent | None:
    """Return `rank` if it takes longer with every step, and its last third costs the floor."""
    count = len(grid.steps)
    costs = every.losses[str(rank)]
    if count < _FEWEST_OF_DRIFT[len(grid.ranks) >= _FEW] or probability.trimmed_mean(costs[-(count // 3) :]) < floor_ns:
        return None
    values = known(distance[rank])
    chance, slope = trend(values, widened(every.r) if len(grid.ranks) >= _FEW else 1.0)
    p_value = probability.corrected(chance, tests * len(grid.ranks))
    begin = probability.median(value - slope * row for row, value in enumerate(values))
    end = begin + slope * (count - 1)
    unlikely = p_value < (EVENT if len(grid.ranks) >= _FEW else votes.SURE)
    if not unlikely or end < floor_ns or begin > _BEGINS * end or not _steady(values, begin, slope):
        return None
    others = (trend(known(distance[other]))[1] for other in _next_to(grid, rank, every.losses))
    if any(_DOMINANT * other > slope for other in others):
        return None
    rows = tuple(row for row in range(count) if begin + slope * row >= floor_ns and costs[row] > 0)
    if len(rows) < max(_FEWEST, count // 4):
        return None
    whole = float(sum(costs[row] for row in rows))
    return Intermittent(rank, "drift", rows, whole, p_value, count, 0, slope, grid.work is not None)


def _next_to(grid: Grid, rank: int, losses: pl.DataFrame) -> list[int]:
    """Return the other ranks that cost the job most in the last third: few of many ranks cost anything."""
    count = len(grid.steps)
    costs = {other: float(losses[str(other)][-(count // 3) :].sum()) for other in grid.others((rank,))}
    return sorted(costs, key=lambda other: (-costs[other], other))[:8]


def _steady(values: Sequence[float], begin: float, slope: float) -> bool:
    """Return whether a line fits better than a single step up at any place, by Schwarz's criterion (1978): the step has
    one parameter more."""
    count = len(values)
    line = sum((value - begin - slope * row) ** 2 for row, value in enumerate(values))
    sums, squares = [0.0], [0.0]
    for value in values:
        sums.append(sums[-1] + value)
        squares.append(squares[-1] + value * value)
    splits = (squares[-1] - sums[k] ** 2 / k - (sums[-1] - sums[k]) ** 2 / (count - k) for k in range(1, count))
    return line < min(splits) * math.pow(count, 1 / count)
