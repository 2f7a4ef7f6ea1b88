"""Judge the latency of requests on each node beside the other nodes."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from whystall.tools.host.cluster_topology.data import LatencyRow

_LEAST_NODES, _LEAST_REQUESTS = 3, 100
HIGH = 1.5
"""A node's 90th percentile this many times the median of the others' is high: the usual buckets of such histograms are
up to twice as wide as the one below, and a difference within one is interpolated."""


def compared(rows: Iterable[dict[str, Any]]) -> list[LatencyRow]:
    """Return the latencies of the table ``topology.latency``, the highest beside its peers first. Nodes of one kind of
    server are compared if three or more have 100 requests; else `peers_ms` is None."""
    merged = {(row["host"], row["source"]): row for row in rows}
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in merged.values():
        kinds.setdefault(row["source"], []).append(row)
    found = []
    for of in kinds.values():
        enough = [row for row in of if row["requests"] >= _LEAST_REQUESTS]
        for row in of:
            others = [other["p90_us"] for other in enough if other is not row]
            peers = median(others) if len(enough) >= _LEAST_NODES and row in enough else None
            ratio = row["p90_us"] / peers if peers else None
            found.append(
                LatencyRow(
                    host=row["host"],
                    source=row["source"],
                    requests=row["requests"],
                    p50_ms=row["p50_us"] / 1000,
                    p90_ms=row["p90_us"] / 1000,
                    peers_ms=None if peers is None else peers / 1000,
                    ratio=ratio,
                    high=ratio is not None and ratio >= HIGH,
                )
            )
    return sorted(found, key=lambda row: (-(row.ratio or 0.0), row.host))
