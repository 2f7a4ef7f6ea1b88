"""Judge the counters of a host: which show a problem, and which are normal.

Thresholds are shares of a thread's or the host's time where the kernel accounts time; the cost of counts and rates
depends on the hardware. From 5 % on, users notice a slower job (steps of a training job vary by less). Other
reasons stand at the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whystall.tools.contract.findings import Finding, Polarity, Severity, Subject
from whystall.tools.contract.proportion import wilson
from whystall.tools.host.common.findings import finding, severity
from whystall.tools.host.host_snapshot import data
from whystall.tools.host.host_snapshot.disk_neighbours import disk_neighbours
from whystall.tools.host.host_snapshot.measures import Measures, ThreadTime, share
from whystall.tools.recording.target import Target

NOTICEABLE_PCT = 5.0
RUNQUEUE_MAJOR_PCT = 20.0
# At 1 ms each (a network-attached cloud disk) these are 5 % of one thread's time; on local NVMe about 0.5 %.
MAJOR_FAULT_RATE = 50.0
MAJOR_FAULT_RATE_MAJOR = 200.0
# Without huge pages, a fault and clearing its page take some 0.5 us; with them 0.1 ms: here 5 % of a CPU.
MINOR_FAULT_RATE = 500.0
# Memory that is fetched for the first time stays: a process that fills memory grows by this share of it at least.
_KEPT_SHARE, _PAGE = 0.5, 4096
# USE method (B. Gregg): utilisation near 100 % and a queue. High utilisation alone is a job doing its work.
BUSY_PCT = 90.0
QUEUE_PER_CPU = 1.2
QUEUE_PER_CPU_MAJOR = 2.0
PSI_CPU_PCT = 25.0
NEIGHBOUR_CPU_PCT = 10.0
# Throttling for 1 % of the time, or in 5 % of the periods, already delays single steps by up to a period.
THROTTLED_PCT = 1.0
THROTTLED_PERIODS_PCT = 5.0
# Direct reclaim is done by the allocating thread. PSI shows its cost; the number of pages does not.
DIRECT_SCAN_RATE = 100.0
PSI_MEMORY_PCT = 1.0
PSI_MEMORY_HIGH_PCT = NOTICEABLE_PCT
# A cgroup full of clean page cache hits its limit constantly at little cost; it is a problem only with memory stalls.
LIMIT_HIT_RATE = 1.0
# Usage is a single reading, which may be just after a reclaim.
LIMIT_FULL_PCT = 90.0
# /proc/vmstat counts pages; 64 KiB pages (some aarch64 kernels) make the share of refaults too small, never too large.
PAGE_BYTES = 4096
SWAP_IN_RATE = MAJOR_FAULT_RATE
SWAP_OUT_RATE = 1000.0
# iostat(1): utilisation is meaningless for a device that serves requests in parallel, so the wait must be long too.
DISK_UTIL_PCT = 90.0
DISK_AWAIT_MS = 20.0

_THREADS = 8
_PROCESSES = 8
_NEIGHBOURS = 3
_STATE_SAMPLES = 10  # with fewer, a chance hit decides


def findings(m: Measures, target: Target) -> list[Finding]:
    """Return all findings, the target's threads first."""
    delayed = [t for t in m.threads if t.wait_s is not None and share(t.wait_s, m.span_s) >= NOTICEABLE_PCT]
    saturated = _cpu_saturated(m)
    return [
        *_thread_time(m),
        *_runqueue(m, delayed),
        *_system_time(m),
        *_io_wait(m),
        *_major_faults(m),
        *_minor_faults(m),
        *saturated,
        *_interrupts(m),
        *_neighbours(m, delayed, saturated),
        *_throttled(m, target),
        *_memory(m),
        *_memory_limit(m, target),
        *_disks(m),
        *disk_neighbours(m),
    ]


def _thread(t: ThreadTime) -> Subject:
    return Subject(type="thread", pid=t.pid, tid=t.tid, comm=t.comm)


