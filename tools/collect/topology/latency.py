"""Latencies of requests on a node: metrics of an inference server in Prometheus' text format, or a small JSON file.

Histograms and counters are sums since the start of the server, so that the figures are of that time.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HISTOGRAMS = {
    "vllm:e2e_request_latency_seconds": "vllm",
    "tgi_request_duration": "tgi",
    "sglang:e2e_request_latency_seconds": "sglang",
}
"""Histograms of the time of whole requests in seconds, by name:
https://docs.vllm.ai/en/v0.9.1/usage/metrics.html,
https://huggingface.co/docs/text-generation-inference/reference/metrics,
https://docs.sglang.io/references/production_metrics.html
"""
_TRITON = ("nv_inference_request_duration_us", "nv_inference_request_success")
# sglang:e2e_request_latency_seconds_bucket{le="0.5",model_name="llama"} 6.0
_LINE = re.compile(
    r'([A-Za-z_:][\w:]{0,200})(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*"){0,4000})\})?[ \t]+(\S{1,40})(?:[ \t]+\S+)?'
)
_BOUND = re.compile(r'(?:^|,)\s*le="([^"]{1,40})"')
_MOST_LINES, _LONGEST = 200_000, 8_192
_MOST_US = (1 << 31) - 1


@dataclass(frozen=True)
class NodeLatency:
    """Latency of `requests` on a node, median and 90th percentile in microseconds. Of Triton's counters (`triton`)
    only the mean is known: it stands for both."""

    source: str
    requests: int
    p50_us: int
    p90_us: int


def parse(text: str) -> list[NodeLatency]:
    """Return what metrics in Prometheus' text format state, models taken together; empty if they are of no server
    that is known here."""
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    sums: dict[str, float] = defaultdict(float)
    for line in text.splitlines()[:_MOST_LINES]:
        if line.startswith("#") or len(line) > _LONGEST or (found := _LINE.fullmatch(line.strip())) is None:
            continue
        name, labels, value = found[1], found[2] or "", _number(found[3])
        if value is None or value < 0:
            continue
        base = name.removesuffix("_bucket")
        if base != name and base in HISTOGRAMS and (bound := _BOUND.search(labels)) is not None:
            if (upper := _number(bound[1], infinite=True)) is not None:
                buckets[base][upper] += value
        elif name in _TRITON:
            sums[name] += value
    found_ = [one for name, of in buckets.items() if (one := _of_histogram(HISTOGRAMS[name], of)) is not None]
    total, count = (sums[name] for name in _TRITON)
    if count >= 1:
        mean = min(round(total / count), _MOST_US)
        found_.append(NodeLatency("triton", min(int(count), _MOST_US), mean, mean))
    return found_


def of_json(content: Mapping[str, Any]) -> NodeLatency | None:
    """Return the latency of ``{"latency_ms": {"p50": 120, "p90": 300, "requests": 1000}}``; None if it is another."""
    given = content.get("latency_ms")
    if not isinstance(given, dict):
        return None
    values = [given.get(name) for name in ("requests", "p50", "p90")]
    if any(isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one < 1e9 for one in values):
        return None
    requests, p50, p90 = (float(one) for one in values if one is not None)
    return NodeLatency("stated", int(requests), *(min(round(one * 1000), _MOST_US) for one in (p50, p90)))


def _of_histogram(source: str, buckets: Mapping[float, float]) -> NodeLatency | None:
    ordered = sorted(buckets.items())
    count = ordered[-1][1]
    if count < 1 or not math.isinf(ordered[-1][0]) or len(ordered) < 2:
        return None
    p50, p90 = (min(round(_quantile(ordered, share) * 1e6), _MOST_US) for share in (0.5, 0.9))
    return NodeLatency(source, min(int(count), _MOST_US), p50, p90)


def _quantile(ordered: Iterable[tuple[float, float]], share: float) -> float:
    """Return a quantile as Prometheus' ``histogram_quantile`` does: linear within a bucket, and the largest finite
    bound in the last one."""
    rows = list(ordered)
    wanted = share * rows[-1][1]
    below, before = 0.0, 0.0
    for upper, count in rows:
        if count >= wanted:
            if math.isinf(upper):
                return below
            return below + (upper - below) * (wanted - before) / max(count - before, 1e-12)
        below, before = upper, max(count, before)
    return below


def _number(text: str, *, infinite: bool = False) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) or (infinite and value == math.inf) else None
