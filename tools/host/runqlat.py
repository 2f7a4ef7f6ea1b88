"""runqlat: how long threads wait for a CPU, from being runnable to running."""

from __future__ import annotations

import polars as pl
from pydantic import Field

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import any_thread, finding, severity, window
from whystall.tools.host.common.latency import Bucket, Slot, buckets, percentile
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

# What users notice of a thread (see host_snapshot.findings).
_WAIT_PCT = 5.0
# The kernel warns when a CPU runs one task for so long although another is runnable
# (sysctl_resched_latency_warn_ms, CONFIG_SCHED_DEBUG; kernel/sched/core.c, c006fac556e40).
_LONG_MS = 100.0
_FINDINGS = 8


class Params(LiveParams):
    """Parameters of runqlat."""


class Row(Model):
    """Waits of one process, all its threads; None: not reported by the engine. `pid` None: all processes together."""

    pid: int | None
    comm: str
    threads: int | None
    count: int
    total_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    histogram: list[Bucket] = Field(default_factory=list)


class Thread(Model):
    """Waits of one thread; `window_pct`: of the window."""

    pid: int
    tid: int
    comm: str
    count: int
    total_ms: float
    max_ms: float | None
    window_pct: float


class Data(Model):
    """Longest total first."""

    rows: list[Row] = Field(default_factory=list)
    threads: list[Thread] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need("run_queue")]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the waits for a CPU, per process and thread."""
    window_ns = max(recording.manifest.window_ns, 1)
    totals, latency = recording.table("run_queue.totals"), recording.table("run_queue.latency")
    rows, threads = _rows(totals, latency), _threads(totals, window_ns)
    # The scheduler's accounting has no single waits and is what host_snapshot reads too: no independent confirmation.
    counted = latency.is_empty()
    found = _findings(threads, rows, window_ns, counted)
    return Judgement(
        findings=found + ([] if found else _normal(threads, recording, counted)),
        data=Data(rows=rows[: params.top], threads=threads[: params.top]),
        seen=sum(row.count for row in rows),
        totals={"rows": len(rows), "threads": len(threads)},
    )


def _rows(totals: pl.DataFrame, latency: pl.DataFrame) -> list[Row]:
    slots: dict[tuple[int, str], list[Slot]] = {}
    names: dict[int, str] = {}
    for r in latency.iter_rows(named=True):
        slots.setdefault(r["pid"], []).append((r["low_ns"], r["high_ns"], r["count"]))
        names[r["pid"]] = r["comm"]
    sums = {}
    for (pid,), group in totals.group_by("pid", maintain_order=True):
        known = bool((group["total_ns"] >= 0).all())
        longest = int(group["max_ns"].max() or 0)  # type: ignore[arg-type]
        main = group.filter(pl.col("tid") == pl.col("pid"))
        names.setdefault(pid, (main if main.height else group)["comm"][0])
        per_thread = bool((group["tid"] >= 0).all())
        sums[pid] = (
            group.height if per_thread else None,
            int(group["count"].sum()),
            int(group["total_ns"].sum()) / 1e6 if known else None,
            longest if longest > 0 else None,
        )
    rows = []
    for pid in {**dict.fromkeys(sums), **dict.fromkeys(slots)}:
        own = slots.get(pid, [])
        counted = sum(count for _, _, count in own)
        threads, count, total_ms, longest_ns = sums.get(pid, (None, counted, None, None))
        rows.append(
            Row(
                pid=pid if pid >= 0 else None,
                comm=names.get(pid, ""),
                threads=threads,
                count=max(count, counted),
                total_ms=total_ms,
                p50_ms=_quantile_ms(own, 0.5, longest_ns),
                p90_ms=_quantile_ms(own, 0.9, longest_ns),
                p99_ms=_quantile_ms(own, 0.99, longest_ns),
                max_ms=None if longest_ns is None else longest_ns / 1e6,
                histogram=buckets(own),
            )
        )
    return sorted(rows, key=lambda row: (-(row.total_ms or 0.0), -row.count, row.pid or 0))


def _quantile_ms(slots: list[Slot], q: float, longest_ns: int | None) -> float | None:
    found = percentile(slots, q, longest_ns)
    return None if found is None else found / 1e6


def _threads(totals: pl.DataFrame, window_ns: int) -> list[Thread]:
    """Return the threads that are reported separately, with their waiting time."""
    known = totals.filter((pl.col("tid") >= 0) & (pl.col("pid") >= 0) & (pl.col("total_ns") >= 0))
    return [
        Thread(
            pid=r["pid"],
            tid=r["tid"],
            comm=r["comm"],
            count=r["count"],
            total_ms=r["total_ns"] / 1e6,
            max_ms=r["max_ns"] / 1e6 if r["max_ns"] >= 0 else None,
            window_pct=min(100.0, 100 * r["total_ns"] / window_ns),
        )
        for r in known.sort("total_ns", "tid", descending=[True, False]).iter_rows(named=True)
    ]


def _findings(threads: list[Thread], rows: list[Row], window_ns: int, counted: bool) -> list[Finding]:
    """Return findings about threads that wait much, or once for very long."""
    alone = {row.pid: row for row in rows if row.threads == 1}
    late = [t for t in threads if t.window_pct >= _WAIT_PCT or (t.max_ms or 0.0) >= _LONG_MS]
    return [_finding(t, alone.get(t.pid), window_ns, counted) for t in late[:_FINDINGS]]


def _finding(thread: Thread, row: Row | None, window_ns: int, counted: bool) -> Finding:
    metrics: dict[str, float | None] = {"window_pct": thread.window_pct}
    if counted:
        metrics["wait_s"] = thread.total_ms / 1e3
    else:
        metrics |= {"count": thread.count, "total_ms": thread.total_ms, "max_ms": thread.max_ms}
        if row is not None:  # quantiles are per process
            metrics |= {"p50_ms": row.p50_ms, "p99_ms": row.p99_ms}
    subject = Subject(type="thread", pid=thread.pid, tid=thread.tid, comm=thread.comm)
    grade = severity(thread.window_pct) if thread.window_pct >= _WAIT_PCT else Severity.MINOR
    return finding(_kind(counted), subject, window(window_ns), metrics, grade)


def _kind(counted: bool) -> str:
    return "sched.runqueue_delay" if counted else "sched.queue_latency"


def _normal(threads: list[Thread], recording: Recording, counted: bool) -> list[Finding]:
    """Return the finding that no thread of the target waits much, if every wait was recorded."""
    target = recording.manifest.target
    per_thread = recording.table("run_queue.totals").filter((pl.col("tid") < 0) | (pl.col("total_ns") < 0)).is_empty()
    if target.everything or not per_thread or not recording.manifest.saw_everything("run_queue"):
        return []
    metrics = {"window_pct": max((t.window_pct for t in threads), default=0.0)}
    if not counted:
        metrics |= {
            "count": float(sum(t.count for t in threads)),
            "max_ms": max((t.max_ms or 0.0 for t in threads), default=0.0),
        }
    return [finding(_kind(counted), any_thread(target), window(recording.manifest.window_ns), metrics)]


TOOL = Tool(
    name="runqlat",
    title="Run queue latency",
    description="How long threads that could run wait for a CPU: p50/p90/p99/max per process, totals per thread.",
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"sched.queue_latency", "sched.runqueue_delay"}),
    cost=1.5,
)
