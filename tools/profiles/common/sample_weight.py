"""How much one sample weighs: only who knows that knows how many samples there were, and so what chance does."""

from __future__ import annotations

import numpy as np
import polars as pl

_ROUNDED = 1e-3
_MANY, _FEW, _FEW_SHARE = 50_000, 5, 0.02
"""More counts than this are samples only when so large a share of the stacks has fewer than so few."""


def one_sample(samples: pl.DataFrame, unit: str, period: float) -> float:
    """What one sample weighs, in `unit`; 0: not known, or the weights are no samples at all. `period`: what the source
    says one stands for, 0 unknown.
    """
    weights = samples["weight"].to_numpy()
    if period > 0:
        whole = weights / period
        if (np.abs(whole - np.round(whole)) < _ROUNDED).all():
            return period
        return max(period, float((weights**2).sum() / weights.sum()))  # samples of the counter do not weigh the same
    # folded stacks tell no unit: of times and of bytes, unlike of samples, hardly any stack has next to none
    few = len(weights) and float((weights < _FEW).mean()) >= _FEW_SHARE
    counts = unit == "samples" and bool((weights == np.round(weights)).all())
    return float(counts and (few or weights.sum() <= _MANY))
