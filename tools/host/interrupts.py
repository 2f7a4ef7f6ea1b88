"""interrupts: CPU time of interrupt and softirq handlers, per CPU and as taken from a target's threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

# What users notice of a thread (see host_snapshot.findings); each handler with a fifth of the loss is reported.
_STEAL_PCT = 5.0
_NAMED = 0.2
# A CPU that spends a fifth of its time in handlers slows down whatever is pinned to it by a fifth, and with it all
# ranks of a synchronous job.
_LOAD_PCT = 20.0
_QUIET_PCT = 5.0
# Assumed cost of handlers that are counted but not timed (on x86 the local timer and IPIs): entry, exit, short handler.
_UNTIMED_NS = 2_000


class Params(LiveParams):
    """Parameters of interrupts. Handlers are timed on the whole host; the target is what loses time to them."""


class Row(Model):
    """One handler. `cpu`: the CPU on which it takes most, `cpu_pct` of that CPU. None: counted, not timed."""

    kind: str
    name: str
    count: int
    event_rate: float
    cpu: int | None
    cpu_pct: float | None
    total_ms: float | None
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    histogram: list[Bucket] = Field(default_factory=list)


class CpuRow(Model):
    """One CPU. Softirq time includes interrupts within it. `account_pct`: the kernel's own accounting, in ticks."""

    cpu: int
    hardirq_pct: float | None
    softirq_pct: float | None
    account_pct: float | None
    hardirq_rate: float
    softirq_rate: float


class Stolen(Model):
    """Time one handler took from one thread of the target. `in_call_ms`: during a system call of the thread, where a
    softirq may be the thread's own work."""

    pid: int
    tid: int
    comm: str
    interrupt: str
    count: int
    total_ms: float
    max_ms: float
    in_call_ms: float
    window_pct: float


class Data(Model):
    """Longest time first."""

    rows: list[Row] = Field(default_factory=list)
    cpus: list[CpuRow] = Field(default_factory=list)
    stolen: list[Stolen] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need("interrupts")]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge handlers per CPU and, with a target, per thread."""
    window_ns = max(recording.manifest.window_ns, 1)
    totals = recording.table("interrupts.totals")
    rows = _rows(totals, recording.table("interrupts.latency"), window_ns)
    cpus = _cpus(totals, recording.tables().get("interrupts.cpus", pl.DataFrame()), window_ns)
    stolen = _stolen(recording.tables().get("interrupts.stolen", pl.DataFrame()), window_ns)
    loads = _load(totals, cpus, window_ns)
    quiet = recording.manifest.saw_everything("interrupts") and bool(cpus) and _quiet(totals, cpus, window_ns)
    if quiet:
        most = {"cpu_pct": max(_least(c) or 0.0 for c in cpus)}
        loads.append(finding("irq.load", Subject(type="host"), window(recording.manifest.window_ns), most))
    return Judgement(
        findings=[*_steals(stolen, recording, quiet), *loads],
        data=Data(rows=rows[: params.top], cpus=cpus[: params.top], stolen=stolen[: params.top]),
        seen=int(totals["count"].sum()),
        totals={"rows": len(rows), "cpus": len(cpus), "stolen": len(stolen)},
    )


def label(kind: str, name: str) -> str:
    """Return a handler's short name as in host_bound: ``irq eth0``, ``softirq NET_RX``."""
    return f"{'softirq' if kind == 'softirq' else 'irq'} {name}".strip()


