"""Compute quantiles of latencies: exact from values, interpolated from histograms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from whystall.tools.contract.result import Model


def quantile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank quantile `q` (0 to 1) of `values`; 0.0 if empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))] if ordered else 0.0


Slot = tuple[int, int, int]
"""A histogram slot: low (inclusive), high (exclusive), count."""


def slot_quantile(slots: Iterable[Slot], q: float) -> float:
    """Return quantile `q` of a histogram, interpolated within its slot; 0.0 if empty."""
    ordered = sorted(s for s in slots if s[2] > 0)
    rank = q * sum(count for _, _, count in ordered)
    for low, high, count in ordered:
        if rank <= count:
            return low + (high - low) * rank / count
        rank -= count
    return float(ordered[-1][1]) if ordered else 0.0


def log2_histogram(slots: Iterable[Slot]) -> list[Slot]:
    """Return the counts in powers of two, from the first to the last occupied one."""
    counts: dict[int, int] = {}
    for low, _, count in slots:
        power = max(low, 1).bit_length() - 1
        counts[power] = counts.get(power, 0) + count
    if not counts:
        return []
    return [(1 << p, 2 << p, counts.get(p, 0)) for p in range(min(counts), max(counts) + 1)]


class Bucket(Model):
    """Number of times with `low_us` <= time < `high_us`."""

    low_us: float
    high_us: float
    count: int


def buckets(slots: Iterable[Slot]) -> list[Bucket]:
    """Return the `log2_histogram` of slots in nanoseconds as buckets in microseconds."""
    return [Bucket(low_us=low / 1e3, high_us=high / 1e3, count=count) for low, high, count in log2_histogram(slots)]


def percentile(slots: Sequence[Slot], q: float, longest: float | None) -> float | None:
    """Return quantile `q` of a histogram, at most `longest` if that is known; None if empty."""
    if not slots:
        return None
    found = slot_quantile(slots, q)
    return found if longest is None else min(found, longest)
