"""Judge whether a size grows steadily, and how fast.

Method: the Mann-Kendall test for a trend (H. B. Mann, Econometrica 13, 1945) and Sen's slope (P. K. Sen, J. Am. Stat.
Assoc. 63, 1968), which S. Garg et al. use to find leaks ("A methodology for detection and estimation of software
aging", ISSRE 1998). Both depend on the order of readings, not on a distribution. Two conditions are added, since sizes
of memory are not independent from reading to reading: a single allocation must not be most of the growth, and the
growth must not have ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from typing import NamedTuple

LEAST_READINGS = 5
"""With 4 random readings the probability of an unbroken rise is 1/24; with 5 it is 1/120."""
_CHANCE = 0.01
_ONE_STEP = 0.5
"""Largest share of the growth that a single step may have."""
_LATE = 0.25
"""Least share of the growth in the second half of the time; 0.5 if it grows evenly."""
_MOST_READINGS = 60
_CLOSE = 0.01
"""Pairs of readings closer than this share of the time give no slope: their difference is mostly noise."""


class Trend(NamedTuple):
    """`rate`: bytes per second; `grown_bytes`: from the first to the last reading; `p_value`: the probability of as
    many rises in random order."""

    rate: float
    grown_bytes: float
    p_value: float
    steady: bool


def trend(readings: Sequence[tuple[int, float]]) -> Trend | None:
    """Return the trend of (ns, bytes), in order of time; None with fewer than `LEAST_READINGS`."""
    if len(readings) < LEAST_READINGS or readings[-1][0] <= readings[0][0]:
        return None
    if len(readings) > _MOST_READINGS:
        last = len(readings) - 1
        readings = [readings[i * last // (_MOST_READINGS - 1)] for i in range(_MOST_READINGS)]
    span = readings[-1][0] - readings[0][0]
    pairs = list(combinations(readings, 2))
    slopes = [(b - a) / ((late - early) / 1e9) for (early, a), (late, b) in pairs if late - early > _CLOSE * span]
    values = [value for _, value in readings]
    score = sum((b > a) - (b < a) for (_, a), (_, b) in pairs)
    p_value = _by_chance(len(readings), score)
    grown = values[-1] - values[0]
    step = max(b - a for a, b in pairwise(values))
    middle = next(value for at_ns, value in readings if at_ns >= readings[0][0] + span / 2)
    steady = p_value < _CHANCE and grown > 0 and step <= _ONE_STEP * grown and values[-1] - middle >= _LATE * grown
    return Trend(statistics.median(slopes), grown, p_value, steady)


def _by_chance(count: int, score: int) -> float:
    """Return the probability that `count` values in random order have a Mann-Kendall score of `score` or more."""
    pairs = count * (count - 1) // 2
    inversions = (pairs - score) // 2  # equal values count as half an inversion
    orders = _orders(count)
    return sum(orders[: inversions + 1]) / sum(orders)


@lru_cache(maxsize=_MOST_READINGS)
def _orders(count: int) -> list[int]:
    """Return how many orders of `count` values have 0, 1, 2 ... inversions (Mahonian numbers)."""
    found = [1]
    for size in range(2, count + 1):
        longer = [0] * (len(found) + size - 1)
        for inversions, ways in enumerate(found):
            for more in range(size):
                longer[inversions + more] += ways
        found = longer
    return found
