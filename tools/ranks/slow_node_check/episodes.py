"""Find the steps in which a rank holds the others back, and join successive ones to episodes.

In a step a rank costs the job what all its measures agree on: how much longer than the slowest other rank it took, by
its own time and by its work between collectives, and how much longer than it the others waited (in this step or, for
work behind the last collective, in the next). Such a step is *slow* if that reaches the floor and the rank exceeds its
own usual distance from its peers by `_OUTLIER` standard deviations, its own or those of the median rank, whichever is
larger: a rank that is always a little slower has no slow steps.

What slows a rank for several steps on end happened once: an episode is one event, whatever its length. Slow steps no
further apart than the half-life of such disturbances belong to one episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.grid import Grid, ahead_of_all, middle
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.statistics.correlation import half_life

_OUTLIER = 2.5
# A single step counts as at most so many median slow steps.
_CAP = 3.0


@dataclass(frozen=True)
class Episode:
    """Successive slow steps of a rank: their rows (of a grid), and what they cost, without a single step's excess."""

    rows: tuple[int, ...]
    loss_ns: float

    @property
    def length(self) -> int:
        """Return the number of steps from its first to its last."""
        return self.rows[-1] - self.rows[0] + 1


@dataclass(frozen=True)
class Episodes:
    """All episodes, by rank. `losses`: what each rank cost in each step, see `lost`. `r`: correlation of
    neighbouring steps."""

    of: Mapping[int, list[Episode]]
    losses: pl.DataFrame
    r: float

    def total(self, rank: int) -> float:
        """Return what all episodes of `rank` cost."""
        return sum(one.loss_ns for one in self.of.get(rank, ()))

    def rows(self, rank: int) -> tuple[int, ...]:
        """Return all slow rows of `rank`."""
        return tuple(row for one in self.of.get(rank, ()) for row in one.rows)

    def lengths(self, ranks: Iterable[int]) -> list[int]:
        """Return of how many steps each episode of `ranks` is."""
        return [len(one.rows) for rank in ranks for one in self.of.get(rank, ())]


def episodes(grid: Grid, distance: Mapping[int, pl.Series], floor_ns: float) -> Episodes:
    """Return the episodes of all ranks of `grid`, whose distances from the median of their peers are `distance`."""
    losses = lost(grid)
    usual = middle(grid.own, grid.ranks)
    share = floor_ns / grid.step_ns
    halves = {}
    for rank in grid.ranks:
        relative = (distance[rank] / usual).fill_nan(0.0).fill_null(0.0)
        halves[rank] = (relative, *probability.shortest_half(relative.to_list()))
    of_others = probability.median(scale for _, _, scale in halves.values())
    rows: dict[int, list[int]] = {}
    for rank, (relative, middle_of, scale) in halves.items():
        costs = losses[str(rank)]
        beyond = relative - middle_of >= max(share, _OUTLIER * max(scale, of_others))
        if found := (beyond & (costs >= floor_ns) & (costs >= share * usual)).arg_true().to_list():
            rows[rank] = found
    slow = {row for found in rows.values() for row in found}
    r = votes.correlation(grid, [row for row in range(len(grid.steps)) if row not in slow])
    cap = _CAP * probability.median(float(losses[str(rank)][row]) for rank, found in rows.items() for row in found)
    of = {}
    for rank, found in rows.items():
        costs = losses[str(rank)]
        of[rank] = [
            Episode(tuple(part), sum(min(cap, float(costs[row])) for row in part))
            for part in _joined(found, half_life(r))
        ]
    return Episodes(of, losses, r)


def lost(grid: Grid) -> pl.DataFrame:
    """Return per step and rank what the job would have saved if it had been as fast as the slowest other one, ns: the
    least of all measures, 0 where one is not known."""
    own, margin = ahead_of_all(grid.own), ahead_of_all(grid.wait.select(-pl.all()))
    work = ahead_of_all(grid.work) if grid.work is not None else own
    columns = []
    for name in grid.own.columns:
        waited = pl.select(pl.max_horizontal(margin[name], margin[name].shift(-1))).to_series()
        least = pl.select(pl.min_horizontal(own[name], work[name], waited)).to_series()
        missing = own[name].is_null() | work[name].is_null() | waited.is_null()
        columns.append(pl.select(pl.when(~missing).then(least.clip(0)).otherwise(0.0).alias(name)).to_series())
    return pl.DataFrame(columns)


def _joined(rows: Iterable[int], apart: int) -> list[list[int]]:
    """Return `rows` (ascending) in parts that are more than `apart` from each other. One step amid others that is not
    slow enough parts nothing."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and row - parts[-1][-1] <= apart:
            parts[-1].append(row)
        else:
            parts.append([row])
    joined: list[list[int]] = []
    for part in parts:
        if joined and min(len(part), len(joined[-1])) > 1 and part[0] - joined[-1][-1] == 2:
            joined[-1] += part
        else:
            joined.append(part)
    return joined