def _process(p: data.Process) -> Subject:
    return Subject(type="process", pid=p.pid, comm=p.comm)


_HOST = Subject(type="host")


def _thread_time(m: Measures) -> list[Finding]:
    return [
        finding(
            "thread.time",
            _thread(t),
            t.span,
            {
                "user_pct": share(t.user_s, m.span_s),
                "system_pct": share(t.system_s, m.span_s),
                "runnable_pct": None if t.wait_s is None else share(t.wait_s, m.span_s),
                "blocked_pct": 100 * t.uninterruptible / t.samples if t.samples > 1 else None,
                "block_io_pct": None if t.block_io_s is None else share(t.block_io_s, m.span_s),
            },
        )
        for t in m.threads[:_THREADS]
    ]


def _runqueue(m: Measures, delayed: list[ThreadTime]) -> list[Finding]:
    """Return findings about threads that waited for a CPU, and a normal one about the busiest other per process."""
    worst = sorted(delayed, key=lambda t: -(t.wait_s or 0.0))[:_THREADS]
    known = [t for t in m.threads if t.wait_s is not None]
    worst += [t for t in _busiest_threads(known, lambda t: t.run_s or 0.0) if t not in delayed]
    found = []
    for t in worst:
        pct = share(t.wait_s or 0.0, m.span_s)
        # Below 20 % the job is slower, not stalled.
        bad = severity(pct) if pct >= RUNQUEUE_MAJOR_PCT else Severity.MINOR
        metrics = {"wait_s": t.wait_s, "run_s": t.run_s, "window_pct": pct}
        found.append(finding("sched.runqueue_delay", _thread(t), t.span, metrics, bad if t in delayed else None))
    return found


def _busiest_threads(threads: Iterable[ThreadTime], weight: Callable[[ThreadTime], float]) -> list[ThreadTime]:
    """Return each process's thread with the largest `weight`, largest first."""
    busiest: dict[int, ThreadTime] = {}
    for thread in threads:
        if thread.pid not in busiest or weight(thread) > weight(busiest[thread.pid]):
            busiest[thread.pid] = thread
    return sorted(busiest.values(), key=weight, reverse=True)[:_PROCESSES]


def _system_time(m: Measures) -> list[Finding]:
    """Return findings about threads with much CPU time in the kernel, and a normal one about the busiest other per
    process."""

    def hurts(t: ThreadTime) -> bool:
        # Computing threads spend 1 or 2 % in the kernel (ticks, faults). The share of the window counts, not that of
        # the CPU time: a stall of a fifth of each step is one even if the rest of the step computes.
        return share(t.system_s, m.span_s) >= NOTICEABLE_PCT

    worst = sorted((t for t in m.threads if hurts(t)), key=lambda t: -t.system_s)[:_THREADS]
    worst += [t for t in _busiest_threads(m.threads, lambda t: t.user_s + t.system_s) if not hurts(t)]
    found = []
    for t in worst:
        pct = share(t.system_s, m.span_s)
        metrics = {"system_s": t.system_s, "user_s": t.user_s, "window_pct": pct}
        grade = severity(pct) if hurts(t) else None
        found.append(finding("process.system_time", _thread(t), t.span, metrics, grade))
    return found


