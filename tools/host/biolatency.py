"""biolatency: latency of block I/O per disk and operation, with queue time and device time separated."""

from __future__ import annotations

from typing import Any

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import BlockOptions
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.latency import Bucket, Slot, buckets, percentile, quantile
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

# A 7200 rpm disk needs about 13 ms for a seek and half a turn, a flash device well under 1 ms. A median of twice the
# disk's time, or one request in a hundred over a quarter of a second, is slow for both.
_SLOW_P50_MS = 25.0
_SLOW_P99_MS = 250.0
_MIN_COUNT = 5
_STREAM = 50e6
# Age of a request in flight; no healthy device keeps one that long.
_STUCK_MS = 1000.0


class Params(LiveParams):
    """Parameters of biolatency. Block I/O is counted on the whole host, as the kernel writes back for processes."""


class Row(Model):
    """One operation on one disk. `queue_*`: insert to issue; the others: issue to completion. Milliseconds.

    None: not reported by the engine (percentiles need histograms; some engines report neither the operation, which is
    then empty, nor single requests).
    """

    device: str
    operation: str
    count: int
    bytes: int | None
    total_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    queue_p50_ms: float | None
    queue_p99_ms: float | None
    queue_pct: float | None = Field(description="share of the total latency spent queued")
    device_histogram: list[Bucket]
    queue_histogram: list[Bucket]


class Request(Model):
    """One slow request, ms. `comm` queued it: a kernel worker for buffered writes. `in_flight`: not completed when the
    window ended; `latency_ms` is its age then."""

    at_ms: float
    device: str
    operation: str
    bytes: int
    sector: int
    pid: int
    comm: str
    queue_ms: float
    latency_ms: float
    in_flight: bool


