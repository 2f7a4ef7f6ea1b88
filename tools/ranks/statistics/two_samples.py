"""Compare two samples in plain Python: is one shifted, by how much, and has one more extremes?

Steps of one run are not independent: a slow period lasts for several. Where neighbours are correlated, the tests count
fewer of them, and resampling takes them in blocks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from whystall.tools.ranks.statistics.correlation import inflation, ranked
from whystall.tools.ranks.statistics.probability import log_choose

_EXACT = 400
"""Up to this many pairs, and without ties, the exact distribution is used."""
_RESAMPLES = 2000
_SEED = 20


@dataclass(frozen=True)
class Shift:
    """Comparison of `after` with `before`. `p_value`: of the rank test, two-sided. `superior`: the probability that a
    member of `after` exceeds one of `before` (0.5: none). `low`, `high`: 99 % interval of the change of the mean."""

    p_value: float
    superior: float
    low: float
    high: float


def shift(before: Sequence[float], after: Sequence[float]) -> Shift:
    """Compare two series in the order of time (Mann and Whitney 1947; circular blocks as Politis and Romano 1992).

    Both must have members; the result is the same in every run.
    """
    p_value, superior = rank_test(before, after)
    low, high = _mean_change(before, after)
    return Shift(p_value, superior, low, high)


def rank_test(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return Mann and Whitney's p, two-sided, and the probability that a member of `after` exceeds one of `before`."""
    n, m = len(before), len(after)
    if not n or not m:
        return 1.0, 0.5
    ranks, ties = ranked([*before, *after])
    u = sum(ranks[n:]) - m * (m + 1) / 2
    wider = max(inflation(before), inflation(after))
    if n * m <= _EXACT and not ties and wider == 1.0:
        return _exact(n, m, min(u, n * m - u)), u / (n * m)
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1))) * wider
    if variance <= 0:
        return 1.0, 0.5
    z = max(abs(u - n * m / 2) - 0.5, 0.0) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2)), u / (n * m)


def more_often(hits_before: int, before: int, hits_after: int, after: int) -> float:
    """Return Fisher's exact p, two-sided, of different shares of hits."""
    hits, total = hits_before + hits_after, before + after

    def log_chance(k: int) -> float:
        return log_choose(after, k) + log_choose(before, hits - k) - log_choose(total, hits)

    observed = log_chance(hits_after)
    possible = range(max(0, hits - before), min(hits, after) + 1)
    return min(1.0, math.fsum(math.exp(value) for k in possible if (value := log_chance(k)) <= observed + 1e-9))


def _exact(n: int, m: int, least: float) -> float:
    """Return twice the probability of U <= `least`: the Gaussian binomial coefficient, by its product."""
    most = n * m
    ways = [1.0] + [0.0] * most
    for i in range(1, n + 1):
        for u in range(most, m + i - 1, -1):
            ways[u] -= ways[u - m - i]
        for u in range(i, most + 1):
            ways[u] += ways[u - i]
    return min(1.0, 2 * math.fsum(ways[: int(least) + 1]) / math.comb(n + m, n))


def _mean_change(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    dice = random.Random(_SEED)  # noqa: S311 - resampling, not a secret
    one, other = _means(before, dice), _means(after, dice)
    changes = sorted(b - a for a, b in zip(one, other, strict=True))
    cut = int(0.005 * len(changes))
    return changes[cut], changes[-1 - cut]


def _means(series: Sequence[float], dice: random.Random) -> list[float]:
    """Return means of resampled series, taken in blocks that wrap around."""
    n = len(series)
    length = max(1, round(n ** (1 / 3)))
    sums = [0.0]
    for value in [*series, *series[: length - 1]]:
        sums.append(sums[-1] + value)
    blocks = [sums[at + length] - sums[at] for at in range(n)]
    count = max(1, round(n / length))
    return [math.fsum(dice.choices(blocks, k=count)) / (count * length) for _ in range(_RESAMPLES)]
