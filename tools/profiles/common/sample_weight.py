"""Estimate the weight of one sample, from which the number of samples and confidence bounds follow."""

from __future__ import annotations

import numpy as np
import polars as pl

_ROUNDED = 1e-3
_MANY, _FEW, _FEW_SHARE = 50_000, 5, 0.02
"""More than `_MANY` counts are samples only if at least `_FEW_SHARE` of the stacks have fewer than `_FEW`."""


def one_sample(samples: pl.DataFrame, unit: str, period: float) -> float:
    """Return the weight of one sample in `unit`; 0 if unknown or the weights are not samples.

    `period`: the weight of a sample according to the source, 0 unknown.
    """
    weights = samples["weight"].to_numpy()
    if period > 0:
        whole = weights / period
        if (np.abs(whole - np.round(whole)) < _ROUNDED).all():
            return period
        return max(period, float((weights**2).sum() / weights.sum()))  # samples of the counter do not weigh the same
    # folded stacks have no unit: unlike counts of samples, times and bytes are seldom near zero
    few = len(weights) and float((weights < _FEW).mean()) >= _FEW_SHARE
    counts = unit == "samples" and bool((weights == np.round(weights)).all())
    return float(counts and (few or weights.sum() <= _MANY))
