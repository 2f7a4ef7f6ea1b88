"""Compute the growth of counters over the window, which `host_snapshot` judges.

Each value is the difference of the last and the first reading of one process (pid and start time), thread or device,
divided by the whole window: a thread that lived for a tenth of it does not seem busier than one that always ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import polars as pl

from whystall.tools.collect.ftrace.cpus import format_cpus, parse_cpus
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Interval
from whystall.tools.host.common.host_counters import HostCounters
from whystall.tools.host.host_snapshot import data
from whystall.tools.recording.store import Recording

_Row = dict[str, Any]
_Key = TypeVar("_Key")
_KTHREADD = 2  # the parent of all threads of the kernel
_TIMES = ("user_ns", "system_ns", "run_ns", "block_io_ns")
# Threads on a CPU without a tick (nohz_full) are accounted once a second (kernel/sched/core.c, sched_tick_remote).
_STILL_NS = 1_500_000_000
# A thread's counters are read some ms before or after their timestamp.
_INSTANT_S = 0.05


@dataclass(frozen=True)
class ThreadTime:
    """Seconds of one thread. None: not accounted. `uninterruptible`: how many of the `samples` had state D."""

    pid: int
    tid: int
    comm: str
    user_s: float
    system_s: float
    wait_s: float | None
    run_s: float | None
    block_io_s: float | None
    samples: int
    uninterruptible: int
    span: Interval


@dataclass(frozen=True)
class Measures:
    """The values to judge. `span`: from the host's first to its last reading; `span_s`: its length, above zero.
    `target_cpus`, `target_cpu_list`: the CPUs that the target's threads may use, counted and as ``0-3,8``; 0 and empty
    if unknown.
    """

    span: Interval
    span_s: float
    tables: data.Data
    threads: list[ThreadTime]
    processes: list[data.Process]
    disks: list[data.Disk]
    cgroups: list[data.CgroupRow]
    target_cpu_busy_pct: float | None
    target_cpus: int
    target_cpu_list: str = ""
    target_pids: frozenset[int] = field(default_factory=frozenset)


def measure(recording: Recording, top: int) -> Measures | None:
    """Return the values of `recording`, tables cut to `top` rows; None with fewer than two readings."""
    host = recording.table("proc.host")
    times = host["at_ns"]
    first_ns, last_ns = int(times.min() or 0), int(times.max() or 0)  # type: ignore[arg-type]
    if host.is_empty() or last_ns <= first_ns:
        return None
    span_s = (last_ns - first_ns) / 1e9
    counters = HostCounters(host)
    threads = _threads(recording.table("proc.threads"), span_s)
    members = frozenset(recording.manifest.target.pids) | {t.pid for t in threads}
    processes = _processes(recording.table("proc.processes"), members, span_s)
    disks = _disks(recording.table("proc.disks"))
    cgroups = _cgroups(recording.table("proc.cgroups"))
    cpus = int(counters.last("target_cpu_count") or 0)
    busy = counters.delta("target_cpu_busy_ns")
    tables = data.Data(
        window_s=round(span_s, 3),
        pressure=_pressure(counters),
        cpu=_cpu(counters),
        run_queue=_run_queue(counters),
        memory=_memory(counters),
        disks=sorted(disks, key=lambda d: -d.util_pct)[:top],
        by_cpu=_top(processes, top, lambda p: p.cpu_pct),
        by_block_io=_top(processes, top, lambda p: p.block_io_pct or 0.0),
        by_major_faults=_top(processes, top, lambda p: p.major_faults),
        threads=[_thread_row(t, span_s) for t in threads[:top]],
        cgroups=cgroups[:top],
    )
    return Measures(
        span=Interval(start_ns=first_ns, end_ns=last_ns),
        span_s=span_s,
        tables=tables,
        threads=threads,
        processes=processes,
        disks=disks,
        cgroups=cgroups,
        target_cpu_busy_pct=min(100.0, busy / 1e7 / span_s / cpus) if busy is not None and cpus else None,
        target_cpus=cpus,
        target_cpu_list=_allowed_cpus(recording.tables().get("proc.affinity")),
        target_pids=members,
    )


def _allowed_cpus(affinity: pl.DataFrame | None) -> str:
    """Return the CPUs that the target's threads may use at the end, as ``0-3,8``; empty if unknown. Older recordings do
    not have the table.
    """
    if affinity is None:
        return ""
    last = affinity.sort("at_ns").group_by("tid").agg(pl.col("cpus").last())
    try:
        return format_cpus(cpu for cpus in last["cpus"].to_list() for cpu in parse_cpus(cpus))
    except ToolError:
        return ""


def _pressure(counters: HostCounters) -> list[data.Pressure]:
    found = []
    for resource in ("cpu", "io", "memory", "irq"):
        some, full = (counters.rate(f"psi_{resource}_{kind}_us") for kind in ("some", "full"))
        if some is not None or full is not None:
            # The irq file has no "some". The kernel adds stalls every 2 s, so a share may slightly exceed 100.
            share = some if some is not None else full or 0.0
            found.append(
                data.Pressure(
                    resource=resource,
                    some_pct=min(100.0, share / 1e4),
                    full_pct=None if full is None else min(100.0, full / 1e4),
                )
            )
    return found


def _cpu(counters: HostCounters) -> data.Cpu | None:
    parts = {
        state: counters.delta(f"cpu_{state}_ns")
        for state in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    }
    known = {state: value for state, value in parts.items() if value is not None}
    total = sum(known.values())
    if not total:
        return None

    def share(*states: str) -> float:
        return 100 * sum(known.get(state, 0.0) for state in states) / total

    return data.Cpu(
        cpus=int(counters.last("cpu_count") or 0),
        user_pct=share("user", "nice"),
        system_pct=share("system", "irq", "softirq"),
        iowait_pct=share("iowait"),
        steal_pct=share("steal"),
        idle_pct=share("idle"),
        interrupt_pct=share("irq", "softirq"),
        context_switches=counters.rate("context_switches"),
    )


def _run_queue(counters: HostCounters) -> data.RunQueue | None:
    runnable, blocked = counters.all("runnable"), counters.all("blocked")
    if not runnable:
        return None
    return data.RunQueue(
        samples=len(runnable),
        runnable_mean=sum(runnable) / len(runnable),
        runnable_max=max(runnable),
        blocked_mean=sum(blocked) / len(blocked) if blocked else None,
        load1=counters.last("load1"),
    )


def _memory(counters: HostCounters) -> data.Memory:
    swap, free = counters.last("mem_swap_total_bytes"), counters.last("mem_swap_free_bytes")
    return data.Memory(
        total_bytes=counters.last("mem_total_bytes"),
        available_bytes=counters.last("mem_available_bytes"),
        dirty_bytes=counters.last("mem_dirty_bytes"),
        writeback_bytes=counters.last("mem_writeback_bytes"),
        swap_used_bytes=swap - free if swap is not None and free is not None else None,
        kswapd_scan_rate=counters.rate("vm_pgscan_kswapd"),
        direct_scan_rate=counters.rate("vm_pgscan_direct"),
        steal_rate=counters.rate("vm_pgsteal_kswapd", "vm_pgsteal_direct"),
        direct_stall_rate=counters.rate("vm_allocstall"),
        file_refault_rate=counters.rate("vm_workingset_refault_file"),
        major_fault_rate=counters.rate("vm_pgmajfault"),
        swap_in_rate=counters.rate("vm_pswpin"),
        swap_out_rate=counters.rate("vm_pswpout"),
    )


def _threads(frame: pl.DataFrame, span_s: float) -> list[ThreadTime]:
    """Return the target's threads, most accounted time (running, waiting, blocked) first.

    Threads are read after the host, on a slow host by seconds. Times of a thread whose readings lie further apart than
    the host's are scaled down to `span_s`, of which shares are reported.
    """
    found = []
    for (pid, tid), rows in _series(frame, lambda r: (r["pid"], r["tid"])).items():
        first, last = rows[0], rows[-1]
        scale = min(1.0, span_s * 1e9 / max(1, last["at_ns"] - first["at_ns"]))
        grown = {name: _scaled(_grown(first, last, name), scale) for name in _TIMES}
        found.append(
            ThreadTime(
                pid=pid,
                tid=tid,
                comm=last["comm"],
                user_s=grown["user_ns"] or 0.0,
                system_s=grown["system_ns"] or 0.0,
                wait_s=_scaled(_waited(rows), scale),
                run_s=grown["run_ns"],
                # It stays zero for threads that are older than the activation of delay accounting.
                block_io_s=grown["block_io_ns"] if last["block_io_ns"] > 0 else None,
                samples=len(rows),
                uninterruptible=sum(r["state"] == "D" for r in rows),
                span=Interval(start_ns=first["at_ns"], end_ns=last["at_ns"]),
            )
        )
    return sorted(found, key=lambda t: (-_accounted(t), t.tid))


def _scaled(seconds: float | None, scale: float) -> float | None:
    return None if seconds is None else seconds * scale


def _waited(rows: list[_Row]) -> float | None:
    """Return the seconds that a thread waited for a CPU between its readings; None if not accounted.

    The kernel accounts a wait when it ends. One that began earlier is limited to the time between the readings; one
    that has not ended is a thread in state R whose counters do not change.
    """
    first, last = rows[0], rows[-1]
    waited = _grown(first, last, "wait_ns")
    if waited is None:
        return None
    since = len(rows) - 1
    while since and rows[since - 1]["state"] == last["state"] == "R" and _unchanged(rows[since - 1], last):
        since -= 1
    still: int = last["at_ns"] - rows[since]["at_ns"]
    off_cpu: float = (last["at_ns"] - first["at_ns"]) / 1e9 - (_grown(first, last, "run_ns") or 0.0)
    waited += still / 1e9 if still >= _STILL_NS else 0.0
    return waited if waited <= off_cpu + _INSTANT_S else max(0.0, off_cpu)


def _unchanged(row: _Row, later: _Row) -> bool:
    return all(row[name] == later[name] for name in ("run_ns", "wait_ns"))


def _accounted(thread: ThreadTime) -> float:
    blocked = (thread.span.end_ns - thread.span.start_ns) / 1e9 * thread.uninterruptible / max(thread.samples, 1)
    return thread.user_s + thread.system_s + (thread.wait_s or 0.0) + max(blocked, thread.block_io_s or 0.0)


def _thread_row(thread: ThreadTime, span_s: float) -> data.Thread:
    return data.Thread(
        pid=thread.pid,
        tid=thread.tid,
        comm=thread.comm,
        user_pct=share(thread.user_s, span_s),
        system_pct=share(thread.system_s, span_s),
        runnable_pct=None if thread.wait_s is None else share(thread.wait_s, span_s),
        blocked_pct=100 * thread.uninterruptible / thread.samples if thread.samples else None,
        block_io_pct=None if thread.block_io_s is None else share(thread.block_io_s, span_s),
        samples=thread.samples,
    )


def share(seconds: float, span_s: float) -> float:
    """Return `seconds` of one thread in percent of the window, at most 100."""
    return min(100.0, 100 * seconds / span_s)


def _processes(frame: pl.DataFrame, members: frozenset[int], span_s: float) -> list[data.Process]:
    found = []
    start = frame["at_ns"].min()
    end = frame["at_ns"].max()
    midpoint = (int(start) + int(end)) // 2 if isinstance(start, int) and isinstance(end, int) else 0
    for rows in _series(frame, lambda r: (r["pid"], r["start_ticks"])).values():
        first, last = rows[0], rows[-1]
        if len(rows) == 1:
            if last["at_ns"] < midpoint:
                continue  # it ended during the window: its growth is unknown
            # It began during the window: all counters started at zero.
            first = {name: 0 if isinstance(value, int) and value >= 0 else value for name, value in last.items()}
        seconds = max(span_s, (last["at_ns"] - first["at_ns"]) / 1e9 if len(rows) > 1 else 0.0)
        cpu = {name: _grown(first, last, f"{name}_ns") or 0.0 for name in ("user", "system")}
        block = _grown(first, last, "block_io_ns") if last["block_io_ns"] > 0 else None
        reads, writes = (_grown(first, last, f"{name}_bytes", unit=1.0) for name in ("read", "write"))
        found.append(
            data.Process(
                pid=last["pid"],
                comm=last["comm"],
                in_target=last["pid"] in members,
                cpu_pct=100 * sum(cpu.values()) / seconds,
                user_pct=100 * cpu["user"] / seconds,
                system_pct=100 * cpu["system"] / seconds,
                block_io_pct=None if block is None else share(block, seconds),
                major_faults=max(0, last["major_faults"] - first["major_faults"]),
                minor_faults=max(0, last["minor_faults"] - first["minor_faults"]),
                grown_bytes=last["rss_bytes"] - first["rss_bytes"],
                returned_bytes=sum(max(0, a["rss_bytes"] - b["rss_bytes"]) for a, b in pairwise(rows)),
                kernel=last["ppid"] == _KTHREADD or last["pid"] == _KTHREADD,
                read_bytes_rate=None if reads is None else reads / seconds,
                write_bytes_rate=None if writes is None else writes / seconds,
                rss_bytes=last["rss_bytes"],
                threads=last["threads"],
                cgroup=last["cgroup"],
            )
        )
    return found


def _disks(frame: pl.DataFrame) -> list[data.Disk]:
    """Return the disks that completed requests, were busy, or have requests in flight."""
    found = []
    for device, rows in _series(frame, lambda r: str(r["device"])).items():
        first, last = rows[0], rows[-1]
        seconds = (last["at_ns"] - first["at_ns"]) / 1e9
        grown = {
            name: last[name] - first[name]
            for name in ("reads", "writes", "read_bytes", "write_bytes", "read_ms", "write_ms", "busy_ms")
        }
        requests = grown["reads"] + grown["writes"]
        # Decreased counters belong to another disk that got the same name.
        if seconds <= 0 or min(grown.values()) < 0 or not (requests or grown["busy_ms"] or last["in_flight"]):
            continue
        found.append(
            data.Disk(
                device=device,
                util_pct=min(100.0, grown["busy_ms"] / 10 / seconds),
                await_ms=(grown["read_ms"] + grown["write_ms"]) / requests if requests else None,
                iops=requests / seconds,
                read_bytes_rate=grown["read_bytes"] / seconds,
                write_bytes_rate=grown["write_bytes"] / seconds,
                in_flight=max(0, last["in_flight"]),
            )
        )
    return found


def _cgroups(frame: pl.DataFrame) -> list[data.CgroupRow]:
    found = []
    for (path, version), rows in _series(frame, lambda r: (str(r["cgroup"]), int(r["version"]))).items():
        first, last = rows[0], rows[-1]
        quota = last["quota_us"] / last["period_us"] if last["quota_us"] > 0 and last["period_us"] > 0 else None
        found.append(
            data.CgroupRow(
                cgroup=path,
                version=version,
                quota_cpus=quota,
                periods=_count(first, last, "periods"),
                throttled_periods=_count(first, last, "throttled_periods"),
                throttled_s=_grown(first, last, "throttled_ns"),
                memory_bytes=_known(last["memory_bytes"]),
                memory_limit_bytes=_known(last["memory_limit_bytes"]),
                memory_limit_hits=_count(first, last, "memory_limit_hits"),
            )
        )
    return found


def _series(frame: pl.DataFrame, key: Callable[[_Row], _Key]) -> dict[_Key, list[_Row]]:
    """Return the rows by key, in order of time. If CPU time decreased (a reused id), only the rows since then."""
    found: dict[_Key, list[_Row]] = {}
    for row in frame.sort("at_ns", maintain_order=True).iter_rows(named=True):
        rows = found.setdefault(key(row), [])
        if rows and any(row[c] < rows[-1][c] for c in ("user_ns", "system_ns") if c in row):
            rows.clear()
        rows.append(row)
    return found


def _grown(first: _Row, last: _Row, name: str, unit: float = 1e9) -> float | None:
    """Return the growth of a counter in seconds (or `unit`); None if either reading is unknown."""
    if first[name] < 0 or last[name] < 0:
        return None
    return float(max(0, last[name] - first[name])) / unit


def _count(first: _Row, last: _Row, name: str) -> int | None:
    grown = _grown(first, last, name, unit=1.0)
    return None if grown is None else int(grown)


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _top(rows: Iterable[data.Process], limit: int, weight: Callable[[data.Process], float]) -> list[data.Process]:
    return sorted((r for r in rows if weight(r) > 0), key=weight, reverse=True)[:limit]
