"""Prepare what a recording holds about its host: slices, names, topology, affinity, quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from whystall.bpf import syscalls
from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.contract.errors import ToolError
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.lanes import build as lanes
from whystall.tools.timeline.recorded import trace_of

_UNKNOWN_PID = -1
_KTHREADD = 2


@dataclass(frozen=True)
class Cpu:
    """Position of a CPU; -1 unknown."""

    node: int
    core: int
    package: int


@dataclass(frozen=True)
class Thread:
    """A thread's name and process; `pid` -1 unknown. `kernel`: certainly a kernel thread."""

    tid: int
    pid: int
    comm: str
    kernel: bool = False

    @property
    def label(self) -> str:
        """Return name and number: ``stress (4711)``."""
        return f"{self.comm or '?'} ({self.tid})"


@dataclass(frozen=True)
class Mask:
    """The CPU affinity of a thread from `at_ns` on."""

    at_ns: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Quota:
    """A cgroup with a CPU quota, its throttled time in the window (summed over CPUs), and the length of a period (0
    unknown)."""

    cgroup: str
    version: int
    throttled_ns: int
    period_ns: int

    def binds(self, cgroup: str) -> bool:
        """Return whether `cgroup` is this one or below it."""
        return (cgroup.rstrip("/") + "/").startswith(self.cgroup.rstrip("/") + "/")


@dataclass(frozen=True)
class Host:
    """One recorded host. Frames are those of `whystall.tools.timeline.lanes.build`; times count from the start.

    `slices`: of threads; `tenures`: thread per CPU; `calls`: system calls (tid, start, end, name), empty if not traced.
    `cpus`: traced ones. `topology`: empty if not recorded.
    """

    end_ns: int
    cpus: tuple[int, ...]
    slices: pl.DataFrame
    tenures: pl.DataFrame
    interrupts: pl.DataFrame
    migrations: pl.DataFrame
    calls: pl.DataFrame
    names: Mapping[int, Thread]
    topology: Mapping[int, Cpu]
    online: tuple[int, ...]
    masks: Mapping[int, list[Mask]]
    quotas: tuple[Quota, ...]
    cgroups: Mapping[int, str] | None
    observer: int

    def thread(self, tid: int) -> Thread:
        """Return the name and process of `tid`, as far as known."""
        return self.names.get(tid) or Thread(tid, _UNKNOWN_PID, "idle" if tid == 0 else "")

    def pct(self, ns: float) -> float:
        """Return `ns` in percent of the window."""
        return 100.0 * ns / max(self.end_ns, 1)

    @cached_property
    def labels(self) -> pl.DataFrame:
        """Return columns ``by_tid`` and ``label`` for all named threads."""
        rows = [(tid, thread.label) for tid, thread in self.names.items()]
        return pl.DataFrame(rows, {"by_tid": pl.Int32, "label": pl.String}, orient="row")

    def quota_of(self, pid: int) -> Quota | None:
        """Return the quota that throttled process `pid` most; None if no quota applies."""
        own = [q for q in self.quotas if self.cgroups is None or q.binds(self.cgroups.get(pid, "?"))]
        return max(own, key=lambda quota: quota.throttled_ns, default=None)

    def throttled_ns(self, pid: int) -> int:
        """Return an upper bound of the time process `pid` was throttled; its cgroup's count is over all CPUs."""
        quota = self.quota_of(pid)
        return min(quota.throttled_ns, self.end_ns) if quota else 0

    def siblings(self, cpu: int) -> list[int]:
        """Return the CPUs of the same core including `cpu`; only `cpu` if the topology is unknown."""
        place = self.topology.get(cpu)
        if place is None or place.core < 0:
            return [cpu]
        return [c for c, other in self.topology.items() if (other.package, other.core) == (place.package, place.core)]


def prepare(recording: Recording) -> Host:
    """Return the host of `recording`, which must hold a scheduling trace; other tables are optional."""
    trace = trace_of(recording)
    tables = recording.tables()
    cpus = tables.get("proc.cpus")
    rows = [] if cpus is None else list(cpus.iter_rows(named=True))
    return Host(
        end_ns=recording.manifest.window_ns,
        cpus=trace.cpus,
        slices=lanes.thread_slices(trace),
        tenures=lanes.cpu_slices(trace),
        interrupts=_labelled(lanes.interrupt_slices(trace)),
        migrations=trace.table("migrations"),
        calls=_calls(trace.table("syscalls"), recording.manifest.machine, recording.manifest.window_ns),
        names=_names(trace.table("names"), tables),
        topology={r["cpu"]: Cpu(r["node"], r["core"], r["package"]) for r in rows},
        online=tuple(r["cpu"] for r in rows if r["online"]) or trace.cpus,
        masks=_masks(tables.get("proc.affinity")),
        quotas=_quotas(tables.get("proc.cgroups")),
        cgroups=_cgroups(tables.get("proc.processes")) if recording.manifest.target.everything else None,
        observer=recording.manifest.observer,
    )


