"""Find the unchanged part of two profiles, the reference for all changes.

If one function takes twice as long, the shares of all others shrink although they did not change. As with size factors
in Anders & Huber 2010, the common scale is the ratio of shares that most functions agree on, weighted by their size but
less than in proportion, since the changed one may be the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall.tools.profiles.flamegraph_diff.noise import variances
from whystall.tools.profiles.flamegraph_diff.side import Side

ALIKE = 0.05
"""Ratios that differ by less are equal: runs of one program on one machine differ by this much."""
_SURE = 2.5
"""... or by fewer standard errors than this."""
_ENOUGH = 3
_MOST = 0.6
_ALL = 0.95
_LEAST = 0.25
"""Least share of the unchanged part in either profile, unless its weight is the same in both."""
_KNOWN = 0.35
"""Functions whose ratio is more uncertain than this are ignored."""


@dataclass(frozen=True)
class Scale:
    """`core`: the unchanged atoms; `ratio`: their share after to before; `share`: of the earlier profile.

    `found`: False if the functions do not agree on a ratio: then `core` is everything and the ratio 1, so that only
    shares are compared.
    """

    core: NDArray[np.bool_]
    ratio: float
    share: float
    found: bool


def common_scale(before: Side, after: Side, function: NDArray[np.int64], hints: Sequence[float]) -> Scale:
    """Return the common scale of two sides. `function`: of each atom; -1: too small.

    `hints`: ratios of shares of functions whose weight is the same in both, as in two runs of the same work.
    """
    everything = Scale(np.ones(len(function), bool), 1.0, 1.0, found=False)
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
    for _ in range(3):  # refine to the mean of the functions that agree
        agree = np.abs(ratio - middle) <= np.maximum(ALIKE, 3 * error)
        if not agree.any():
            return everything
        sums = [float(safe[side][votes[agree]].sum()) for side in (0, 1)]
        middle = float(np.log(sums[1] / sums[0]))
    hinted_at = 1 <= best <= len(hinted)
    enough = (
        sums[0] >= _ALL
        or hinted_at
        or (int((agree & (error < _KNOWN / 2)).sum()) >= _ENOUGH and weight[agree].sum() >= _MOST * weight.sum())
    )
    if not enough or (min(sums) < _LEAST and not hinted_at):
        return everything
    core = np.isin(number, votes[agree])
    return Scale(core, float(np.exp(middle)), sums[0], found=True)
