"""The readings of one server's metrics in a recording: gauges over time, increases of counters and histograms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.collect.serving.catalogue import servers
from whystall.tools.host.inference_latency.distribution import Distribution, Key, combined, increases

_MAXIMA = frozenset({"kv_usage"})
"""Gauges of which the largest series counts; of others the sum."""
_PROGRESS = ("steps", "generated_tokens", "prompt_tokens", "finished", "ttft", "itl")
"""Quantities of which one grows whenever a request advances, for a server that counts as requests advance."""


@dataclass
class Readings:
    """What a server at `local` stated at the times `at_ns`. `whole`: its counters, since its start, in place of their
    increases, since there is a single reading."""

    local: str
    server: str
    pid: int
    at_ns: list[int]
    gauges: dict[str, list[float | None]] = field(default_factory=dict)
    grown: dict[str, list[Distribution]] = field(default_factory=dict)
    resets: int = 0

    @property
    def whole(self) -> bool:
        """Return whether there is a single reading."""
        return len(self.at_ns) < 2

    @property
    def seconds(self) -> float:
        """Return the time between the first and the last reading; 0 for one."""
        return (self.at_ns[-1] - self.at_ns[0]) / 1e9

    def mean(self, name: str) -> float | None:
        """Return the mean of a gauge; None if it was not stated."""
        values = [value for value in self.gauges.get(name, ()) if value is not None]
        return sum(values) / len(values) if values else None

    def most(self, name: str) -> float | None:
        """Return the largest value of a gauge; None if it was not stated."""
        return max((value for value in self.gauges.get(name, ()) if value is not None), default=None)

    def at(self, name: str, number: int) -> float:
        """Return a gauge in the reading `number`, 0 if it was not stated."""
        values = self.gauges.get(name, [])
        return (values[number] if number < len(values) else None) or 0.0

    def total(self, name: str) -> Distribution | None:
        """Return all increases of a counter or histogram; None if it was not stated."""
        parts = self.grown.get(name)
        if parts is None:
            return None
        sums = [one.sum for one in parts if one.sum is not None]
        buckets: dict[float, float] = defaultdict(float)
        for one in parts:
            for bound, value in one.buckets.items():
                buckets[bound] += value
        return Distribution(sum(one.count for one in parts), sum(sums) if sums else None, dict(buckets))

    def count(self, name: str) -> float | None:
        """Return how much a counter grew; None if it was not stated."""
        total = self.total(name)
        return total.count if total is not None else None

    def rate(self, name: str) -> float | None:
        """Return the growth of a counter per second; None if unknown."""
        grown = self.count(name)
        return grown / self.seconds if grown is not None and self.seconds > 0 else None

    def advanced(self) -> list[bool] | None:
        """Return whether any request advanced between each two readings; None if the server does not state it before
        a request ends."""
        about = servers().get(self.server)
        names = _PROGRESS if about is None or about.progress is None else about.progress
        known = [self.grown[name] for name in names if name in self.grown]
        if not known or self.whole:
            return None
        return [any(parts[i].count > 0 for parts in known) for i in range(len(self.at_ns) - 1)]

    @property
    def seldom_s(self) -> float:
        """Return for how long `advanced` may be false while requests advance, s."""
        about = servers().get(self.server)
        return about.seldom_s if about is not None else 0.0


def readings_of(values: pl.DataFrame) -> Iterator[Readings]:
    """Yield the readings of each server in the table ``serving.values``, those with most values first."""
    groups = [
        (str(local), str(server), group)
        for (local, server), group in values.group_by("local", "server", maintain_order=True)
    ]
    for local, server, group in sorted(groups, key=lambda one: -one[2].height):
        times = sorted(group["at_ns"].unique().to_list())
        found = Readings(local, server, int(group["pid"][-1]), times)
        for (quantity,), own in group.group_by("quantity", maintain_order=True):
            if own["part"][0] == "value":
                found.gauges[str(quantity)] = _gauge(own, times, largest=str(quantity) in _MAXIMA)
            else:
                found.grown[str(quantity)], resets = _grown(own, times)
                found.resets = max(found.resets, resets)
        yield found


def _gauge(own: pl.DataFrame, times: list[int], *, largest: bool) -> list[float | None]:
    value = pl.col("value").max() if largest else pl.col("value").sum()
    by_time = dict(own.group_by("at_ns").agg(value).iter_rows())
    return [by_time.get(at) for at in times]


def _grown(own: pl.DataFrame, times: list[int]) -> tuple[list[Distribution], int]:
    """Return the increases of all series between each two times; of a single time the values themselves."""
    series: dict[int, dict[int, dict[Key, float]]] = defaultdict(lambda: defaultdict(dict))
    for at, number, part, bound, value in own.select("at_ns", "series", "part", "le", "value").iter_rows():
        series[number][at][part, 0.0 if bound is None or math.isnan(bound) else bound] = value
    if len(times) < 2:
        return [combined(by_time[times[0]] for by_time in series.values())], 0
    per_span: list[list[dict[Key, float]]] = [[] for _ in times[1:]]
    resets = 0
    for by_time in series.values():
        grown, begun = increases([by_time.get(at, {}) for at in times])
        resets = max(resets, begun)
        for span, part_values in zip(per_span, grown, strict=True):
            span.append(part_values)
    return [combined(parts) for parts in per_span], resets
