"""ftrace_capture: per CPU and thread, what the scheduler did, from its events."""

from __future__ import annotations

import csv
import io

import polars as pl
from pydantic import Field, field_validator

from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.collect.ftrace.events import check_groups
from whystall.tools.collect.options import FtraceOptions
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.lanes import build as lanes
from whystall.tools.timeline.recorded import trace_of
from whystall.tools.timeline.sched import SchedTrace

_ABOUT_TRACE = ("holes", "names", "clocks")


class Params(LiveParams):
    """Parameters of ftrace_capture."""

    cpus: str = Field(default="", max_length=4096, description="CPUs to record, like 0-3,8; all if empty")
    groups: str = Field(default="irq,softirq", max_length=200, description="events besides sched, by comma")
    buffer_mb: float = Field(default=0, ge=0, le=1024, description="kernel buffer per CPU, MiB; 0: chosen")
    only_target: bool = Field(default=False, description="record no other threads")

    @field_validator("cpus")
    @classmethod
    def _cpus(cls, value: str) -> str:
        parse_cpus(value)
        return value

    @field_validator("groups")
    @classmethod
    def _groups(cls, value: str) -> str:
        check_groups(_words(value))
        return value


class Cpu(Model):
    """One CPU over the window. `unknown_pct`: time in which the running thread is unknown. `involuntary`: switches away
    from a thread that was still runnable (or yielded). `lost`: events, as far as the tracer counted them.
    """

    cpu: int
    busy_pct: float
    idle_pct: float
    unknown_pct: float
    switches: int
    involuntary: int
    migrations: int
    irqs: int
    irq_pct: float
    softirqs: int
    softirq_pct: float
    lost: int


class Thread(Model):
    """One thread over the window: time on and waiting for a CPU, switches and their reasons, migrations. `of_target`:
    of the requested process. `pid` -1: unknown."""

    pid: int
    tid: int
    comm: str
    of_target: bool
    running_ms: float
    running_pct: float
    runnable_ms: float
    voluntary: int
    involuntary: int
    migrations: int


class Hole(Model):
    """Gaps in the trace; `cpu` -1: all. `why`: ``lost`` (the buffer was full), ``unseen`` (a switch was not recorded),
    ``stopped``, ``rotated``. `count` and total time; `lost` -1: not counted.
    """

    cpu: int
    why: str
    count: int
    total_ms: float
    max_ms: float
    lost: int