def _io_wait(m: Measures) -> list[Finding]:
    """Return one finding per target process, about its thread that waits most for I/O.

    From delay accounting if active, else from the samples in uninterruptible sleep: only if the 95 % Wilson score
    interval of their share lies on one side of the threshold.
    """
    worst: dict[int, tuple[float, bool, ThreadTime]] = {}
    unsure: set[int] = set()
    for t in m.threads:
        length_s = (t.span.end_ns - t.span.start_ns) / 1e9
        if t.block_io_s is not None:
            pct = share(t.block_io_s, m.span_s)
            bad = pct >= NOTICEABLE_PCT
        elif t.samples >= _STATE_SAMPLES:
            low, high = wilson(t.uninterruptible, t.samples)
            scale = length_s / m.span_s
            pct = 100 * scale * t.uninterruptible / t.samples
            bad = 100 * scale * low >= NOTICEABLE_PCT
            if not bad and 100 * scale * high >= NOTICEABLE_PCT:
                unsure.add(t.pid)
        else:
            unsure.add(t.pid)
            continue
        if t.pid not in worst or (bad, pct) > (worst[t.pid][1], worst[t.pid][0]):
            worst[t.pid] = (pct, bad, t)
    found = []
    for pid, (pct, bad, t) in sorted(worst.items(), key=lambda item: -item[1][0])[:_PROCESSES]:
        if not bad and pid in unsure:
            continue
        subject = Subject(type="process", pid=t.pid, tid=t.tid, comm=t.comm)
        metrics = {"block_io_s": pct / 100 * m.span_s, "window_pct": pct}
        found.append(finding("process.io_wait", subject, t.span, metrics, severity(pct) if bad else None))
    return found


def _major_faults(m: Measures) -> list[Finding]:
    """Return findings about processes with many major faults, and normal ones about others of the target."""
    candidates = [p for p in m.processes if p.in_target or not m.target_pids]
    found = []
    for p in sorted(candidates, key=lambda p: -p.major_faults)[: _PROCESSES if m.target_pids else _NEIGHBOURS]:
        rate = p.major_faults / m.span_s
        bad = None
        if rate >= MAJOR_FAULT_RATE:
            bad = Severity.MAJOR if rate >= MAJOR_FAULT_RATE_MAJOR else Severity.MINOR
        if bad or m.target_pids:
            found.append(
                finding("process.major_faults", _process(p), m.span, {"count": p.major_faults, "rate": rate}, bad)
            )
    return found


def _minor_faults(m: Measures) -> list[Finding]:
    """Return findings about processes of the target that fault in far more memory than they grow by: they give memory
    back to the kernel and fetch it again. Normal ones about the others.

    A fault fetches at least one page; more with huge pages, or around a fault of a mapped file.
    """
    found = []
    for p in sorted((p for p in m.processes if p.in_target), key=lambda p: -p.minor_faults)[:_PROCESSES]:
        rate = p.minor_faults / m.span_s
        # what it gave back meanwhile shows that it only happened to end with more
        kept = p.grown_bytes >= max(_KEPT_SHARE * _PAGE * p.minor_faults, p.returned_bytes)
        bad = Severity.MINOR if rate >= MINOR_FAULT_RATE and not kept else None
        metrics = {"count": p.minor_faults, "rate": rate, "grown_bytes": p.grown_bytes if p.grown_bytes > 0 else None}
        found.append(finding("process.minor_faults", _process(p), m.span, metrics, bad))
    return found


def _psi(m: Measures, resource: str) -> float | None:
    return next((p.some_pct for p in m.tables.pressure if p.resource == resource), None)


def _confined(m: Measures) -> bool:
    """Return whether the target may use only some of the host's CPUs."""
    return m.tables.cpu is not None and 0 < m.target_cpus < m.tables.cpu.cpus


def _cpu_saturated(m: Measures) -> list[Finding]:
    """Judge the CPUs that the target may use. The run queue is known for the whole host only."""
    queue = m.tables.run_queue
    if m.target_cpu_busy_pct is None or queue is None:
        return []
    per_cpu = None if _confined(m) else queue.runnable_mean / max(m.target_cpus, 1)
    psi = None if _confined(m) else _psi(m, "cpu")
    if per_cpu is None:
        queued = any((t.wait_s or 0.0) >= NOTICEABLE_PCT / 100 * m.span_s for t in m.threads)
    else:
        queued = per_cpu >= QUEUE_PER_CPU or (psi is not None and psi >= PSI_CPU_PCT)
    bad = None
    if m.target_cpu_busy_pct >= BUSY_PCT and queued:
        bad = Severity.MAJOR if (per_cpu or 0.0) >= QUEUE_PER_CPU_MAJOR else Severity.MINOR
    metrics = {
        "busy_pct": m.target_cpu_busy_pct,
        "allowed_cpus": m.target_cpus if _confined(m) else None,
        "runnable_per_cpu": per_cpu,
        "psi_some_pct": psi,
    }
    cpus = {"cpus": m.target_cpu_list} if _confined(m) and m.target_cpu_list else None
    return [finding("cpu.saturated", _HOST, m.span, metrics, bad, cpus)]


