"""Exact probabilities in plain Python, for any number of ranks and steps."""

from __future__ import annotations

import math
from collections.abc import Iterable


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """Return the probability of at least `hits` in `trials` independent tries of which each succeeds with `chance`.

    Exact up to rounding: terms are summed from logarithms, so that many trials neither overflow nor vanish.
    """
    if hits <= 0:
        return 1.0
    if hits > trials or chance <= 0:
        return 0.0
    if chance >= 1:
        return 1.0
    yes, no, all_of_them = math.log(chance), math.log1p(-chance), math.lgamma(trials + 1)
    terms = (
        math.exp(all_of_them - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * yes + (trials - k) * no)
        for k in range(hits, trials + 1)
    )
    return min(1.0, math.fsum(terms))


def fewest(chance: float, tests: float, below: float) -> int:
    """Return how many successive tries must succeed so that chance is less likely than `below` in `tests` tests."""
    return max(1, math.floor(math.log(below / tests) / math.log(chance)) + 1)


def corrected(p_value: float, tests: float) -> float:
    """Return `p_value` corrected for picking the best of `tests` (Bonferroni)."""
    return min(1.0, p_value * max(1.0, tests))


def subsets(size: int, of: int) -> int:
    """Return the number of ways to pick `size` of so many."""
    return math.comb(of, size)


def median(values: Iterable[float]) -> float:
    """Return the median, the mean of the two middle ones if there are two; 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def trimmed_mean(values: Iterable[float], share: float = 0.1) -> float:
    """Return the mean without the `share` of largest and of smallest values, at least one of each from five values on:
    one odd step (a checkpoint, a compilation) does not make a rank slow. 0 of nothing."""
    ordered = sorted(values)
    cut = max(1, int(len(ordered) * share)) if len(ordered) >= 5 else 0
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept) if kept else 0.0


def spread(values: Iterable[float]) -> float:
    """Return the standard deviation as estimated by the median absolute deviation."""
    kept = list(values)
    middle = median(kept)
    return 1.4826 * median(abs(value - middle) for value in kept)
