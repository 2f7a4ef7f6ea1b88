"""Threads with a real-time policy: whether they kept a thread from its CPUs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

import polars as pl

from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.recording.store import Recording

# Share of the CPU time of others, on the CPUs that the thread may use, from which on real-time threads are to blame:
# they go before all others, so that what is left does not decide who waits.
_MOSTLY_REAL_TIME = 0.7
# Share of a wait that their CPU time must cover.
_COVERS = 0.5
# Share of a wait after which one of them was seen on the CPU.
_SEEN = 0.7
# Real-time threads that ran for less than this share of a wait did not cause it.
_LITTLE = 0.1
_LIMITED = frozenset({"fifo", "rr"})
_MOST_FINDINGS = 4
_LEAST_PCT = 1.0


class RealTimeThread(NamedTuple):
    """A thread with a real-time policy; `run_ns`: on a CPU that the waiting thread may use."""

    pid: int
    tid: int
    comm: str
    policy: str
    priority: int
    run_ns: int
    cpus: str


def real_time_threads(recording: Recording, allowed: Set[int]) -> list[RealTimeThread]:
    """Return the real-time threads of the host that ran on one of the CPUs `allowed` (empty: on any), as far as known;
    the one that ran most first. Of one that may use others too, a part of its time in proportion counts."""
    table = recording.find("proc.real_time")
    if table is None:
        return []
    found = []
    columns = ("pid", "tid", "comm", "policy", "priority", "run_ns", "cpus")
    for pid, tid, comm, policy, priority, run_ns, cpus in table.select(columns).iter_rows():
        mask = cpus_of(cpus)
        part = len(mask & allowed) / len(mask) if mask and allowed else 1.0
        if run_ns * part > 0:
            found.append(RealTimeThread(pid, tid, comm, policy, priority, int(run_ns * part), cpus))
    return sorted(found, key=lambda thread: -thread.run_ns)


def kept_waiting_by(
    recording: Recording, threads: list[RealTimeThread], waited_ns: int, by: Counter[tuple[int, str]], cpus: int
) -> bool:
    """Return whether real-time `threads` had the CPUs for which another thread waited for `waited_ns`.

    By who was seen on the CPU before it (`by`), as far as that process ran; else by the time that real-time threads
    used of its `cpus` CPUs. Whoever ran last is often another one: after 0.95 s the kernel gives ordinary threads a
    turn (kernel.sched_rt_runtime_us).
    """
    used: Counter[int] = Counter()
    for thread in threads:
        used[thread.pid] += thread.run_ns
    seen = sum(min(took, used[pid]) for (pid, _), took in by.items())
    if seen >= _SEEN * waited_ns:
        return True
    others = _used_by_others(recording, cpus)
    total = used.total()
    return others > 0 and total >= _MOSTLY_REAL_TIME * others and total >= _COVERS * waited_ns * cpus


def real_time_limited(recording: Recording, line: Timeline, others: list[RealTimeThread], waited_ns: int) -> bool:
    """Return whether thread `line` has a real-time policy, and `others`, the real-time threads on its CPUs, ran too
    little to keep it waiting for `waited_ns`.

    Ordinary threads never do (sched(7)), so that the limit of real-time threads is reached: kernel.sched_rt_runtime_us
    or, with CONFIG_RT_GROUP_SCHED, cpu.rt_runtime_us of a cgroup (Documentation/scheduler/sched-rt-group.rst).
    """
    ran = sum(max(thread.run_ns, 0) for thread in others)
    known = any(one.tid == line.tid and one.policy in _LIMITED for one in real_time_threads(recording, frozenset()))
    return known and ran < _LITTLE * waited_ns


def real_time_findings(threads: list[RealTimeThread], window_ns: int) -> list[Finding]:
    """Return a finding for each of the `threads` that used most CPU time."""
    found = []
    for thread in threads[:_MOST_FINDINGS]:
        share = 100.0 * thread.run_ns / window_ns
        if share >= _LEAST_PCT:
            found.append(
                finding(
                    "sched.real_time",
                    Subject(type="thread", pid=thread.pid, tid=thread.tid, comm=thread.comm),
                    window(window_ns),
                    {"cpu_pct": share, "priority": float(thread.priority)},
                    Severity.MAJOR,
                    {"policy": thread.policy, "cpus": thread.cpus} if thread.cpus else {"policy": thread.policy},
                )
            )
    return found


def cpus_of(text: str) -> frozenset[int]:
    """Return the numbers in a list of CPUs like ``0-3,8``; none if it is no such list."""
    try:
        return frozenset(parse_cpus(text))
    except ToolError:
        return frozenset()


def _used_by_others(recording: Recording, cpus: int) -> float:
    """Return the time for which the target's CPUs were busy with others, ns; 0 if unknown or if they are not `cpus`."""
    if not recording.has("proc"):
        return 0.0
    host = recording.table("proc.host").sort("at_ns")
    last: dict[str, float] = dict(host.select("name", "value").iter_rows())
    if last.get("target_cpu_count", 0.0) != cpus:
        return 0.0
    busy = host.filter(pl.col("name") == "target_cpu_busy_ns")["value"].to_list()
    runs = recording.table("proc.threads").filter(pl.col("run_ns") >= 0).sort("at_ns").group_by("tid")
    own = runs.agg((pl.col("run_ns").last() - pl.col("run_ns").first()).alias("ns"))["ns"].sum()
    return busy[-1] - busy[0] - float(own) if busy else 0.0
