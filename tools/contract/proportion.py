"""How far a share that was counted may be from the true one."""

from __future__ import annotations

import math

_Z = 1.959964  # 95 % of a normal distribution


def wilson(hits: float, samples: float) -> tuple[float, float]:
    """95 % Wilson score interval of the proportion of `hits` in `samples`, 0 to 1 (E. B. Wilson, 1927); (0, 1) without
    samples. It is the share of the time in which the samples were taken: of other runs of a program that stays long in
    one place it says less. Samples at even distances scatter no more than independent ones, as the interval assumes,
    unless the program repeats itself in step with them.
    """
    if samples <= 0:
        return 0.0, 1.0
    p, z2 = min(hits / samples, 1.0), _Z * _Z
    centre = p + z2 / (2 * samples)
    spread = _Z * math.sqrt(p * (1 - p) / samples + z2 / (4 * samples * samples))
    return max(0.0, (centre - spread) / (1 + z2 / samples)), min(1.0, (centre + spread) / (1 + z2 / samples))