def _interrupts(m: Measures) -> list[Finding]:
    """Return that no CPU spends much time in handlers of interrupts, if all CPUs together spend little."""
    cpu = m.tables.cpu
    if cpu is None or cpu.interrupt_pct * cpu.cpus >= NOTICEABLE_PCT:
        return []
    return [finding("irq.load", _HOST, m.span, {"cpu_pct": cpu.interrupt_pct * cpu.cpus})]


def _neighbours(m: Measures, delayed: list[ThreadTime], saturated: list[Finding]) -> list[Finding]:
    """Return findings about other processes that use CPU: abnormal only if the target waits for CPUs that are all busy.

    Without a finding if the target is confined to some CPUs, since counters do not show which processes run there.
    """
    if not m.target_pids:
        return []
    others = sorted((p for p in m.processes if not p.in_target), key=lambda p: -p.cpu_pct)[:_NEIGHBOURS]
    full = any(f.polarity is Polarity.ABNORMAL for f in saturated)
    # A throttled thread is accounted as waiting for a CPU, but not because of a neighbour.
    waited = max((share(t.wait_s or 0.0, m.span_s) for t in delayed), default=0.0)
    quota = max((share(c.throttled_s or 0.0, m.span_s) for c in m.cgroups), default=0.0)
    if delayed and (not full or _confined(m) or waited - quota < NOTICEABLE_PCT):
        return []
    found = []
    for p in others:
        bad = None
        if delayed and p.cpu_pct >= NEIGHBOUR_CPU_PCT:
            bad = Severity.MAJOR if p.cpu_pct >= 100 / 2 else Severity.MINOR
        found.append(finding("cpu.neighbour", _process(p), m.span, {"cpu_pct": p.cpu_pct}, bad))
    return found


def _cgroup(row: data.CgroupRow, target: Target) -> Subject:
    return Subject(type="cgroup", cgroup=row.cgroup, pid=target.sole_pid, comm=target.comm)


def _throttled(m: Measures, target: Target) -> list[Finding]:
    """Judge cgroups with a CPU quota; if none has one, the innermost that could have."""
    readable = [c for c in m.cgroups if c.throttled_s is not None or c.quota_cpus is not None]
    limited = [c for c in readable if c.quota_cpus is not None or c.throttled_s]
    if not limited and m.target_pids:
        limited = sorted(readable, key=lambda c: -len(c.cgroup))[:1]
    found = []
    for c in limited:
        periods, hit = c.periods or 0, c.throttled_periods or 0
        # Throttled time is summed over CPUs; `share` limits it to what one thread can lose.
        pct = share(c.throttled_s or 0.0, m.span_s)
        bad = None
        if pct >= THROTTLED_PCT or (periods and 100 * hit / periods >= THROTTLED_PERIODS_PCT and hit > 1):
            bad = severity(pct)
        metrics: dict[str, float | None] = {
            "throttled_s": c.throttled_s,
            "window_pct": pct,
            "throttled_periods": c.throttled_periods,
            "periods": c.periods,
            "quota_cpus": c.quota_cpus,
        }
        found.append(finding("cgroup.cpu_throttled", _cgroup(c, target), m.span, metrics, bad))
    return found