def _labelled(interrupts: pl.DataFrame) -> pl.DataFrame:
    """Add a column ``label``: ``irq 36 eth0``, ``softirq NET_RX``."""
    number = pl.col("vector").cast(pl.String)
    name = pl.when(pl.col("name") == "").then(number).otherwise(pl.col("name"))
    hard = pl.concat_str(pl.lit("irq "), number, pl.lit(" "), pl.col("name")).str.strip_chars_end()
    return interrupts.with_columns(label=pl.when("soft").then(pl.lit("softirq ") + name).otherwise(hard))


def _calls(events: pl.DataFrame, machine: str, end_ns: int) -> pl.DataFrame:
    """Pair entry and exit per thread. An exit alone began before the window, an entry alone lasts to its end."""
    try:
        known = syscalls.names(machine) if machine else {}
    except KeyError:
        known = {}  # system call numbers of another machine have no names here
    numbered = pl.lit("syscall_") + pl.col("nr").cast(pl.String)
    named = pl.col("nr").replace_strict(known, default=numbered, return_dtype=pl.String) if known else numbered
    ordered = events.sort("tid", "at_ns", maintain_order=True).with_columns(
        name=pl.when(pl.col("name") == "").then(named).otherwise(pl.col("name")),
        _next=pl.col("at_ns").shift(-1).over("tid"),
        _paired=pl.col("entry").shift(-1).over("tid").not_(),
        _first=pl.col("entry").shift(1).over("tid").is_null(),
    )
    columns = ["tid", "start_ns", "end_ns", "name"]
    whole = ordered.filter("entry").with_columns(
        start_ns="at_ns",
        end_ns=pl.when(pl.col("_next").is_null()).then(end_ns).when("_paired").then("_next").otherwise("at_ns"),
    )
    before = ordered.filter(~pl.col("entry") & pl.col("_first")).with_columns(
        start_ns=pl.lit(0, pl.Int64), end_ns="at_ns"
    )
    return pl.concat([before.select(columns), whole.select(columns)]).sort("tid", "start_ns")


def _names(named: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> dict[int, Thread]:
    """Return the last name of every thread; its process from the trace, else from /proc."""
    found: dict[int, Thread] = {}
    if (processes := tables.get("proc.processes")) is not None:
        for pid, ppid, comm in processes.sort("at_ns").select("pid", "ppid", "comm").iter_rows():
            found[pid] = Thread(pid, pid, comm, kernel=_KTHREADD in (pid, ppid))
    if (threads := tables.get("proc.threads")) is not None:
        for pid, tid, comm in threads.select("pid", "tid", "comm").unique(keep="last").iter_rows():
            found[tid] = Thread(tid, pid, comm)
    for tid, pid, comm in named.sort("at_ns").select("tid", "pid", "comm").iter_rows():
        old = found.get(tid, Thread(tid, _UNKNOWN_PID, ""))
        found[tid] = Thread(tid, pid if pid >= 0 else old.pid, comm or old.comm, old.kernel)
    return found


def _masks(affinity: pl.DataFrame | None) -> dict[int, list[Mask]]:
    found: dict[int, list[Mask]] = {}
    rows: Iterable[tuple[int, int, str]] = (
        affinity.sort("at_ns").select("at_ns", "tid", "cpus").iter_rows() if affinity is not None else ()
    )
    for at_ns, tid, text in rows:
        try:
            cpus = parse_cpus(text)
        except ToolError:
            continue  # invalid in a damaged recording
        if cpus:
            found.setdefault(tid, []).append(Mask(at_ns, cpus))
    return found


def _quotas(cgroups: pl.DataFrame | None) -> tuple[Quota, ...]:
    """Return the cgroups that had a quota at any time, or were throttled."""
    if cgroups is None:
        return ()
    groups = (
        cgroups.filter(pl.col("throttled_ns") >= 0)
        .sort("at_ns")
        .group_by("cgroup", "version", maintain_order=True)
        .agg(
            (pl.col("throttled_ns").last() - pl.col("throttled_ns").first()).alias("throttled"),
            pl.col("quota_us", "period_us").max(),
        )
        .filter((pl.col("throttled") > 0) | (pl.col("quota_us") > 0))
    )
    return tuple(
        Quota(r["cgroup"], r["version"], max(r["throttled"], 0), 1000 * max(r["period_us"], 0))
        for r in groups.iter_rows(named=True)
    )


def _cgroups(processes: pl.DataFrame | None) -> dict[int, str]:
    return dict(processes.sort("at_ns").select("pid", "cgroup").iter_rows()) if processes is not None else {}
