"""Estimate how bursty the samples of two profiles without times are, from the scatter of what did not change.

Samples are not independent: a function that runs for ten samples in a row makes a tenth as many observations. Without
times the length of such bursts is unknown, but it shows between the profiles: the counts of all functions that did not
change scatter as much more than independent ones as bursts are long. The factor is the dispersion of a quasi-Poisson
model (Wedderburn 1974), the mean squared Pearson residual of the unchanged functions. Those that changed are excluded
by the test for several outliers of Rosner 1983 ("generalized ESD"), so that they do not count as scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from whystall.tools.stacks.tree import CallTree

Floats = NDArray[np.float64]
UNKNOWN = 20.0
"""The factor if it cannot be estimated: right for functions that run for ten samples in a row on average, 100 ms at
99 Hz."""
_LEVEL = 0.01
_LEAST = 8
"""Fewer functions than this give no estimate: its own uncertainty would hide any change."""
_COUNTED = 10
"""Least number of samples of a function, on both sides together, whose residual is nearly normal."""
_CHANGED = 3
"""At most a third of the functions may have changed: of more, nobody could say which did not."""
_MARGIN = 2.0
"""A change must exceed the widest residual of what did not change by this factor: functions have bursts of different
lengths, so that few of them may scatter more than the mean shows. With stays of 0.2 to 200 ms at 99 Hz this halves the
false changes, and still names a function that goes from 27 to 111 of 4,000 independent samples."""


@dataclass(frozen=True)
class Bursts:
    """`factor`: variance of counts relative to independent samples, at least 1; `free`: degrees of freedom of its
    estimate; `functions`: number of functions that it is estimated from, 0 if it is only assumed."""

    factor: float = UNKNOWN
    free: float = math.inf
    functions: int = 0


def bursts_between(tree: CallTree, samples: tuple[int, int]) -> Bursts:
    """Return the burstiness of the two sides of `tree`. `samples`: number of samples of each.

    Bursts may be of single functions or of whole phases, so that the scatter of subtrees is examined too, and the
    larger factor is returned.
    """
    scale = np.array(samples, np.float64) / np.maximum(tree.sums, np.finfo(float).tiny)
    found = [one for cells in _partitions(tree) if (one := _dispersion(cells * scale[:, None])) is not None]
    return max(found, key=lambda one: one.factor, default=Bursts())


def _partitions(tree: CallTree) -> Iterator[Floats]:
    """Yield the weights (sides, cells) of functions' own code, and of the outermost subtrees, if there are enough."""
    yield tree.frame_own
    for depth, level in enumerate(tree.levels[:-1]):
        above = tree.depth < depth
        cells = np.concatenate([tree.total[:, level], tree.own[:, above]], axis=1)
        if int((cells.sum(axis=0) > 0).sum()) >= 2 * _LEAST:
            yield cells
            return


def _dispersion(counts: Floats) -> Bursts | None:
    """Return the dispersion of `counts` (sides, cells) around a common ratio; None with too few cells."""
    counts = counts[:, counts.sum(axis=0) >= _COUNTED]
    left = np.ones(counts.shape[1], bool)
    count = len(left)
    if count < _LEAST:
        return None
    removed: list[int] = []
    changed = 0
    for _ in range(count // _CHANGED):
        squares = _residuals(counts, left) ** 2
        most = int(np.argmax(squares))
        free = int(left.sum()) - 2
        others = max(1.0, float(squares.sum() - squares[most]) / free)
        left[most] = False
        removed.append(most)
        if math.sqrt(squares[most] / others) > _critical(free, free + 2):
            changed = len(removed)
    left[removed[changed:]] = True
    residuals = _residuals(counts, left)
    free = int(left.sum()) - 1
    widest = _MARGIN * float(np.abs(residuals).max()) / _critical(free - 1, free + 1)
    factor = max(1.0, float((residuals**2).sum()) / free, widest**2)
    return Bursts(_of_both_signs(counts, left, removed[:changed], factor), free, free + 1)


def _of_both_signs(counts: Floats, left: NDArray[np.bool_], changed: list[int], factor: float) -> float:
    """Return the factor if functions that seem to have changed did so in both directions.

    Bursts make as many counts too large as too small (the symmetry that Barber & Candes 2015 estimate false discoveries
    by), while one cause changes most functions one way: those of the less changed direction count as scatter.
    """
    ratio = counts[1, left].sum() / counts[:, left].sum()
    both = counts[:, changed].sum(axis=0)
    found = (counts[1, changed] - ratio * both) / np.sqrt(np.maximum(both * ratio * (1 - ratio), 1e-12))
    signs = [float((found[side] ** 2).sum()) for side in (found > 0, found < 0)]
    number = int(left.sum()) - 1 + int(min((found > 0).sum(), (found < 0).sum()))
    return min(factor + min(signs) / max(number, 1), max(factor, UNKNOWN))


def _residuals(counts: Floats, left: NDArray[np.bool_]) -> Floats:
    """Return the Pearson residuals of the cells `left`, whose ratio is common; 0 of the others."""
    one, other = (float(side[left].sum()) for side in counts)
    if min(one, other) <= 0:
        return np.zeros(counts.shape[1])
    both = counts.sum(axis=0)
    share = other / (one + other)
    found = (counts[1] - both * share) / np.sqrt(both * share * (1 - share))
    return np.where(left, found, 0.0)


def _critical(free: float, tests: int) -> float:
    """Return the absolute t that the largest of `tests` exceeds with probability `_LEVEL` (normal approximation of
    Wallace 1959, within 1 %)."""
    normal = NormalDist().inv_cdf(1 - _LEVEL / (2 * tests)) * (8 * free + 3) / (8 * free + 1)
    return math.sqrt(free * math.expm1(normal**2 / free))
