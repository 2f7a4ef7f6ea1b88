"""Percentiles of Prometheus histograms, and increases of counters that may begin anew. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Percentile:
    """A percentile in seconds, interpolated in its bucket, and the bounds of the bucket; `high` None: it has none, and
    `value` is a lower bound."""

    value: float
    low: float
    high: float | None


@dataclass
class Distribution:
    """A histogram: observations, their sum (None if it is not stated), and counts up to each bound."""

    count: float = 0.0
    sum: float | None = None
    buckets: dict[float, float] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """Return the mean; None without observations."""
        return self.sum / self.count if self.sum is not None and self.count > 0 else None

    def percentile(self, share: float) -> Percentile | None:
        """Return the percentile of `share` (0 to 1), as PromQL's histogram_quantile does; None without buckets."""
        total = self.buckets.get(math.inf, 0.0)
        if total <= 0:
            return None
        wanted, low, below = share * total, 0.0, 0.0
        for bound in sorted(self.buckets):
            upto = max(self.buckets[bound], below)
            if upto >= wanted and upto > below:
                if math.isinf(bound):
                    return Percentile(low, low, None)
                value = low + (bound - low) * (wanted - below) / (upto - below)
                return Percentile(value, low, bound)
            low, below = max(bound, low), upto
        return Percentile(low, low, None)


Key = tuple[str, float]
"""Part of a metric (count, sum, bucket) and bound of its bucket (0 for others)."""


def increases(readings: Sequence[Mapping[Key, float]]) -> tuple[list[dict[Key, float]], int]:
    """Return how much a series grew between each two `readings`, and how often it began anew.

    A series begins anew (its server was restarted) if any part but the sum decreases: all its parts then count from
    zero. What a restarted server counted before it was read is lost. A part that appears later counts from zero.
    """
    grown, resets = [], 0
    for before, after in pairwise(readings):
        reset = any(after.get(key, 0.0) < value for key, value in before.items() if key[0] != "sum")
        resets += reset
        grown.append({key: max(value - (0.0 if reset else before.get(key, 0.0)), 0.0) for key, value in after.items()})
    return grown, resets


def combined(parts: Iterable[Mapping[Key, float]]) -> Distribution:
    """Return the sum of several increases as one distribution."""
    total: dict[Key, float] = {}
    for one in parts:
        for key, value in one.items():
            total[key] = total.get(key, 0.0) + value
    buckets = {bound: value for (part, bound), value in total.items() if part == "bucket"}
    count = total.get(("count", 0.0), buckets.get(math.inf, 0.0))
    return Distribution(count, total.get(("sum", 0.0)), buckets)
