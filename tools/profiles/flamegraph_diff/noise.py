"""How far each group of two sides lies apart, and how far chance alone takes the furthest of all groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from whystall.tools.profiles.flamegraph_diff.side import Floats, Side

LEVEL = 0.01
"""The chance that any frame at all is reported when nothing changed."""
_DRAWS = 4000
_ROUNDING = 1e-9
_SMALL = 1e-4
"""Of the share: a change that every block shows to the same nanosecond is still no more certain than this."""


@dataclass(frozen=True)
class Apart:
    """Of each group: `change`, ratio to the base after less that before, its `error`, and weights of both sides."""

    change: Floats
    error: Floats
    before: Floats
    after: Floats
    free: float

    @property
    def score(self) -> Floats:
        """The change in standard errors."""
        return self.change / self.error


def pooled(before: Side, after: Side) -> tuple[Side, Side]:
    """The sides, what is counted in one of them being possible in the other: seen never does not mean certain."""
    shares = [side.weights / side.sum for side in (before, after)]
    made = []
    for side, mine, other in ((before, 0, 1), (after, 1, 0)):
        mean = side.counting.sum() / side.sum
        counts = ((before, after)[mine].samples, (before, after)[other].samples)
        common = (counts[0] * shares[mine] + counts[1] * shares[other]) / max(sum(counts), 1)
        made.append(replace(side, counting=np.maximum(side.counting, common * side.sum * mean)))
    return made[0], made[1]


def variances(before: Side, after: Side, member: Floats, base: Floats) -> tuple[Floats, Floats]:
    """Of the ratios of the groups' weights to that of the atoms `base`, on each side.

    Bursts that one side shows are possible on the other, which may have seen none of them: how many times its variance
    is that of counting is taken from the side where that is more. A burst has more samples where more are taken: of
    its thread, or of all threads when they do the same at once.
    """
    sides = (before, after)
    told = [side.variance(member, base) for side in sides]
    made = []
    for mine, other in ((0, 1), (1, 0)):
        counted, spread = told[mine]
        theirs = told[other][1]
        if spread is None:
            made.append(counted)
            continue
        if sides[mine].traced:  # it shows all that happened
            made.append(spread)
            continue
        variance = np.maximum(spread, counted)
        if theirs is not None and not sides[other].traced:
            counts = told[other][0]
            # of what is all there is, counting has no variance, and what is left of it is rounding
            some = counts > _ROUNDING * counts.max(initial=0.0)
            times = np.where(some, theirs / np.where(some, counts, 1.0), 1.0)
            bursts = np.maximum(times - 1, 0.0) * _more_often(sides[mine], sides[other])
            variance = np.maximum(variance, (1 + bursts) * counted)
        made.append(variance)
    return made[0], made[1]


def _more_often(mine: Side, other: Side) -> float:
    """How many times as many samples a burst has on the side `mine`."""
    rates = [max(side.samples, 1) / max(side.span_ns, 1.0) for side in (mine, other)]
    return rates[0] / rates[1] * max(1.0, other.threads / mine.threads)


def apart(before: Side, after: Side, member: Floats, base: Floats) -> Apart:
    """The groups `member` (rows) of both sides, each relative to the atoms `base` of its side."""
    sides = (before, after)
    sums = [member @ side.weights for side in sides]
    ratios = [mine / float(base @ side.weights) for mine, side in zip(sums, sides, strict=True)]
    variance = variances(before, after, member, base)
    error = np.sqrt(variance[0] + variance[1]) + _SMALL * np.maximum(ratios[0], ratios[1]) + 1e-12
    known = [(float(mine.sum()), side.free) for mine, side in zip(variance, sides, strict=True)]
    parts = sum(own**2 / free for own, free in known)
    free = sum(own for own, _ in known) ** 2 / parts if parts > 0 else np.inf
    return Apart(ratios[1] - ratios[0], error, sums[0], sums[1], max(free, 1.0))


def furthest(before: Side, after: Side, member: Floats, base: Floats, free: float) -> Floats:
    """Draws of the largest absolute score of all groups when nothing changed, ascending.

    Groups that share samples move together: their correlation is that of counting. Scores have the tails of Student's
    t with `free` degrees of freedom.
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
    """The score that chance exceeds with the probability `level`."""
    return float(np.quantile(draws, 1 - level))


def by_chance(draws: Floats, score: float) -> float:
    """The probability that chance takes any group as far as `score`; no less than the draws can tell."""
    above = len(draws) - int(np.searchsorted(draws, abs(score)))
    return max(above, 1) / len(draws)
