"""Explain why a runnable thread had no CPU: its quota, threads of its own job, its affinity, or others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import polars as pl

from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.real_time import (
    RealTimeThread,
    cpus_of,
    kept_waiting_by,
    real_time_limited,
    real_time_threads,
)
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.walk import THROTTLED_NS
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording

_MOSTLY = 0.5
# No neighbour is to blame for waits for a CPU that threads of the job had in this share of them.
_OWN = 0.8
# The other CPUs must be idle for this much more of their time to blame the thread's affinity.
_LESS_BUSY = 0.15
# A thread that runs or lacks a CPU for this share of the window counts as busy.
_BUSY = 0.15
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def explain_cpu_waits(recording: Recording, world: World, line: Timeline, rows: Sequence[Row]) -> list[Row]:
    """Return `rows` with the time without a CPU divided into ``quota`` and ``cpu``, and `detail` set for the latter."""
    found: list[Row] = []
    crowded = crowded_cpus(recording, world, line)
    throttled = throttled_ns(recording)
    for row in rows:
        if row.code != "cpu":
            root = row.root()
            if row.mode == "spin" or (root is not None and root[0].code == "cpu"):
                row.cpus = crowded
            found.append(row)
            continue
        long = sorted((took for took in row.took if took >= THROTTLED_NS), reverse=True)
        quota: list[int] = []
        while long and throttled > 0 and sum(quota) + long[0] <= 1.1 * throttled:
            quota.append(long.pop(0))
        if sum(quota) > _MOSTLY * row.total_ns:  # of a throttled thread, who has the CPU is irrelevant
            held = replace(row, code="quota", took=quota, total_ns=sum(quota), count=len(quota), by=Counter())
            found.append(held)
            rest = row.total_ns - held.total_ns
            row = replace(
                row, total_ns=rest, count=row.count - held.count, took=[t for t in row.took if t not in quota]
            )
        if row.total_ns > 0:
            row.detail = who_had_cpus(recording, world, line, row)
            if not row.detail and _by_own(world, line, row) >= max(_OWN * row.by.total(), _MOSTLY * row.total_ns):
                row.detail = "own_shared"
            found.append(row)
    return sorted(found, key=lambda row: -row.total_ns)


def throttled_ns(recording: Recording) -> int:
    """Return the longest throttled time of any cgroup of the target, ns; 0 if unknown."""
    if not recording.has("proc"):
        return 0
    readings = recording.table("proc.cgroups").filter(pl.col("throttled_ns") >= 0).sort("at_ns")
    grown = readings.group_by("cgroup").agg(
        (pl.col("throttled_ns").last() - pl.col("throttled_ns").first()).alias("ns")
    )
    return int(grown["ns"].max() or 0) if grown.height else 0  # type: ignore[arg-type]


def who_had_cpus(recording: Recording, world: World, line: Timeline, row: Row) -> str:
    """Return the detail of a row of waits for a CPU, and set its `by` and `cpus` where the detail depends on them."""
    affinity = _Affinity(recording)
    allowed, cpuset = affinity.of(line.tid)
    host = recording.manifest.cpus
    hogs = real_time_hogs(recording, line)
    if kept_waiting_by(recording, hogs, row.total_ns, row.by, len(allowed) or host):
        row.by = Counter()
        for hog in hogs:
            row.by[hog.pid, hog.comm] += hog.run_ns
        return "real_time"
    if real_time_limited(recording, line, hogs, row.total_ns):
        row.by = Counter()  # ordinary threads run in the meantime, and are not what it waits for
        return "real_time_limit"
    known = row.by.total()
    if known < _MOSTLY * row.total_ns:
        return ""
    own = _by_own(world, line, row) >= _MOSTLY * known and not _others_use_more(recording, world, line, allowed)
    crowded = own and _busy_threads(world, affinity, allowed, line.pid) > (len(allowed) or host)
    if not 0 < len(allowed) < host:
        return ("own" if crowded else "") if own else "others"
    row.cpus = format_cpus(allowed)
    if crowded and allowed == cpuset:
        return "own_cpuset"
    if _others_less_busy(recording, allowed, cpuset):
        return "pinned"
    return ("own_pinned" if crowded else "") if own else "others"


def _by_own(world: World, line: Timeline, row: Row) -> int:
    """Return the time of the row's waits in which threads of the job had the CPU, ns."""
    job = world.ranks.job(line.pid)
    return sum(took for (pid, _), took in row.by.items() if pid in job)


def _others_use_more(recording: Recording, world: World, line: Timeline, allowed: frozenset[int]) -> bool:
    """Return whether the job uses less than half of the CPUs that thread `line` may use, and others more than the job.

    Who ran last before a thread got a CPU need not be who kept it waiting: threads of a process wake each other, and
    run one after another behind a neighbour.
    """
    used = used_ns(recording)
    own = sum(took for pid, took in used.items() if pid in world.ranks.job(line.pid))
    room = (len(allowed) or recording.manifest.cpus) * world.window_ns
    return 0 < own < _MOSTLY * room and sum(used.values()) - own > own


