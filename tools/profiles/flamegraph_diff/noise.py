"""The change of each group between two sides, and the largest change of any group by chance alone.

The chance of any false change among all groups is controlled (max-T of Westfall & Young 1993), not the share of false
ones (Benjamini & Hochberg 1995): one wrong accusation costs more than a small change that is missed. It is the form of
Holm's procedure that uses the correlation of groups, which are callers and callees of each other; Holm's own, which
must allow for the worst, would name fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from whystall.tools.profiles.flamegraph_diff.side import Floats, Side

LEVEL = 0.01
"""The chance that any frame at all is reported when nothing changed."""
_DRAWS = 4000
_ROUNDING = 1e-9
_SMALL = 1e-4
"""Least standard error, relative to the share, even if all blocks agree to the nanosecond."""


@dataclass(frozen=True)
class Apart:
    """Per group: `change` of the ratio to the base, its standard `error`, and the weights of both sides."""

    change: Floats
    error: Floats
    before: Floats
    after: Floats
    free: float

    @property
    def score(self) -> Floats:
        """Return the change in standard errors."""
        return self.change / self.error


def pooled(before: Side, after: Side) -> tuple[Side, Side]:
    """Return the sides with counting variance also for what only the other side has: zero samples are not certain."""
    shares = [side.weights / side.sum for side in (before, after)]
    made = []
    common = (before.samples * shares[0] + after.samples * shares[1]) / max(before.samples + after.samples, 1)
    for side in (before, after):
        mean = side.counting.sum() / side.sum
        made.append(replace(side, counting=np.maximum(side.counting, common * side.sum * mean)))
    return made[0], made[1]


def variances(before: Side, after: Side, member: Floats, base: Floats) -> tuple[Floats, Floats]:
    """Return the variances of the groups' ratios to the weight of the atoms `base`, on each side.

    Bursts on one side are possible on the other, which may have missed them: the factor between variance and counting
    variance is that of the side where it is larger. It grows with the number of samples per burst: with the sampling
    rate, and with the number of threads that do the same at once.
    """
    sides = (before, after)
    found = [side.variance(member, base) for side in sides]
    made = []
    for one, other in ((0, 1), (1, 0)):
        counted, spread = found[one]
        theirs = found[other][1]
        if spread is not None and sides[one].traced:  # all events are recorded
            made.append(spread)
            continue
        variance = counted if spread is None else np.maximum(spread, counted)
        if theirs is not None and not sides[other].traced:
            counts = found[other][0]
            # counting variance near zero is only rounding
            some = counts > _ROUNDING * counts.max(initial=0.0)
            times = np.where(some, theirs / np.where(some, counts, 1.0), 1.0)
            bursts = np.maximum(times - 1, 0.0) * _more_often(sides[one], sides[other])
            variance = np.maximum(variance, (1 + bursts) * counted / sides[one].burst)
        made.append(variance)
    return made[0], made[1]


def _more_often(one: Side, other: Side) -> float:
    """Return how many times as many samples a burst has on side `one`; of a side without times the rate is unknown."""
    if "counts" in (one.how, other.how):
        return 1.0
    rates = [max(side.samples, 1) / max(side.span_ns, 1.0) for side in (one, other)]
    return rates[0] / rates[1] * max(1.0, other.threads / one.threads)


def apart(before: Side, after: Side, member: Floats, base: Floats) -> Apart:
    """Return the change of the groups `member` (rows), relative to the atoms `base` of each side."""
    sides = (before, after)
    sums = [member @ side.weights for side in sides]
    ratios = [weight / float(base @ side.weights) for weight, side in zip(sums, sides, strict=True)]
    variance = variances(before, after, member, base)
    error = np.sqrt(variance[0] + variance[1]) + _SMALL * np.maximum(ratios[0], ratios[1]) + 1e-12
    known = [(float(each.sum()), side.free) for each, side in zip(variance, sides, strict=True)]
    parts = sum(own**2 / free for own, free in known)
    free = sum(own for own, _ in known) ** 2 / parts if parts > 0 else np.inf
    return Apart(ratios[1] - ratios[0], error, sums[0], sums[1], max(free, 1.0))


def furthest(before: Side, after: Side, member: Floats, base: Floats, free: float) -> Floats:
    """Draw the largest absolute score of all groups if nothing changed; ascending.

    Groups with common samples are correlated as by counting. Scores follow Student's t with `free` degrees of freedom.
    """
    rng = np.random.default_rng(3)
    wholes = [float(base @ side.weights) for side in (before, after)]
    variance = sum(side.counting / whole**2 for side, whole in zip((before, after), wholes, strict=True))
    deviation = np.sqrt(variance)
    ratio = member @ (before.weights / wholes[0] + after.weights / wholes[1]) / 2
    cross = (member * base) @ variance
    spread = np.sqrt(np.maximum(member @ variance - 2 * ratio * cross + ratio**2 * float(base @ variance), 1e-300))
    kept = spread > 1e-9 * spread.max(initial=0.0)
    if not kept.any():
        return np.zeros(_DRAWS)
    load = ((member[kept] - np.outer(ratio[kept], base)) * deviation / spread[kept, None]).astype(np.float32)
    found = [
        np.abs(rng.standard_normal((_DRAWS // 8, load.shape[1]), dtype=np.float32) @ load.T).max(axis=1)
        for _ in range(8)
    ]
    largest = np.concatenate(found).astype(np.float64)
    if np.isfinite(free):
        largest = largest / np.sqrt(rng.chisquare(free, len(largest)) / free)
    return np.sort(largest)


def critical(draws: Floats, level: float) -> float:
    """Return the score that chance exceeds with probability `level`."""
    return float(np.quantile(draws, 1 - level))


def by_chance(draws: Floats, score: float) -> float:
    """Return the probability that any group reaches `score` by chance; at least one draw's share."""
    above = len(draws) - int(np.searchsorted(draws, abs(score)))
    return max(above, 1) / len(draws)
