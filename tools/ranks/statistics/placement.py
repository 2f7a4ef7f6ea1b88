"""Decide whether a rank's few slow episodes are no chance: they come every so many steps, at the start, or last long.

An episode is one event: its steps are not independent. Episodes that begin every so many steps are tested against all
ways to place them: by chance every set of steps is equally likely, so that the hits of one comb (a period and a phase)
are hypergeometric. All combs are tried, and their p values are discrete: each of them counts only with the largest
value that it can take at or below the observed one (the union bound; R. E. Tarone 1990, "A modified Bonferroni method
for discrete data").

A single episode shows little by itself. At the start of the steps it is as likely as anywhere else. Its length is
compared with that of the others: if each further step is slow with the same chance, lengths are geometric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from whystall.tools.ranks.statistics import probability

TEETH = 4
"""Fewer episodes are no period."""
_LONGEST_PERIOD = 500
# Below this the plain product with the number of combs is precise enough.
_TINY = 1e-6


def at_start(begin: int, length: int, count: int, events: int) -> float:
    """Return the probability that one of `events` episodes, of `length` steps, begins in row `begin` or before, of
    `count`.

    Of a single one also that there is no other: events that are rare enough for that are so in 1/e of all cases at most
    (Poisson).
    """
    chance = probability.corrected((begin + 1) / max(1, count - length + 1), events)
    return chance / math.e if events == 1 else chance


def lasting(length: int, others: Sequence[int], r: float) -> float:
    """Return the probability that the longest of several episodes has `length` steps or more; `others`: of the rest.

    The chance of a further slow step is estimated from those, one half at least. Noise whose neighbours
    correlate with `r` stays beyond 2.5 standard deviations with less than `r` squared.
    """
    further = max(0.5, (sum(others) - len(others) + 1) / (sum(others) + 2), r * r)
    return probability.corrected(further ** (length - 1), len(others) + 1)


def period(begins: Sequence[int], numbers: Sequence[int]) -> tuple[int, tuple[int, ...], float]:
    """Return the period of the episodes that begin at the rows `begins` (ascending) of the steps numbered `numbers`,
    which of them (indices) lie on it, and p corrected for all periods and phases; (0, (), 1) for none."""
    if len(begins) < TEETH:
        return 0, (), 1.0
    tails: dict[int, list[float]] = {}
    sizes: Counter[int] = Counter()
    best, tooth = (1.0, 0, 0), (0, 0)
    for length in range(2, min(_LONGEST_PERIOD, (numbers[-1] - numbers[0] + 1) // TEETH) + 1):
        teeth = Counter(number % length for number in numbers)
        sizes.update(size for size in teeth.values() if size >= TEETH)
        for phase, hits in Counter(numbers[row] % length for row in begins).items():
            size = teeth[phase]
            if hits < TEETH or 2 * hits <= size:
                continue
            if size not in tails:
                tails[size] = probability.hypergeometric_tails(len(numbers), size, len(begins))
            # of equal ones the shorter period
            if (tails[size][hits], length, phase) < best:
                best, tooth = (tails[size][hits], length, phase), (length, phase)
    length, phase = tooth
    if not length:
        return 0, (), 1.0
    kept = tuple(index for index, row in enumerate(begins) if numbers[row] % length == phase)
    return length, kept, _corrected(best[0], sizes, len(numbers), len(begins))


def _corrected(observed: float, sizes: Mapping[int, int], count: int, drawn: int) -> float:
    """Return `observed` corrected for combs of which `sizes` tells how many there are of each size."""
    plain = probability.corrected(observed, sum(sizes.values()))
    if plain < _TINY:
        return plain
    reached = 0.0
    for size, combs in sizes.items():
        attainable = probability.hypergeometric_tails(count, size, drawn)
        reached += combs * max((tail for tail in attainable if tail <= observed * (1 + 1e-9)), default=0.0)
    return min(1.0, plain, reached)


def combined(one: float, other: float) -> float:
    """Return the p value of two independent ones together (R. A. Fisher 1932)."""
    product = one * other
    return min(1.0, product * (1 - math.log(product))) if product > 0 else 0.0