class Data(Model):
    """`threads` by time on a CPU, `preempted` by involuntary switches, largest first; `events` by table."""

    span_s: float = 0.0
    cpus: list[Cpu] = Field(default_factory=list)
    threads: list[Thread] = Field(default_factory=list)
    preempted: list[Thread] = Field(default_factory=list)
    holes: list[Hole] = Field(default_factory=list)
    events: dict[str, int] = Field(default_factory=dict)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _needs(params: Params) -> list[Need]:
    cpus = sum(1 << cpu for cpu in parse_cpus(params.cpus))
    groups = frozenset(_words(params.groups))
    return [Need("ftrace", FtraceOptions(groups, cpus, params.only_target, int(params.buffer_mb * 1024)))]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Count and sum up the trace in `recording`."""
    trace = trace_of(recording)
    span_ns = max(trace.end_ns - trace.start_ns, 1)
    threads = _threads(trace, span_ns, set(recording.manifest.target.pids))
    cpus, holes = _cpus(trace, span_ns), _holes(trace)
    events = {name: frame.height for name, frame in trace.tables.items() if name not in _ABOUT_TRACE}
    preempted = sorted((t for t in threads if t.involuntary), key=lambda t: -t.involuntary)
    unrecorded = sum(hole.count for hole in holes if hole.why == "unseen")
    return Judgement(
        findings=[],
        data=Data(
            span_s=span_ns / 1e9,
            cpus=cpus[: params.top],
            threads=threads[: params.top],
            preempted=preempted[: params.top],
            holes=holes[: params.top],
            events=events,
        ),
        seen=sum(events.values()),
        totals={"cpus": len(cpus), "threads": len(threads), "preempted": len(preempted), "holes": len(holes)},
        artifacts=[_table(threads)] if threads else [],
        not_seen=[("untold_switches", str(unrecorded))] if unrecorded else [],
    )


def _cpus(trace: SchedTrace, span_ns: int) -> list[Cpu]:
    length = pl.col("end_ns") - pl.col("start_ns")
    slices = lanes.cpu_slices(trace).with_columns(length.alias("ns"))
    times = slices.group_by("cpu").agg(
        pl.col("ns").filter(pl.col("tid") > 0).sum().alias("busy"),
        pl.col("ns").filter(pl.col("tid") == 0).sum().alias("idle"),
        pl.col("ns").filter(pl.col("tid") < 0).sum().alias("unknown"),
    )
    switches = trace.table("switches")
    left = switches.group_by("cpu").agg(
        pl.len().alias("switches"), (pl.col("preempted") & (pl.col("prev_tid") > 0)).sum().alias("involuntary")
    )
    moved = trace.table("migrations").group_by(pl.col("to_cpu").alias("cpu")).agg(pl.len().alias("migrations"))
    soft = pl.col("soft")
    interrupts = (
        lanes.interrupt_slices(trace)
        .group_by("cpu")
        .agg(
            (~soft).sum().alias("irqs"),
            pl.col("self_ns").filter(~soft).sum().alias("irq"),
            soft.sum().alias("softirqs"),
            pl.col("self_ns").filter(soft).sum().alias("softirq"),
        )
    )
    lost = trace.table("holes").group_by("cpu").agg(pl.col("lost").clip(0).sum())
    rows = pl.DataFrame({"cpu": list(trace.cpus)}, schema={"cpu": pl.Int32})
    for part in (times, left, moved, interrupts, lost):
        rows = rows.join(part, on="cpu", how="left")
    share = 100 / span_ns
    return [
        Cpu(
            cpu=r["cpu"],
            busy_pct=r["busy"] * share,
            idle_pct=r["idle"] * share,
            unknown_pct=r["unknown"] * share,
            switches=r["switches"],
            involuntary=r["involuntary"],
            migrations=r["migrations"],
            irqs=r["irqs"],
            irq_pct=r["irq"] * share,
            softirqs=r["softirqs"],
            softirq_pct=r["softirq"] * share,
            lost=r["lost"],
        )
        for r in rows.fill_null(0).sort("cpu").iter_rows(named=True)
    ]


def _threads(trace: SchedTrace, span_ns: int, target: set[int]) -> list[Thread]:
    slices = lanes.thread_slices(trace).with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    times = slices.group_by("tid").agg(
        pl.col("ns").filter(pl.col("state") == "running").sum().alias("running"),
        pl.col("ns").filter(pl.col("state") == "runnable").sum().alias("runnable"),
    )
    left = (
        trace.table("switches")
        .group_by(pl.col("prev_tid").alias("tid"))
        .agg(pl.col("preempted").sum().alias("involuntary"), (~pl.col("preempted")).sum().alias("voluntary"))
    )
    moved = trace.table("migrations").group_by("tid").agg(pl.len().alias("migrations"))
    names = trace.table("names").group_by("tid", maintain_order=True).agg(pl.col("pid", "comm").last())
    rows = times.join(left, on="tid", how="left").join(moved, on="tid", how="left").fill_null(0)
    rows = rows.join(names, on="tid", how="left").filter(pl.col("running") + pl.col("runnable") > 0)
    return [
        Thread(
            pid=-1 if r["pid"] is None else r["pid"],
            tid=r["tid"],
            comm=r["comm"] or "",
            of_target=r["pid"] in target,
            running_ms=r["running"] / 1e6,
            running_pct=100 * r["running"] / span_ns,
            runnable_ms=r["runnable"] / 1e6,
            voluntary=r["voluntary"],
            involuntary=r["involuntary"],
            migrations=r["migrations"],
        )
        for r in rows.sort(["running", "tid"], descending=[True, False]).iter_rows(named=True)
    ]


def _holes(trace: SchedTrace) -> list[Hole]:
    """Return the holes by CPU and reason, longest first."""
    holes = trace.table("holes").with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    counted = pl.col("lost") >= 0
    rows = holes.group_by("cpu", "why").agg(
        pl.len().alias("count"),
        pl.col("ns").sum().alias("total"),
        pl.col("ns").max().alias("longest"),
        pl.when(counted.any()).then(pl.col("lost").filter(counted).sum()).otherwise(-1).alias("lost"),
    )
    return [
        Hole(
            cpu=r["cpu"],
            why=r["why"],
            count=r["count"],
            total_ms=r["total"] / 1e6,
            max_ms=r["longest"] / 1e6,
            lost=r["lost"],
        )
        for r in rows.sort(["total", "cpu", "why"], descending=[True, False, False]).iter_rows(named=True)
    ]


def _table(threads: list[Thread]) -> ArtifactContent:
    """Return a CSV file of every thread."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Thread.model_fields)
    for thread in threads:
        # Spreadsheets would evaluate a name that begins like a formula.
        row = [f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@") else v for v in thread.model_dump().values()]
        writer.writerow(row)
    return ArtifactContent("ftrace_threads.csv", "Threads of the capture", "text/csv", text.getvalue())


TOOL = Tool(
    name="ftrace_capture",
    title="Scheduler trace",
    description=(
        "Records the scheduler's events and sums them up: each CPU's busy, idle, interrupt and softirq time, "
        "switches, lost events; the threads that ran most and were pushed off most; holes. No verdict."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(),
    cost=4.0,
)