def _rows(totals: pl.DataFrame, latency: pl.DataFrame, window_ns: int) -> list[Row]:
    slots: dict[tuple[str, str], list[Slot]] = {}
    for r in latency.iter_rows(named=True):
        slots.setdefault((r["kind"], r["name"]), []).append((r["low_ns"], r["high_ns"], r["count"]))
    rows = []
    for (kind, name), group in totals.group_by("kind", "name", maintain_order=True):
        worst = group.sort("total_ns", "count", descending=True).row(0, named=True)
        timed = bool((group["total_ns"] >= 0).all())
        longest = int(group["max_ns"].max() or 0)  # type: ignore[arg-type]
        own = slots.get((str(kind), str(name)), [])
        count = int(group["count"].sum())

        def at(q: float, own: list[Slot] = own, longest: int = longest) -> float | None:
            found = percentile(own, q, longest if longest > 0 else None)
            return None if found is None else found / 1e3

        rows.append(
            Row(
                kind=str(kind),
                name=str(name),
                count=count,
                event_rate=count * 1e9 / window_ns,
                cpu=worst["cpu"] if worst["cpu"] >= 0 else None,
                cpu_pct=min(100.0, 100 * worst["total_ns"] / window_ns) if timed and worst["cpu"] >= 0 else None,
                total_ms=int(group["total_ns"].sum()) / 1e6 if timed else None,
                p50_us=at(0.5),
                p99_us=at(0.99),
                max_us=longest / 1e3 if longest > 0 else None,
                histogram=buckets(own),
            )
        )
    return sorted(rows, key=lambda row: (-(row.total_ms or 0.0), -row.count, row.name))


def _cpus(totals: pl.DataFrame, account: pl.DataFrame, window_ns: int) -> list[CpuRow]:
    """Return the CPUs that are reported separately, most handler time first."""
    accounted = {r["cpu"]: r["hardirq_ns"] + r["softirq_ns"] for r in account.iter_rows(named=True)}
    found = []
    for cpu in sorted({*totals.filter(pl.col("cpu") >= 0)["cpu"].to_list(), *accounted}):
        own = totals.filter(pl.col("cpu") == cpu)
        hard, soft = (own.filter(pl.col("kind") == kind) for kind in ("hardirq", "softirq"))
        timed = bool((soft["total_ns"] >= 0).all()) and bool(own.height)
        found.append(
            CpuRow(
                cpu=cpu,
                hardirq_pct=_pct(hard.filter(pl.col("total_ns") > 0), window_ns) if timed else None,
                softirq_pct=_pct(soft, window_ns) if timed else None,
                account_pct=min(100.0, 100 * accounted[cpu] / window_ns) if cpu in accounted else None,
                hardirq_rate=int(hard["count"].sum()) * 1e9 / window_ns,
                softirq_rate=int(soft["count"].sum()) * 1e9 / window_ns,
            )
        )
    return sorted(found, key=lambda c: (-(_least(c) or 0.0), -c.softirq_rate - c.hardirq_rate, c.cpu))


def _pct(group: pl.DataFrame, window_ns: int) -> float:
    return min(100.0, 100 * int(group["total_ns"].sum()) / window_ns)


def _least(cpu: CpuRow) -> float | None:
    """Return a lower bound of the handlers' share of a CPU (softirqs contain interrupts), else the kernel's account."""
    if cpu.softirq_pct is None or cpu.hardirq_pct is None:
        return cpu.account_pct
    return max(cpu.softirq_pct, cpu.hardirq_pct)


def _quiet(totals: pl.DataFrame, cpus: list[CpuRow], window_ns: int) -> bool:
    """Return whether handlers take little of every CPU, including estimates for those only counted."""
    untimed = totals.filter((pl.col("total_ns") < 0) & (pl.col("cpu") >= 0)).group_by("cpu").agg(pl.col("count").sum())
    estimate = {cpu: 100 * count * _UNTIMED_NS / window_ns for cpu, count in untimed.iter_rows()}
    return all(
        c.softirq_pct is not None
        and c.hardirq_pct is not None
        and c.softirq_pct + c.hardirq_pct + estimate.get(c.cpu, 0.0) < _QUIET_PCT
        for c in cpus
    )


