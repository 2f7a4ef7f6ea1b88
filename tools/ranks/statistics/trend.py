"""Is a series of steps growing, and by how much per step?

Mann's and Kendall's test for a trend (Mann 1945) with its variance widened where neighbours are correlated (as Hamed
and Rao 1998), and Theil's and Sen's slope, the median of the slopes between all pairs (Sen 1968): a few odd steps move
neither.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.statistics.correlation import serial, unbiased, widened

# At most so many values, medians of successive steps: all pairs are compared.
_BLOCKS = 128


def trend(values: Sequence[float], wider: float = 1.0) -> tuple[float, float]:
    """Return p, one-sided, of growth by chance, and the slope per step; (1, 0) for fewer than three values.
    `wider`: factor by which correlation widens the variance at least."""
    size = -(-len(values) // _BLOCKS) or 1
    blocks = [probability.median(values[at : at + size]) for at in range(0, len(values), size)]
    n = len(blocks)
    if n < 3:
        return 1.0, 0.0
    pairs = [(blocks[j] - blocks[i]) / (j - i) for i in range(n) for j in range(i + 1, n)]
    slope = probability.median(pairs)
    rest = serial([y - slope * x for x, y in enumerate(blocks)])
    score = sum((pair > 0) - (pair < 0) for pair in pairs)
    ties = sum(count * (count - 1) * (2 * count + 5) for count in Counter(blocks).values() if count > 1)
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18 * max(wider, widened(unbiased(rest, n, trend=True)))
    if variance <= 0 or score <= 0:
        return 1.0, slope / size
    return math.erfc((score - 1) / math.sqrt(2 * variance)) / 2, slope / size
