"""Estimate the power of a verdict: the smallest slowdown of one rank that these steps would have shown.

Not a formula for assumed noise: the slowdown is added to each rank's recorded steps until it meets every condition of
`votes`, so that the estimate has this trace's own scatter. It holds for a rank that is slow in every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.grid import Grid, ahead_of_all, known
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.statistics.correlation import widened

# To so many parts of a step exactly.
_EXACT = 1 << 10


def smallest_ns(grid: Grid, floor_ns: float, tests: float = 1) -> float:
    """Return by how much any rank of `grid` must take longer in every step to be found, ns: that of the rank that is
    hardest to see; at most ten steps. `tests`: number of other tests made."""
    measures = [ahead_of_all(frame) for frame in (grid.own, grid.work) if frame is not None]
    margins = ahead_of_all(grid.wait.select(-pl.all()))
    fewer = widened(votes.correlation(grid))
    least = 0.0
    for name in grid.own.columns:
        costs = [probability.trimmed_mean(known(frame[name])) for frame in measures]
        least = max(least, *(floor_ns - cost for cost in costs))
        least = _found(grid, known(margins[name]), tests, fewer, least)
    return least


def _found(grid: Grid, margin: Sequence[float], tests: float, fewer: float, least: float) -> float:
    """Return the least addition to `margin` that is no chance, not below `least`."""
    ranks = len(grid.ranks)

    def unlikely(more: float) -> bool:
        chance = votes.by_chance(grid, [value + more for value in margin], ranks, fewer)
        return probability.corrected(chance, tests * ranks) < votes.UNLIKELY

    if unlikely(least):
        return least
    low, high = least, 10 * grid.step_ns
    while high - low > grid.step_ns / _EXACT:
        middle = (low + high) / 2
        low, high = (low, middle) if unlikely(middle) else (middle, high)
    return high