def used_ns(recording: Recording) -> dict[int, int]:
    """Return the CPU time that each process used in the window, by pid, ns; empty if unknown."""
    if not recording.has("proc"):
        return {}
    rows = recording.table("proc.processes").sort("at_ns")
    cpu = pl.col("user_ns") + pl.col("system_ns")
    return dict(rows.group_by("pid").agg((cpu.last() - cpu.first()).alias("used")).iter_rows())


def real_time_hogs(recording: Recording, line: Timeline) -> list[RealTimeThread]:
    """Return the other threads with a real-time policy that ran on CPUs that thread `line` may use."""
    allowed, _ = _Affinity(recording).of(line.tid)
    return [one for one in real_time_threads(recording, allowed) if one.tid != line.tid]


class _Affinity:
    """The CPUs that threads may run on; empty if unknown."""

    def __init__(self, recording: Recording) -> None:
        table = recording.find("proc.affinity")
        rows = table.select("tid", "cpus", "cpuset").iter_rows() if table is not None else ()
        self._rows: dict[int, tuple[str, str]] = {tid: (cpus, cpuset) for tid, cpus, cpuset in rows}

    def of(self, tid: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the CPUs of a thread, and those of its cgroup."""
        cpus, cpuset = self._rows.get(tid, ("", ""))
        return cpus_of(cpus), cpus_of(cpuset)


def _busy_threads(world: World, affinity: _Affinity, allowed: frozenset[int], pid: int) -> int:
    """Return how many threads of the job of process `pid` run, or would run, for a noticeable part of the window on one
    of the CPUs `allowed` (empty: on any)."""
    busy, job = 0, world.ranks.job(pid)
    for line in world.lines.values():
        mask, _ = affinity.of(line.tid)
        if line.pid in job and (not allowed or not mask or mask & allowed):
            runnable = sum(wait.end_ns - wait.awake_ns for wait in line.waits)
            busy += line.running_ns + runnable >= _BUSY * world.window_ns
    return busy


def crowded_cpus(recording: Recording, world: World, line: Timeline) -> str:
    """Return the CPUs that thread `line` may use, as a list, if they are not all of the host and fewer than the busy
    threads of its job; else empty."""
    affinity = _Affinity(recording)
    allowed, _ = affinity.of(line.tid)
    narrow = 0 < len(allowed) < recording.manifest.cpus
    return format_cpus(allowed) if narrow and _busy_threads(world, affinity, allowed, line.pid) > len(allowed) else ""


def _others_less_busy(recording: Recording, allowed: frozenset[int], cpuset: frozenset[int]) -> bool:
    """Return whether the CPUs that a thread may not use were clearly less busy than those that it may use (`allowed`).
    Of a thread that is bound to a part of the `cpuset` of its cgroup, only the rest of this counts."""
    if shares := _busy_shares(recording):
        others = cpuset if allowed < cpuset else shares.keys()
        inside = [share for cpu, share in shares.items() if cpu in allowed]
        outside = [share for cpu, share in shares.items() if cpu in others and cpu not in allowed]
        return bool(inside and outside) and fmean(inside) - fmean(outside) >= _LESS_BUSY
    return _rest_less_busy(recording)


def _busy_shares(recording: Recording) -> dict[int, float]:
    """Return for which share of the window each CPU was busy; empty in older recordings."""
    table = recording.find("proc.cpu_times")
    if table is None or table.is_empty():
        return {}
    grown = pl.col("at_ns", "busy_ns").last() - pl.col("at_ns", "busy_ns").first()
    ends = table.sort("at_ns").group_by("cpu").agg(grown)
    return {cpu: busy / span for cpu, span, busy in ends.iter_rows() if span > 0}


def _rest_less_busy(recording: Recording) -> bool:
    """Return whether the CPUs that the target may not use were clearly less busy than those that it may use."""
    host = recording.table("proc.host").sort("at_ns")
    growth = pl.col("value").last() - pl.col("value").first()
    grown: dict[str, float] = dict(host.group_by("name").agg(growth).iter_rows())
    last: dict[str, float] = dict(host.select("name", "value").iter_rows())
    cpus, allowed = last.get("cpu_count", 0.0), last.get("target_cpu_count", 0.0)
    times = [grown.get(f"cpu_{state}_ns", 0.0) for state in _STATES]
    if not 0 < allowed < cpus or not sum(times):
        return False
    each = sum(times) / cpus
    busy = sum(times) - grown.get("cpu_idle_ns", 0.0) - grown.get("cpu_iowait_ns", 0.0)
    inside = grown.get("target_cpu_busy_ns", 0.0)
    return inside / (allowed * each) - (busy - inside) / ((cpus - allowed) * each) >= _LESS_BUSY
