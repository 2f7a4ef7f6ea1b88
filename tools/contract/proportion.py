"""Confidence interval of a counted share."""

from __future__ import annotations

import math

_Z = 1.959964  # 95 % of a normal distribution


def wilson(hits: float, samples: float) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of the proportion of `hits` in `samples` (E. B. Wilson, 1927).

    It is (0, 1) without samples. It holds for the sampled time; other runs of a program with long phases vary more.
    Evenly spaced samples vary no more than independent ones, unless the program is periodic in step with them.
    """
    if samples <= 0:
        return 0.0, 1.0
    p, z2 = min(hits / samples, 1.0), _Z * _Z
    centre = p + z2 / (2 * samples)
    spread = _Z * math.sqrt(p * (1 - p) / samples + z2 / (4 * samples * samples))
    return max(0.0, (centre - spread) / (1 + z2 / samples)), min(1.0, (centre + spread) / (1 + z2 / samples))
