"""By which factor do durations differ, and how certainly?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whystall.tools.ranks.statistics.correlation import inflation
from whystall.tools.ranks.statistics.probability import median

_Z = 2.5758  # of 99 %


@dataclass(frozen=True)
class Factor:
    """`value`: the middle factor from one sample to the other; `low` to `high`: its 99 % interval."""

    value: float
    low: float
    high: float


def factor(before: Sequence[float], after: Sequence[float]) -> Factor:
    """Return the factor from `before` to `after`: the median of the quotients of all pairs (J. L. Hodges and E. L.
    Lehmann 1963, of logarithms), with the interval of the rank test (L. E. Moses 1953) in its normal approximation.

    Neighbours that resemble each other widen the interval as they do the test. Both need members; values below one
    count as one.
    """
    one, other = ([math.log(max(value, 1.0)) for value in sample] for sample in (before, after))
    differences = sorted(b - a for a in one for b in other)
    n, m = len(one), len(other)
    wider = max(inflation(one), inflation(other))
    out = math.floor(n * m / 2 - _Z * math.sqrt(n * m * (n + m + 1) / 12 * wider))
    out = min(max(out, 0), (len(differences) - 1) // 2)
    return Factor(
        math.exp(median(differences)), math.exp(differences[out]), math.exp(differences[len(differences) - 1 - out])
    )
