"""Find the other processes that use the disks while the target waits for I/O. Pure."""

from __future__ import annotations

from collections.abc import Collection

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding
from whystall.tools.host.host_snapshot import data
from whystall.tools.host.host_snapshot.measures import Measures, share

# A process with less of the bytes that all processes move, or with a lower rate, is not named.
_LEAST_PCT = 5.0
_LEAST_RATE = 100_000.0
# A process is charged with the I/O of a child when it reaps it (wait4), and uses no CPU for that.
_LEAST_CPU_PCT = 0.2
_MOST = 5
# A disk on which others leave no room: it is busy for most of the time (or a limit above it is reached), nearly all
# that it moves is not the target's, and processes beside the target move most of what processes move. The target's
# counters leave out what its journal adds: a small synchronous write costs several times its size.
_BUSY_PCT = 70.0
_OTHERS_PCT = 80.0
_NEIGHBOURS_PCT = 60.0
_LEAST_DISK_RATE = 1_000_000.0
# Least share of a thread's time in uninterruptible sleep, or in block I/O, at which the target waits for I/O.
_WAITS_PCT = 10.0
_WAITS_SAMPLES = 2


def disk_neighbours(m: Measures) -> list[Finding]:
    """Return a finding for each other process that reads from or writes to storage much, by bytes per second; none
    unless the target waits for I/O.

    The counters (/proc/PID/io) do not say which disk a process uses, and count a buffered write when the page becomes
    dirty (Documentation/filesystems/proc.rst). Threads of the kernel (writeback, loop devices, journals) are left out:
    they move the data of processes, perhaps of the target itself.
    """
    if not m.target_pids or not _waits(m):
        return []
    programs = [p for p in m.processes if not p.kernel]
    total = sum(_rate(p) for p in programs)
    others = sorted((p for p in programs if not p.in_target), key=_rate, reverse=True)
    return [
        finding(
            "disk.neighbour",
            Subject(type="process", pid=p.pid, comm=p.comm),
            m.span,
            {
                "read_rate": p.read_bytes_rate,
                "write_rate": p.write_bytes_rate,
                "bytes_pct": 100 * _rate(p) / total,
            },
            Severity.MINOR,
        )
        for p in others[:_MOST]
        if _rate(p) >= max(_LEAST_RATE, total * _LEAST_PCT / 100) and p.cpu_pct >= _LEAST_CPU_PCT
    ]


def contended_disks(m: Measures, limited: Collection[str]) -> list[Finding]:
    """Return a finding for each disk that processes beside the target keep busy. `limited`: disks above which a limit
    is reached that binds the target."""
    if not m.target_pids or not _waits(m):
        return []
    programs = [p for p in m.processes if not p.kernel]
    own = sum(_rate(p) for p in programs if p.in_target)
    beside = sum(_rate(p) for p in programs if not p.in_target and p.cpu_pct >= _LEAST_CPU_PCT)
    if beside < _NEIGHBOURS_PCT / 100 * (own + beside):
        return []
    found = []
    for disk in m.disks:
        rate = disk.read_bytes_rate + disk.write_bytes_rate
        others_pct = 100 * (1 - own / rate) if rate else 0.0
        busy = disk.util_pct >= _BUSY_PCT or disk.device in limited
        # the neighbours cannot have moved what another disk did
        theirs = beside >= _NEIGHBOURS_PCT / 100 * (rate - own)
        if busy and rate >= _LEAST_DISK_RATE and others_pct >= _OTHERS_PCT and theirs:
            metrics = {"util_pct": disk.util_pct, "others_pct": others_pct, "rate": rate}
            found.append(
                finding("disk.contended", Subject(type="device", device=disk.device), m.span, metrics, Severity.MAJOR)
            )
    return found


def _waits(m: Measures) -> bool:
    blocked = any(t.uninterruptible >= max(_WAITS_SAMPLES, t.samples * _WAITS_PCT / 100) for t in m.threads)
    return blocked or any(share(t.block_io_s or 0.0, m.span_s) >= _WAITS_PCT for t in m.threads)


def _rate(process: data.Process) -> float:
    return (process.read_bytes_rate or 0.0) + (process.write_bytes_rate or 0.0)
