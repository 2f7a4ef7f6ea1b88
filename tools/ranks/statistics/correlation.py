"""How much do neighbouring steps resemble each other, and how many of them count as one?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_LEAST_FOR_CORRELATION = 12


def serial(series: Sequence[float]) -> float:
    """Return the correlation of successive values by their ranks, so that a few huge ones do not hide it; 0 of none."""
    ranks, _ = ranked(series)
    middle = (len(ranks) + 1) / 2
    variance = sum((rank - middle) ** 2 for rank in ranks)
    return sum((a - middle) * (b - middle) for a, b in pairwise(ranks)) / variance if variance > 0 else 0.0


def inflation(series: Sequence[float]) -> float:
    """Return the factor by which correlation of neighbours widens a mean's variance; 1 if it is not significant."""
    n = len(series)
    if n < _LEAST_FOR_CORRELATION:
        return 1.0
    r = serial(series)
    return widened(r) if r > 1.64 / math.sqrt(n) else 1.0


def unbiased(r: float, n: int, trend: bool = False) -> float:
    """Return an estimate `r` from `n` values without its bias towards less (F. H. C. Marriott and J. A. Pope 1954);
    `trend`: after a line was fitted to them."""
    return r + ((2 if trend else 1) + 4 * r) / n if n else 0.0


def widened(r: float) -> float:
    """Return the factor by which a correlation `r` of neighbours widens a mean's variance: so many steps count as one;
    not below 1."""
    r = min(max(r, 0.0), 0.95)
    return (1 + r) / (1 - r)


def ranked(values: Sequence[float]) -> tuple[list[float], float]:
    """Return the rank of each value, equal ones sharing theirs, and the sum of t^3 - t over ties."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    ties, at = 0.0, 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            ranks[place] = (at + end) / 2 + 1
        count = end - at + 1
        ties += count**3 - count
        at = end + 1
    return ranks, ties


def half_life(r: float) -> int:
    """Return after how many steps half of a deviation is left, if neighbours correlate with `r`; at least 1."""
    return max(1, round(math.log(0.5) / math.log(min(r, 0.95)))) if r > 0 else 1