def _load(totals: pl.DataFrame, cpus: list[CpuRow], window_ns: int) -> list[Finding]:
    """Return a finding per CPU with much handler time, named after the largest handler."""
    found = []
    for cpu in cpus:
        least = _least(cpu)
        if least is None or least < _LOAD_PCT:
            continue
        own = totals.filter(pl.col("cpu") == cpu.cpu).sort("total_ns", "count", descending=True)
        unnamed: dict[str, Any] = {"kind": "", "name": "", "count": 0, "total_ns": -1, "max_ns": -1}
        top = own.row(0, named=True) if own.height else unnamed
        known = top["total_ns"] > 0
        metrics = {
            "cpu_pct": least,
            "rate": cpu.hardirq_rate + cpu.softirq_rate,
            "count": top["count"],
            "total_ms": top["total_ns"] / 1e6 if known else None,
            "max_ms": top["max_ns"] / 1e6 if known and top["max_ns"] > 0 else None,
        }
        attributes = {"interrupt": label(top["kind"], top["name"]), "cpus": str(cpu.cpu)}
        found.append(finding("irq.load", Subject(type="host"), window(window_ns), metrics, severity(least), attributes))
    return found[:8]


def _stolen(frame: pl.DataFrame, window_ns: int) -> list[Stolen]:
    rows = [
        Stolen(
            pid=r["pid"],
            tid=r["tid"],
            comm=r["comm"],
            interrupt=label(r["kind"], r["name"]),
            count=r["count"],
            total_ms=r["total_ns"] / 1e6,
            max_ms=r["max_ns"] / 1e6,
            in_call_ms=r["in_call_ns"] / 1e6,
            window_pct=min(100.0, 100 * r["total_ns"] / window_ns),
        )
        for r in frame.iter_rows(named=True)
    ]
    return sorted(rows, key=lambda r: (-r.total_ms, r.tid, r.interrupt))


def _others_ms(row: Stolen) -> float:
    """Return the time that was certainly not the thread's own work, which a softirq in its system call may be."""
    return row.total_ms - row.in_call_ms if row.interrupt.startswith("softirq ") else row.total_ms


def _steals(stolen: list[Stolen], recording: Recording, quiet: bool) -> list[Finding]:
    """Return findings per thread that loses much time; a normal one for a target that certainly does not."""
    target, window_ns = recording.manifest.target, max(recording.manifest.window_ns, 1)
    by_thread: dict[int, list[Stolen]] = {}
    for row in stolen:
        by_thread.setdefault(row.tid, []).append(row)

    def share(rows: list[Stolen], of: Callable[[Stolen], float] = _others_ms) -> float:
        return min(100.0, 100e6 * sum(map(of, rows)) / window_ns)

    found = []
    for rows in sorted(by_thread.values(), key=share, reverse=True):
        if share(rows) < _STEAL_PCT:
            break
        named = [r for r in rows if _others_ms(r) >= _NAMED * sum(map(_others_ms, rows))]
        found += [_steal(row, share([row]), severity(share(rows)), window_ns) for row in named]
    most = max((share(rows, lambda r: r.total_ms) for rows in by_thread.values()), default=0.0)
    if found or target.everything or not quiet or most >= _STEAL_PCT:
        return found[:20]
    return [finding("irq.steal", any_thread(target), window(window_ns), {"window_pct": most})]


def _steal(row: Stolen, pct: float, grade: Severity, window_ns: int) -> Finding:
    metrics = {"window_pct": pct, "total_ms": _others_ms(row), "max_ms": row.max_ms, "count": row.count}
    subject = Subject(type="thread", pid=row.pid, tid=row.tid, comm=row.comm)
    return finding("irq.steal", subject, window(window_ns), metrics, grade, {"interrupt": row.interrupt})


TOOL = Tool(
    name="interrupts",
    title="Interrupts and softirqs",
    description="Interrupt and softirq handlers: rate, time, p50/p99/max per CPU; what they take of target threads.",
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"irq.load", "irq.steal"}),
    cost=1.5,
)
