"""Exact probabilities in plain Python, for any number of ranks and steps."""

from __future__ import annotations

import math
import statistics
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


def hypergeometric_tails(total: int, marked: int, drawn: int) -> list[float]:
    """Return the probabilities of at least 0, 1, 2, ... of `marked` members among `drawn` ones out of `total`."""
    most, whole = min(marked, drawn), log_choose(total, drawn)
    tails = [0.0] * (most + 2)
    for hits in range(most, -1, -1):
        fits = drawn - hits <= total - marked
        share = math.exp(log_choose(marked, hits) + log_choose(total - marked, drawn - hits) - whole) if fits else 0.0
        tails[hits] = min(1.0, tails[hits + 1] + share)
    return tails[: most + 1]


def log_choose(n: int, k: int) -> float:
    """Return the logarithm of the number of ways to pick `k` of `n`."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with so many degrees of `freedom` (not only whole ones) exceeds `t`; 1
    for less than one degree, and if `t` is not positive."""
    if t <= 0 or freedom < 1:
        return 1.0
    if freedom > 200:
        return math.erfc(t / math.sqrt(2)) / 2
    # with t = sqrt(freedom) tan(a) the density becomes cos(a) ** (freedom - 1): Simpson's rule over the tail
    begin, count = math.atan(t / math.sqrt(freedom)), 200
    width = (math.pi / 2 - begin) / count
    values = [math.pow(max(0.0, math.cos(begin + width * k)), freedom - 1) for k in range(count + 1)]
    area = width / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return min(1.0, math.exp(scale) * area)


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


def median_bounds(values: Iterable[float], chance: float = 0.05) -> tuple[float, float]:
    """Return the order statistics between which the median of the population lies, but for at most `chance`; of fewer
    than six values, for 0.05, the least and the largest. (0, 0) of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0, 0.0
    out = 0
    while out + 1 < len(ordered) / 2 and 2 * binomial_tail(len(ordered) - out - 1, len(ordered), 0.5) <= chance:
        out += 1
    return ordered[out], ordered[len(ordered) - 1 - out]


def trimmed_mean(values: Iterable[float], share: float = 0.1) -> float:
    """Return the mean without the `share` of largest and of smallest values, at least one of each from five values on:
    one odd step (a checkpoint, a compilation) does not make a rank slow. 0 of nothing."""
    kept, _ = _trimmed(values, share)
    return math.fsum(kept) / len(kept) if kept else 0.0


def trimmed(values: Iterable[float], share: float = 0.1) -> tuple[float, float]:
    """Return the trimmed mean and its standard error, from the deviation of the values with those cut off moved to the
    nearest kept one (J. W. Tukey and D. H. McLaughlin 1963); no error of fewer than three."""
    kept, cut = _trimmed(values, share)
    mean = math.fsum(kept) / len(kept) if kept else 0.0
    if len(kept) < 3:
        return mean, 0.0
    moved = [kept[0]] * cut + kept + [kept[-1]] * cut
    return mean, statistics.stdev(moved) * math.sqrt(len(moved)) / len(kept)


def _trimmed(values: Iterable[float], share: float) -> tuple[list[float], int]:
    ordered = sorted(values)
    cut = max(1, int(len(ordered) * share)) if len(ordered) >= 5 else 0
    return ordered[cut : len(ordered) - cut], cut


def spread(values: Iterable[float]) -> float:
    """Return the standard deviation as estimated by the median absolute deviation."""
    kept = list(values)
    middle = median(kept)
    return 1.4826 * median(abs(value - middle) for value in kept)


def shortest_half(values: Iterable[float]) -> tuple[float, float]:
    """Return the middle of the shortest interval with half of the values, and the standard deviation that its length
    corresponds to (Rousseeuw and Leroy 1988, "A robust scale estimator based on the shortest half"): up to half of the
    values may be anywhere else. (0, 0) of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0, 0.0
    half = (len(ordered) + 1) // 2
    length, low = min((ordered[i + half - 1] - ordered[i], ordered[i]) for i in range(len(ordered) - half + 1))
    return low + length / 2, length / (2 * 0.6745)
