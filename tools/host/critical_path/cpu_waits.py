"""Explain why a runnable thread had no CPU: its quota, threads of its own job, its affinity, or others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.walk import World
from whystall.tools.recording.store import Recording

# A thread without quota left waits for the rest of a period, which is 100 ms by default; one that competes waits for a
# slice, of 3 ms by default (kernel/sched/fair.c, sysctl_sched_base_slice).
_THROTTLED_NS = 4_000_000
_MOSTLY = 0.5
# The other CPUs must be idle for this much more of their time to blame the thread's affinity.
_LESS_BUSY = 0.15
# A thread that runs or lacks a CPU for this share of the window counts as busy.
_BUSY = 0.15
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def explain_cpu_waits(recording: Recording, world: World, line: Timeline, rows: Sequence[Row]) -> list[Row]:
    """Return `rows` with the time without a CPU divided into ``quota`` and ``cpu``, and `detail` set for the latter."""
    found: list[Row] = []
    throttled = throttled_ns(recording)
    for row in rows:
        if row.code != "cpu":
            found.append(row)
            continue
        long = sorted((took for took in row.took if took >= _THROTTLED_NS), reverse=True)
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
            row.detail = _who(recording, world, line, row)
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


def _who(recording: Recording, world: World, line: Timeline, row: Row) -> str:
    known = row.by.total()
    if known < _MOSTLY * row.total_ns:
        return ""
    own = sum(took for (pid, _), took in row.by.items() if pid in world.target)
    allowed = _allowed(recording, line.tid)
    if 0 < allowed < recording.manifest.cpus and _others_less_busy(recording):
        return "pinned"
    if own < _MOSTLY * known:
        return "others"
    return "own" if _busy_threads(world) > (allowed or recording.manifest.cpus) else ""


def _busy_threads(world: World) -> int:
    """Return how many threads of the target run, or would run, for a noticeable part of the window."""
    busy = 0
    for line in world.lines.values():
        if line.pid in world.target:
            runnable = sum(wait.end_ns - wait.awake_ns for wait in line.waits)
            busy += line.running_ns + runnable >= _BUSY * world.window_ns
    return busy


def _allowed(recording: Recording, tid: int) -> int:
    """Return on how many CPUs thread `tid` may run; 0 if unknown."""
    affinity = recording.find("proc.affinity")
    if affinity is None:
        return 0
    rows = affinity.filter(pl.col("tid") == tid)["cpus"].to_list()
    return _count(rows[-1]) if rows else 0


def _count(cpus: str) -> int:
    """Return how many CPUs a list like ``0-3,8`` has."""
    total = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            total += (int(last) if last.isdigit() else int(first)) - int(first) + 1
    return total


def _others_less_busy(recording: Recording) -> bool:
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