class Data(Model):
    """By total time, largest first; `slow`: the slowest requests."""

    rows: list[Row] = Field(default_factory=list)
    slow: list[Request] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need("block", BlockOptions())]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the latency per device and operation."""
    slots: dict[tuple[str, str, str], list[Slot]] = {}
    for r in recording.table("block.latency").iter_rows(named=True):
        slots.setdefault((r["device"], r["operation"], r["phase"]), []).append((r["low_ns"], r["high_ns"], r["count"]))
    totals = recording.table("block.totals").sort(pl.col("queue_ns") + pl.col("device_ns"), descending=True)
    rows = []
    for r in totals.iter_rows(named=True):
        device = slots.get((r["device"], r["operation"], "device"), [])
        queue = slots.get((r["device"], r["operation"], "queue"), [])
        longest = r["max_ns"] if r["max_ns"] >= 0 else None
        times = [t for t in (r["queue_ns"], r["device_ns"]) if t >= 0]
        rows.append(
            Row(
                device=r["device"],
                operation=r["operation"],
                count=r["count"],
                bytes=r["bytes"] if r["bytes"] >= 0 else None,
                total_ms=sum(times) / 1e6 if times else _about_ms(device),
                p50_ms=_percentile_ms(device, 0.5, longest),
                p90_ms=_percentile_ms(device, 0.9, longest),
                p99_ms=_percentile_ms(device, 0.99, longest),
                max_ms=None if longest is None else longest / 1e6,
                queue_p50_ms=_percentile_ms(queue, 0.5, longest),
                queue_p99_ms=_percentile_ms(queue, 0.99, longest),
                queue_pct=100 * r["queue_ns"] / max(sum(times), 1) if len(times) == 2 else None,
                device_histogram=buckets(device),
                queue_histogram=buckets(queue),
            )
        )
    rows.sort(key=lambda row: -(row.total_ms or 0.0))
    slow = recording.table("block.slow").sort(pl.col("end_ns") - pl.col("start_ns"), descending=True)
    requests = [_request(r) for r in slow.iter_rows(named=True)]
    stuck = [r for r in requests if r.in_flight and r.latency_ms >= _STUCK_MS]
    found = [_finding(row, recording.manifest.window_ns) for row in rows] + _stuck(stuck, recording.manifest.window_ns)
    no_requests = finding(
        "block.slow_io", Subject(type="device"), window(recording.manifest.window_ns), {"count": 0, "total_ms": 0}
    )
    found = found or [no_requests]
    if not recording.manifest.saw_everything("block"):  # what was missed may have been slow
        found = [f for f in found if f.polarity is Polarity.ABNORMAL]
    return Judgement(
        findings=found,
        data=Data(rows=rows[: params.top], slow=requests[: params.top]),
        seen=int(totals["count"].sum()) + len(stuck),
        totals={"rows": len(rows), "slow": len(requests)},
        not_seen=[("no_block_layer", "")],
    )


def _percentile_ms(slots: list[Slot], q: float, longest_ns: int | None) -> float | None:
    found = percentile(slots, q, longest_ns)
    return None if found is None else found / 1e6


def _about_ms(slots: list[Slot]) -> float | None:
    """Return a lower bound of the total from a histogram, if that is all there is."""
    return sum(low * count for low, _, count in slots) / 1e6 if slots else None


def _request(r: dict[str, Any]) -> Request:
    queued = (r["issue_ns"] or r["end_ns"]) - r["start_ns"]
    return Request(
        at_ms=r["start_ns"] / 1e6,
        **{name: r[name] for name in ("device", "operation", "bytes", "sector", "pid", "comm", "in_flight")},
        queue_ms=queued / 1e6,
        latency_ms=(r["end_ns"] - r["start_ns"]) / 1e6,
    )


def _stuck(requests: list[Request], window_ns: int) -> list[Finding]:
    """Return findings about devices with requests that do not complete."""
    devices: dict[str, list[Request]] = {}
    for request in requests:
        devices.setdefault(request.device, []).append(request)
    return [
        finding(
            "block.slow_io",
            Subject(type="device", device=device),
            Interval(start_ns=int(min(r.at_ms for r in group) * 1e6), end_ns=window_ns),
            {
                "count": len(group),
                "total_ms": sum(r.latency_ms for r in group),
                "p50_ms": quantile([r.latency_ms for r in group], 0.5),
                "max_ms": max(r.latency_ms for r in group),
                "bytes": sum(r.bytes for r in group),
            },
            Severity.CRITICAL,
            {"operation": "+".join(sorted({r.operation for r in group})), "in_flight": "yes"},
        )
        for device, group in devices.items()
    ]


def _slow(row: Row) -> bool:
    """Return whether the median or the tail is slow, or the mean if only totals are known.

    Large requests queued together wait for each other: as long as each gets `_STREAM` bytes per second, the writer's
    queue is long and the device fast.
    """
    if row.count < _MIN_COUNT or row.total_ms is None or row.bytes is None:
        return False  # too few, or a slow device cannot be distinguished from a long queue
    if row.bytes / max(row.total_ms / 1e3, 1e-9) >= _STREAM:
        return False
    if row.p50_ms is None or row.p99_ms is None:
        return row.total_ms / row.count >= _SLOW_P50_MS
    return row.p50_ms + (row.queue_p50_ms or 0) >= _SLOW_P50_MS or row.p99_ms + (row.queue_p99_ms or 0) >= _SLOW_P99_MS


def _finding(row: Row, window_ns: int) -> Finding:
    names = ("count", "total_ms", "p50_ms", "p99_ms", "max_ms", "queue_pct", "queue_p99_ms", "bytes")
    return finding(
        "block.slow_io",
        Subject(type="device", device=row.device),
        window(window_ns),
        {name: getattr(row, name) for name in names},
        Severity.MAJOR if _slow(row) else None,
        {"operation": row.operation} if row.operation else {},
    )


TOOL = Tool(
    name="biolatency",
    title="Block I/O latency",
    description=(
        "Latency of block I/O per disk and operation (read, write, sync, flush, discard) as log2 histograms with "
        "p50/p90/p99/max; time queued apart from time in the device."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"block.slow_io"}),
    cost=2.0,
)
