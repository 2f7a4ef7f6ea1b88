"""Find the ranks that hold their peers back: one vote per step, tested against chance.

A rank is late in a step when every innocent peer waited longer than it did, by more than `NOISE`: the last one to enter
operations that all leave together waits least. If all ranks were alike, each would be late equally often, so the number
of steps in which one was is binomial; this works with any number of ranks, where three sigma cannot be reached (the
largest possible z of N ranks is sqrt(N - 1)). Steps vote, not operations: those of one step are not independent. Where
a busy host slows a rank for several steps on end, neighbouring steps are not independent either: then several of them
count as one (`correlation`). A margin that is large beside its noise needs no vote (`by_chance`).

Suspects are found by the largest gap between the ranks' mean own times, never more than half of the ranks: two equally
slow ones hide each other from "which is last" but not from this. As suspects are picked by the data, p values are
corrected for all sets that could have been picked (Bonferroni).

Being late often is not enough. `lost_ns` is what the job would save per step if the accused took as long as the slowest
innocent peer, and it must reach the floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import polars as pl

from whystall.tools.ranks.slow_node_check.grid import Grid, highest, known, lowest, middle
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.statistics.correlation import inflation, serial, unbiased, widened
from whystall.tools.ranks.statistics.two_samples import rank_test

# A tenth of the smallest floor, of a step: a smaller difference is no vote.
NOISE = 0.01
# Less likely than this by chance, after correction.
UNLIKELY = 0.01
# Without a second measure, and for ranks that take turns: many patterns resemble turns.
SURE = 0.001
# For any number of ranks: fewer steps show one moment only (a checkpoint, a cold page cache).
FEWEST_STEPS = 5
# Upper limit of one step's weight in the search for a change, in floors.
_CAP = 3
# Steps needed on either side of a change; the first steps of a capture are often slow.
_SIDE = 3
# With so many ranks a single one hardly moves the median.
_SEVERAL = 16
# Of fewer steps the correlation of neighbours is not known: of few ranks, and of several.
_TOO_SHORT = (12, 5)
_FEW = 4
# Ranks whose steps are looked at for that.
_LOOKED_AT = 64
# For a margin by size, so many steps count as one at least; and so many steps are enough for it.
_AS_ONE = 5
_FEW_BUT_CLEAR = 4
# Fewer steps in a row are no turn.
_TURN = 3
_NEARLY = 0.9
# Ranks that take turns are late in the same step no more often than this; ranks that are all slow nearly always are.
_TOGETHER = 0.2


@dataclass(frozen=True)
class Late:
    """A rank that the others wait for.

    `votes` of `steps`; `p_value` corrected. `lost_ns` per step since `began`, by waits; `work_lost_ns`: by the work
    between collectives, None unknown. `began`: row of the first slow step, -1 from the start.
    """

    rank: int
    votes: int
    steps: int
    p_value: float
    lost_ns: float
    work_lost_ns: float | None
    began: int

    @property
    def cost_ns(self) -> float:
        """Cost per step: the smaller of both measures."""
        return self.lost_ns if self.work_lost_ns is None else min(self.lost_ns, self.work_lost_ns)


@dataclass(frozen=True)
class Turns:
    """Ranks that take turns in being late: in which rows each was, and the loss per step over all steps."""

    rows: dict[int, list[int]]
    lost_ns: float
    p_value: float


def enough_steps(grid: Grid) -> int:
    """Return how many steps a vote among these ranks needs before it can accuse one."""
    count = len(grid.ranks)
    return max(FEWEST_STEPS, probability.fewest(1 / count, count, UNLIKELY)) if count > 1 else FEWEST_STEPS


def late(grid: Grid, floor_ns: float, tests: float = 1) -> list[Late]:
    """Return the ranks that hold the others back by at least `floor_ns` per step, the worst first.

    `tests`: number of other tests made.
    """
    found = _rounds(grid, floor_ns, tests)
    if not found:
        found = _since(grid, floor_ns, tests)
    return sorted((_with_begin(grid, one, found, floor_ns) for one in found), key=lambda one: -one.cost_ns)


def correlation(grid: Grid, calm: Sequence[int] | None = None) -> float:
    """Return by how much neighbouring steps of the median rank correlate, with the error of the estimate on top: what
    slows a rank often lasts for several steps. 0: not at all, or unknown. `calm`: rows to look at, None all."""
    count = len(grid.steps) if calm is None else len(calm)
    if count < _TOO_SHORT[len(grid.ranks) >= _FEW]:
        return 0.0
    every = -(-len(grid.ranks) // _LOOKED_AT)
    looked_at = [more for place, more in enumerate(excesses(grid)) if place % every == 0]
    series = (more if calm is None else more.gather(pl.Series(calm)) for more in looked_at)
    r = probability.median(serial(more.to_list()) for more in series)
    error = 1 / math.sqrt(count * max(1.0, min(len(looked_at), _SEVERAL) / 2))
    likely = unbiased(r, count)
    return likely + min(likely, error) if r > 0 else 0.0


def _rounds(grid: Grid, floor_ns: float, tests: float) -> list[Late]:
    """Return suspects, and suspects among the remaining ranks: a slow rank hides behind one that is much slower."""
    found: list[Late] = []
    rest = grid
    while len(rest.ranks) > 1:
        allowed = len(grid.ranks) // 2 - len(found)
        new = _convicted(rest, suspects(rest, allowed), floor_ns, tests * (1 + len(found)), widened(correlation(rest)))
        if not new:
            break
        found += new
        rest = rest.only(rest.others(one.rank for one in new))
    return found


def suspects(grid: Grid, allowed: int) -> tuple[int, ...]:
    """Return the ranks above the largest gap between mean own times, at most `allowed`."""
    if allowed < 1 or not grid.steps:
        return ()
    means = sorted(((probability.trimmed_mean(known(grid.own[str(r)])), r) for r in grid.ranks), reverse=True)
    allowed = min(allowed, len(means) - 1)
    gaps = [(means[i][0] - means[i + 1][0], -i) for i in range(allowed)]
    if not gaps:
        return ()
    _, cut = max(gaps)
    return tuple(rank for _, rank in means[: 1 - cut])


def _convicted(grid: Grid, accused: tuple[int, ...], floor_ns: float, tests: float, fewer: float) -> list[Late]:
    """Return those of `accused` with sufficient votes and loss, measured against all who are then innocent."""
    while accused:
        innocent = grid.others(accused)
        picked = tests * probability.subsets(len(accused), len(grid.ranks)) * len(accused)
        candidates = [_vote(grid, rank, innocent, picked, floor_ns, fewer) for rank in accused]
        kept = [one for one in candidates if one.p_value < UNLIKELY and one.lost_ns >= floor_ns]
        if len(kept) == len(candidates):
            return kept
        accused = tuple(one.rank for one in kept)
    return []


def _vote(grid: Grid, rank: int, innocent: tuple[int, ...], tests: float, floor_ns: float, fewer: float = 1.0) -> Late:
    margin = known(lowest(grid.wait, innocent) - grid.wait[str(rank)])
    # a rank that becomes slow in between is no sign of correlation
    row = max(0, change(margin, floor_ns))
    fewer = max(fewer, *(inflation(side) for side in (margin[:row], margin[row:])))
    return Late(
        rank=rank,
        votes=behind(grid, margin),
        steps=len(margin),
        p_value=probability.corrected(by_chance(grid, margin, len(innocent) + 1, fewer), tests),
        lost_ns=_ahead(grid.own, (rank,), innocent),
        work_lost_ns=_ahead(grid.work, (rank,), innocent) if grid.work is not None else None,
        began=-1,
    )


def behind(grid: Grid, margin: Iterable[float]) -> int:
    """Return in how many steps a rank is late, by the `margin` of its waiting to that of all others."""
    return sum(value > NOISE * grid.step_ns for value in margin)


def by_chance(grid: Grid, margin: Sequence[float], ranks: int, fewer: float) -> float:
    """Return the probability of such margins for any of `ranks`, if so many steps count as one: by votes, or by size.

    By size (Student's t of the trimmed mean, as K. K. Yuen 1974) a margin that is large beside its noise needs few
    steps. In those correlation is hardly known, so the worst usual one is assumed; of even fewer, votes do not count.
    """
    steps = len(margin)
    if steps < FEWEST_STEPS:
        return 1.0
    mean, error = probability.trimmed(margin)
    share = max(1 / max(fewer, _AS_ONE), min(_FEW_BUT_CLEAR, steps / 1.5) / steps)
    t = mean / error * math.sqrt(share) if error > 0 else 0.0
    by_size = 2 * probability.student_tail(t, steps * share - 1)
    if steps < _TOO_SHORT[ranks >= _FEW]:
        return min(1.0, by_size)
    return min(by_size, probability.binomial_tail(int(behind(grid, margin) / fewer), int(steps / fewer), 1 / ranks))


def _ahead(frame: pl.DataFrame, ranks: Iterable[int], innocent: Iterable[int]) -> float:
    return probability.trimmed_mean(known(highest(frame, ranks) - highest(frame, innocent)))


# --- when it began --------------------------------------------------------------------------------------------------


def _with_begin(grid: Grid, one: Late, found: list[Late], floor_ns: float) -> Late:
    """Return `one` with the step at which it began, and its loss since then."""
    innocent = grid.others(other.rank for other in found)
    row = change(excess(grid, one.rank, innocent), floor_ns)
    if row < 0:
        return one
    since = _vote(grid.part(row), one.rank, innocent, 1, floor_ns)
    return replace(one, lost_ns=since.lost_ns, work_lost_ns=since.work_lost_ns, began=row)


def _since(grid: Grid, floor_ns: float, tests: float) -> list[Late]:
    """Return ranks that changed: too short a time for a vote over all steps.

    The choice of the split is not corrected for here: `change` has done so.
    """
    rows = {change(known(more), floor_ns) for more in excesses(grid)}
    best: list[Late] = []
    for row in sorted(row for row in rows if row > 0):
        part = grid.part(row)
        if len(part.steps) < enough_steps(grid):
            continue
        found = _rounds(part, floor_ns, tests)
        if sum(one.lost_ns for one in found) > sum(one.lost_ns for one in best):
            best = found
    return best


def excess(grid: Grid, rank: int, innocent: tuple[int, ...]) -> list[float]:
    """Return per step how much longer its own time is than that of the median innocent peer, ns; as in the step before
    where it is not known."""
    more = grid.own[str(rank)] - middle(grid.own, innocent)
    return known(more.fill_null(strategy="forward").fill_null(0.0))


def excesses(grid: Grid) -> Iterable[pl.Series]:
    """Return the same of every rank, compared with the median of all, which one rank hardly moves."""
    if len(grid.ranks) < _SEVERAL:
        return (pl.Series(excess(grid, rank, grid.others((rank,))), dtype=pl.Float64) for rank in grid.ranks)
    usual = middle(grid.own, grid.ranks)
    return ((grid.own[str(r)] - usual).fill_null(strategy="forward").fill_null(0.0) for r in grid.ranks)


def change(values: list[float], floor: float) -> int:
    """Return the row from which on `values` are clearly higher and above `floor`, where before they were below it and
    not half as high; -1 for none.

    The split with the largest difference of means in standard errors, where a value counts for at most a few floors:
    one huge step is no beginning. Its two sides must then differ by rank order, corrected for all splits.
    """
    count = len(values)
    if count < 2 * _SIDE:
        return -1
    kept = [min(max(value, -_CAP * floor), _CAP * floor) for value in values]
    sums = [0.0]
    for value in kept:
        sums.append(sums[-1] + value)
    best, row = 0.0, -1
    for k in range(_SIDE, count - _SIDE + 1):
        before, after = sums[k] / k, (sums[-1] - sums[k]) / (count - k)
        height = (after - before) * math.sqrt(k * (count - k) / count)
        if height > best:
            best, row = height, k
    low, high = probability.median(kept[: max(row, 0)]), probability.median(kept[max(row, 0) :])
    if row < 0 or high < floor or low >= min(high / 2, floor):
        return -1
    return row if probability.corrected(rank_test(values[:row], values[row:])[0], count) < UNLIKELY else -1


# --- taking turns ---------------------------------------------------------------------------------------------------


def turns(grid: Grid, floor_ns: float, tests: float = 1) -> Turns | None:
    """Return ranks that are late one after the other, together for at least `floor_ns` per step, else None."""
    if len(grid.ranks) < 2 or len(grid.steps) < 2 * _TURN:
        return None
    return _runs(grid, floor_ns, tests) or _alternating(grid, floor_ns, tests)


def _runs(grid: Grid, floor_ns: float, tests: float) -> Turns | None:
    """Return turns in which the same rank is late in step after step more often than its share explains, two ranks or
    more have such runs, and each is as fast as the others outside of its own."""
    steps = len(grid.steps)
    last = last_ranks(grid)
    shares = {rank: last.count(rank) / steps for rank in grid.ranks}
    repeats = sum(one == two and one is not None for one, two in pairwise(last))
    usual = sum(share * share for share in shares.values())
    p_value = probability.corrected(probability.binomial_tail(repeats, steps - 1, usual), tests)
    if p_value >= UNLIKELY:
        return None
    rows = {rank: found for rank in grid.ranks if (found := _own_turns(grid, rank, last, floor_ns))}
    margins = sorted(margin for rank, found in rows.items() for margin in _margin(grid, rank, found))
    lost = sum(margins) / steps
    if len(rows) < 2 or lost < floor_ns:
        return None
    # few turns count if they cover nearly every step and cost the floor in each: noise does neither
    plain = len(margins) >= _NEARLY * steps and margins[round((1 - _NEARLY) * len(margins))] >= floor_ns
    return Turns(rows, lost, p_value) if p_value < SURE or plain else None


def _alternating(grid: Grid, floor_ns: float, tests: float) -> Turns | None:
    """Return turns: one of a few ranks is late more often than by chance, and hardly ever two in the same step."""
    accused = suspects(grid, len(grid.ranks) // 2)
    innocent = grid.others(accused)
    if len(accused) < 2:
        return None
    first = lowest(grid.wait, innocent) - NOISE * grid.step_ns
    late_in = {rank: set((grid.wait[str(rank)] < first).arg_true().to_list()) for rank in accused}
    rows = set().union(*late_in.values())
    together = len({row for row in rows if sum(row in late_rows for late_rows in late_in.values()) > 1})
    picked = tests * probability.subsets(len(accused), len(grid.ranks))
    tail = probability.binomial_tail(len(rows), len(grid.steps), len(accused) / len(grid.ranks))
    p_value = probability.corrected(tail, picked)
    fair = all(len(late_rows) * len(accused) * 2 >= len(rows) for late_rows in late_in.values())
    lost = min(_ahead(frame, accused, innocent) for frame in (grid.own, grid.work) if frame is not None)
    if p_value >= SURE or not fair or together > _TOGETHER * len(rows) or lost < floor_ns:
        return None
    return Turns({rank: sorted(late_rows) for rank, late_rows in late_in.items()}, lost, p_value)


def last_ranks(grid: Grid) -> list[int | None]:
    """Return per step the rank that all its peers waited for, None where that is not clear."""
    if len(grid.ranks) < 2:
        return [None] * len(grid.steps)
    # a rank whose waiting is unknown is not last
    waits = grid.wait.select(pl.all().fill_null(float("inf")))
    listed = waits.select(pl.concat_list(pl.all()).alias("all")).select(
        pl.col("all").list.arg_min().alias("last"), pl.col("all").list.sort().list.head(2).list.diff().list.last()
    )
    names = grid.wait.columns
    return [
        int(names[index]) if margin is not None and margin > NOISE * grid.step_ns else None
        for index, margin in listed.iter_rows()
    ]


def _own_turns(grid: Grid, rank: int, last: list[int | None], floor_ns: float) -> list[int]:
    """Return the rows of the runs of steps in which `rank` is late, if they are turns: costly, and with a clear end."""
    rows: list[int] = []
    run: list[int] = []
    for row, one in enumerate([*last, None]):
        if one == rank:
            run.append(row)
            continue
        rows += run if len(run) >= _TURN else []
        run = []
    if not rows:
        return []
    inside = set(rows)
    more = excess(grid, rank, grid.others((rank,)))
    outside = [value for row, value in enumerate(more) if row not in inside]
    if len(outside) < _TURN or probability.trimmed_mean(_margin(grid, rank, rows)) < floor_ns:
        return []
    # the steps right before and after a turn's edge are inconclusive: hence the median of the others
    return rows if probability.median(outside) < probability.median(more[row] for row in rows) / 2 else []


def _margin(grid: Grid, rank: int, rows: list[int]) -> list[float]:
    """Return per row what the slowest other rank would have saved; also by the work between collectives if recorded."""
    others = grid.others((rank,))
    ahead = grid.own[str(rank)] - highest(grid.own, others)
    if grid.work is not None:
        work = grid.work[str(rank)] - highest(grid.work, others)
        ahead = pl.select(pl.min_horizontal(ahead, work)).to_series()
    return known(ahead.fill_null(0.0).gather(rows))
