"""Which part of two profiles did not change, and so is what everything else is measured against.

When one function takes twice as long, the shares of all others shrink although nothing happened to them. As with size
factors in Anders & Huber 2010, the common scale is what most functions agree on: each votes with the ratio of its
shares, heavier ones more, but not in proportion, since the one that changed may be the heaviest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall.tools.profiles.flamegraph_diff.noise import variances
from whystall.tools.profiles.flamegraph_diff.side import Side

ALIKE = 0.05
"""Ratios that differ by less than this are one ratio: runs of one program on one machine differ by so much."""
_SURE = 2.5
"""... or by less than so many standard errors."""
_ENOUGH = 3
_MOST = 0.6
_ALL = 0.95
_LEAST = 0.25
"""What is less of either profile is no scale for the rest, unless its weight is the same in both."""
_KNOWN = 0.35
"""Functions whose ratio is uncertain by more than this factor say nothing about it."""


@dataclass(frozen=True)
class Scale:
    """`core`: the atoms that did not change; `ratio`: of their share after to that before; `share`: what they make of
    the earlier profile. `told`: False when the functions do not agree on a ratio: then `core` is everything and the
    ratio is 1, so that only shares are compared.
    """

    core: NDArray[np.bool_]
    ratio: float
    share: float
    told: bool


def common_scale(before: Side, after: Side, function: NDArray[np.int64], hints: Sequence[float]) -> Scale:
    """The common scale of two sides. `function`: of each atom, -1: of those that are too small to be looked at.

    `hints`: ratios of shares that a function has when its weight is the same in both, as of two runs of the same work.
    """
    everything = Scale(np.ones(len(function), bool), 1.0, 1.0, told=False)
    ids, number = np.unique(function, return_inverse=True)
    member = np.zeros((len(ids), len(function)))
    member[number, np.arange(len(function))] = 1.0
    whole = np.ones(len(function))
    shares = [member @ side.weights / side.sum for side in (before, after)]
    spread = variances(before, after, member, whole)
    both = (shares[0] > 0) & (shares[1] > 0)
    safe = [np.where(both, share, 1.0) for share in shares]
    error = np.sqrt(spread[0] / safe[0] ** 2 + spread[1] / safe[1] ** 2)
    votes = np.nonzero(both & (error < _KNOWN))[0]
    if not len(votes):
        return everything
    ratio = np.log(safe[1][votes] / safe[0][votes])
    error = error[votes]
    weight = np.sqrt(np.sqrt(safe[0][votes] * safe[1][votes]))
    near = np.maximum(ALIKE, _SURE * error)
    hinted = [float(np.log(one)) for one in hints if one > 0]
    tried = np.concatenate([[0.0], hinted, ratio])
    support = (weight * (np.abs(ratio - tried[:, None]) <= near)).sum(axis=1)
    best = int(np.argmax(support))
    for row in range(1, 1 + len(hinted)):
        if support[row] >= 0.5 * support[best] and abs(hinted[row - 1]) > ALIKE:
            best = row
            break
    middle = float(tried[best])
    for _ in range(3):  # the middle of those who agree, not the one of them that had the most near it
        agree = np.abs(ratio - middle) <= np.maximum(ALIKE, 3 * error)
        if not agree.any():
            return everything
        sums = [float(safe[side][votes[agree]].sum()) for side in (0, 1)]
        middle = float(np.log(sums[1] / sums[0]))
    hinted_at = 1 <= best <= len(hinted)
    told = (
        sums[0] >= _ALL
        or hinted_at
        or (int((agree & (error < _KNOWN / 2)).sum()) >= _ENOUGH and weight[agree].sum() >= _MOST * weight.sum())
    )
    if not told or (min(sums) < _LEAST and not hinted_at):
        return everything
    core = np.isin(number, votes[agree])
    return Scale(core, float(np.exp(middle)), sums[0], told=True)