def _refault_pct(m: Measures) -> float | None:
    """Return the share of the bytes read from disks that had been evicted shortly before (workingset_refault_file)."""
    refaults, read = m.tables.memory.file_refault_rate, sum(d.read_bytes_rate for d in m.disks)
    if refaults is None:
        return None
    return min(100.0, 100 * refaults * PAGE_BYTES / read) if read > 0 else 0.0


def _memory(m: Measures) -> list[Finding]:
    """Judge reclaim and swapping of the host."""
    memory, psi = m.tables.memory, _psi(m, "memory")
    found = []
    direct, kswapd = memory.direct_scan_rate, memory.kswapd_scan_rate
    if direct is not None or psi is not None:
        bad = None
        scans = (direct or 0.0) + (kswapd or 0.0) > 0
        if (direct or 0.0) >= DIRECT_SCAN_RATE and (psi is None or psi >= PSI_MEMORY_PCT):
            bad = Severity.MINOR
        if psi is not None and psi >= PSI_MEMORY_HIGH_PCT and scans:
            bad = severity(psi)
        metrics = {
            "direct_scan_rate": direct,
            "kswapd_scan_rate": kswapd,
            "steal_rate": memory.steal_rate,
            "psi_some_pct": psi,
            "refault_pct": _refault_pct(m),
        }
        found.append(finding("memory.reclaim", _HOST, m.span, metrics, bad))
    inward, outward = memory.swap_in_rate, memory.swap_out_rate
    if inward is not None or outward is not None:
        bad = None
        if (inward or 0.0) >= SWAP_IN_RATE:
            bad = Severity.MAJOR
        elif (outward or 0.0) >= SWAP_OUT_RATE:
            bad = Severity.MINOR
        metrics = {"swap_in_rate": inward, "swap_out_rate": outward}
        found.append(finding("memory.swap", _HOST, m.span, metrics, bad))
    return found


def _memory_limit(m: Measures, target: Target) -> list[Finding]:
    """Judge cgroups with a memory limit."""
    psi = _psi(m, "memory")
    found = []
    for c in m.cgroups:
        if c.memory_limit_bytes is None or c.memory_limit_hits is None:
            continue
        rate = c.memory_limit_hits / m.span_s
        used = 100 * (c.memory_bytes or 0) / max(c.memory_limit_bytes, 1)
        bad = None
        if rate >= LIMIT_HIT_RATE and used >= LIMIT_FULL_PCT and (psi is None or psi >= PSI_MEMORY_PCT):
            bad = severity(psi or 0.0)
        metrics: dict[str, float | None] = {
            "usage_bytes": c.memory_bytes,
            "limit_bytes": c.memory_limit_bytes,
            "limit_hits": c.memory_limit_hits,
            "limit_hit_rate": rate,
            "refault_pct": _refault_pct(m),
        }
        found.append(finding("memory.cgroup_limit", _cgroup(c, target), m.span, metrics, bad))
    return found


def _disks(m: Measures) -> list[Finding]:
    return [
        finding(
            "disk.saturated",
            Subject(type="device", device=d.device),
            m.span,
            {
                "util_pct": d.util_pct,
                "await_ms": d.await_ms,
                "iops": d.iops,
                "read_rate": d.read_bytes_rate,
                "write_rate": d.write_bytes_rate,
            },
            _disk_grade(d),
        )
        for d in sorted(m.disks, key=lambda d: (-d.util_pct, d.device))[:_PROCESSES]
    ]


def is_saturated(d: data.Disk) -> bool:
    """Return whether a disk is busy nearly all of the time and its requests wait long."""
    return _disk_grade(d) is not None


def _disk_grade(d: data.Disk) -> Severity | None:
    if d.util_pct < DISK_UTIL_PCT:
        return None
    if d.await_ms is None:
        return Severity.CRITICAL if d.in_flight else None  # requests are in flight and none completed
    if d.await_ms < DISK_AWAIT_MS:
        return None
    return Severity.MAJOR if d.await_ms >= 5 * DISK_AWAIT_MS else Severity.MINOR
