"""syscall_time: kernel time of a process by system call, with on-CPU time and waiting separated; calls that fail."""

from __future__ import annotations

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import SyscallOptions
from whystall.tools.contract.findings import Finding, Interval, Polarity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.failed_calls import FailureRow, failed_calls, failure_findings
from whystall.tools.host.common.findings import any_thread, finding, severity, window
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

# From this share of a thread's time on CPU inside one system call, the call is a bottleneck.
ABNORMAL_PCT = 5.0
# A thread that spins here waits for another one (OpenBLAS and OpenMP do between parallel parts): calling less often
# would not save this CPU time.
SPIN_SYSCALLS = frozenset({"sched_yield"})


_TIMES = ("wall", "oncpu", "blocked", "sleep", "runnable", "max")


class Params(LiveParams):
    """Parameters of syscall_time. A target is needed: without one only file operations are counted."""


class Row(Model):
    """One system call of one thread; the four parts add up to its wall time."""

    pid: int
    tid: int
    comm: str
    syscall: str
    count: int
    wall_ms: float
    oncpu_ms: float
    blocked_ms: float
    sleep_ms: float
    runnable_ms: float
    max_ms: float
    oncpu_pct: float = Field(description="share of the window")


class Data(Model):
    """Most time on CPU first; most failures first."""

    rows: list[Row] = Field(default_factory=list)
    failures: list[FailureRow] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need("syscalls", SyscallOptions())]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the kernel time by thread and system call."""
    window_ns = max(recording.manifest.window_ns, 1)
    totals = recording.table("syscalls.totals").sort("oncpu_ns", descending=True)
    rows = [
        Row(
            pid=r["pid"],
            tid=r["tid"],
            comm=r["comm"],
            syscall=r["syscall"],
            count=r["count"],
            **{f"{part}_ms": r[f"{part}_ns"] / 1e6 for part in _TIMES},
            oncpu_pct=100 * r["oncpu_ns"] / window_ns,
        )
        for r in totals.iter_rows(named=True)
    ]
    intervals = _intervals(recording)
    findings = [
        _finding(row, intervals.get((row.tid, row.syscall), (0, window_ns)))
        for row in rows
        if row.oncpu_pct >= ABNORMAL_PCT
    ]
    manifest = recording.manifest
    quiet = all(f.polarity is Polarity.NORMAL for f in findings)
    if quiet and manifest.saw_everything("syscalls") and not manifest.target.everything:
        findings.append(_normal(recording, [r for r in rows if r.syscall not in SPIN_SYSCALLS]))
    failures = failed_calls(recording)
    return Judgement(
        findings=[*findings, *failure_findings(recording, failures)],
        data=Data(rows=rows[: params.top], failures=failures[: params.top]),
        seen=int(totals["count"].sum()),
        totals={"rows": len(rows), "failures": len(failures)},
    )


def _intervals(recording: Recording) -> dict[tuple[int, str], tuple[int, int]]:
    """Return when the slow calls of a thread and system call happened; short calls have no recorded times."""
    spans = (
        recording.table("syscalls.calls")
        .group_by("tid", "syscall")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )
    return {(r["tid"], r["syscall"]): (r["start_ns"], r["end_ns"]) for r in spans.iter_rows(named=True)}


def _finding(row: Row, interval: tuple[int, int]) -> Finding:
    return finding(
        "syscall.cpu_time",
        Subject(type="thread", pid=row.pid, tid=row.tid, comm=row.comm),
        Interval(start_ns=interval[0], end_ns=interval[1]),
        _metrics(row),
        severity(row.oncpu_pct) if row.syscall not in SPIN_SYSCALLS else None,
        {"syscall": row.syscall},
    )


def _normal(recording: Recording, rows: list[Row]) -> Finding:
    """Return the normal finding: the largest user of kernel time as the measure."""
    return finding(
        "syscall.cpu_time",
        any_thread(recording.manifest.target),
        window(recording.manifest.window_ns),
        _metrics(rows[0]) if rows else {"count": 0, "oncpu_s": 0, "window_pct": 0},
        attributes={"syscall": rows[0].syscall} if rows else {},
    )


def _metrics(row: Row) -> dict[str, float]:
    return {
        "count": row.count,
        "oncpu_s": row.oncpu_ms / 1e3,
        "wall_s": row.wall_ms / 1e3,
        "max_ms": row.max_ms,
        "mean_us": 1e3 * row.oncpu_ms / max(row.count, 1),
        "window_pct": row.oncpu_pct,
    }


TOOL = Tool(
    name="syscall_time",
    title="Kernel time by system call",
    description=(
        "Time a process spends inside each system call, per thread: on CPU in the kernel apart from blocked, "
        "sleeping and runnable. Finds stalls that are kernel CPU time, and calls that fail: full or broken storage, "
        "too many open files, peers that refuse or reset."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"syscall.cpu_time", "syscall.failed"}),
    cost=3.0,
)
