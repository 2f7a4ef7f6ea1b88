"""Parsers of /proc and cgroup files: bytes in, numbers and inert text out.

Formats: proc(5), Documentation/filesystems/proc.rst, Documentation/admin-guide/iostats.rst,
Documentation/accounting/psi.rst and cgroup-v2.rst of the kernel. A malformed file raises ValueError. Extra fields are
ignored, since kernels append new ones.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from whystall.tools.contract.text import clean, clean_path

NS = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SECTOR = 512
"""Unit of /proc/diskstats, whatever the disk's own sector size."""
UNKNOWN = -1
"""A counter that this kernel does not have or that we may not read."""


def ticks_ns(ticks: int) -> int:
    """Convert clock ticks (USER_HZ) to nanoseconds."""
    return ticks * NS // TICKS


class PidStat(NamedTuple):
    """/proc/PID/stat or /proc/PID/task/TID/stat; times in ns since the start of the process or thread. `priority`: of a
    real-time thread, 1 (low) to 99; `policy`: its number in ``linux/sched.h``; `processor`: where it ran last."""

    pid: int
    comm: str
    state: str
    ppid: int
    minor_faults: int
    major_faults: int
    user_ns: int
    system_ns: int
    threads: int
    start_ticks: int
    rss_bytes: int
    block_io_ns: int
    priority: int
    policy: int
    nice: int = 0
    exit_code: int = UNKNOWN
    processor: int = UNKNOWN


def pid_stat(raw: bytes) -> PidStat:
    """Parse a stat file. The name, from the first ``(`` to the last ``)``, may contain anything::

    4711 (python3) S 4700 4711 4700 34816 4711 4194304 2190 0 3 0 12 4 0 0 20 0 1 0 8812345 ...
    """
    head, paren, rest = raw.partition(b"(")
    comm, end, tail = rest.rpartition(b")")
    fields = tail.split()
    if not paren or not end or len(fields) < 40:
        raise ValueError("not a /proc/PID/stat line")
    return PidStat(
        pid=int(head),
        comm=clean(comm),
        state=clean(fields[0], 1),
        ppid=int(fields[1]),
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        user_ns=ticks_ns(int(fields[11])),
        system_ns=ticks_ns(int(fields[12])),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE,
        block_io_ns=ticks_ns(int(fields[39])),
        priority=int(fields[37]),
        policy=int(fields[38]),
        nice=int(fields[16]),
        exit_code=int(fields[49]) if len(fields) > 49 else UNKNOWN,
        processor=int(fields[36]),
    )


class SchedStat(NamedTuple):
    """A thread's ns on a CPU, ns runnable without one, and how often it was given a CPU; -1 if not kept."""

    run_ns: int
    wait_ns: int
    slices: int


def schedstat(raw: bytes) -> SchedStat:
    """Parse /proc/PID/schedstat: ``1802312 52119 77``; ``0 0 0`` on a kernel without that accounting."""
    run, wait, slices = map(int, raw.split()[:3])
    return SchedStat(run, wait, slices) if run or wait or slices else SchedStat(UNKNOWN, UNKNOWN, UNKNOWN)


def keyed(raw: bytes) -> dict[str, int]:
    """Parse "name value" or "name: value [kB]" lines (vmstat, meminfo, io, cpu.stat, memory.stat, memory.events).

    Values in kB are converted to bytes; other lines are ignored.
    """
    found: dict[str, int] = {}
    for line in raw.splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].lstrip(b"-").isdigit():
            continue
        value = int(words[1]) * (1024 if words[2:3] == [b"kB"] else 1)
        found[clean(words[0].rstrip(b":"))] = value
    return found


class CpuTimes(NamedTuple):
    """One cpu line of /proc/stat: ns by state; `user` includes guests, `idle` excludes `iowait`."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    @property
    def total(self) -> int:
        """Return the sum of all states."""
        return sum(self)

    @property
    def busy(self) -> int:
        """Return the time in which the CPU was neither idle nor idle for I/O."""
        return self.total - self.idle - self.iowait


class HostStat(NamedTuple):
    """/proc/stat: all CPUs together, each CPU by number, and counters."""

    all: CpuTimes
    cpus: dict[int, CpuTimes]
    context_switches: int
    forks: int
    runnable: int
    blocked: int


_STAT_COUNTERS = (b"ctxt", b"processes", b"procs_running", b"procs_blocked")


def host_stat(raw: bytes) -> HostStat:
    """Parse /proc/stat; offline CPUs have no line::

    cpu0 1393280 32966 572056 13343292 6130 0 17875 0 23933 0
    ctxt 3172381
    """
    total: CpuTimes | None = None
    cpus: dict[int, CpuTimes] = {}
    counters: dict[bytes, int] = {}
    for line in raw.splitlines():
        name, _, rest = line.partition(b" ")
        if name.startswith(b"cpu"):
            values = [ticks_ns(int(v)) for v in rest.split()[: len(CpuTimes._fields)]]
            times = CpuTimes(*values, *[0] * (len(CpuTimes._fields) - len(values)))
            if name == b"cpu":
                total = times
            else:
                cpus[int(name[3:])] = times
        elif name in _STAT_COUNTERS:
            counters[name] = int(rest)
    if total is None:
        raise ValueError("no cpu line in /proc/stat")
    return HostStat(total, cpus, *(counters.get(name, UNKNOWN) for name in _STAT_COUNTERS))


def loadavg(raw: bytes) -> tuple[float, float, float]:
    """Parse /proc/loadavg: ``0.42 0.31 0.28 2/845 4711``; the averages over 1, 5 and 15 minutes."""
    one, five, fifteen = map(float, raw.split()[:3])
    return one, five, fifteen


def pressure(raw: bytes) -> dict[str, int]:
    """Parse the total stall time in microseconds by kind (``some``, ``full``) of a PSI file::

    some avg10=0.00 avg60=0.12 avg300=0.05 total=2812341
    """
    found: dict[str, int] = {}
    for line in raw.splitlines():
        kind, *pairs = line.split()
        for pair in pairs:
            key, _, value = pair.partition(b"=")
            if key == b"total" and kind in (b"some", b"full"):
                found[kind.decode()] = int(value)
    return found


class DiskStat(NamedTuple):
    """A line of /proc/diskstats, since boot; discards and flushes are -1 on kernels before 4.18 and 5.5."""

    device: str
    dev: str
    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    write_bytes: int
    write_ms: int
    in_flight: int
    busy_ms: int
    discards: int
    discard_bytes: int
    discard_ms: int
    flushes: int
    flush_ms: int


def diskstats(raw: bytes) -> list[DiskStat]:
    """Parse /proc/diskstats, disks and partitions::

    8       0 sda 1436 21 52114 412 880 312 40120 903 0 610 1315
    """
    disks = []
    for line in raw.splitlines():
        words = line.split()
        if len(words) < 14:
            continue
        n = [int(w) for w in words[3:]]
        n += [UNKNOWN] * (17 - len(n))
        disks.append(
            DiskStat(
                device=clean(words[2]),
                dev=f"{int(words[0])}:{int(words[1])}",
                reads=n[0],
                read_bytes=n[2] * SECTOR,
                read_ms=n[3],
                writes=n[4],
                write_bytes=n[6] * SECTOR,
                write_ms=n[7],
                in_flight=n[8],
                busy_ms=n[9],
                discards=n[11],
                discard_bytes=n[13] * SECTOR if n[13] >= 0 else UNKNOWN,
                discard_ms=n[14],
                flushes=n[15],
                flush_ms=n[16],
            )
        )
    return disks


class InSyscall(NamedTuple):
    """/proc/PID/syscall of a thread off the CPU; `nr` -1 if it blocked outside a system call."""

    nr: int
    args: tuple[int, ...]


def syscall(raw: bytes) -> InSyscall | None:
    """Parse /proc/PID/syscall; None for a thread on a CPU (``running``)::

    0 0x3 0x7ffc8a10 0x1000 0x0 0x0 0x0 0x7ffc89e8 0x7f1e2a
    """
    words = raw.split()
    if not words or words[0] == b"running":
        return None
    return InSyscall(int(words[0]), tuple(int(w, 16) for w in words[1:7]) if len(words) >= 7 else ())


# [<0>] pipe_read+0x1f/0x40
_FRAME = re.compile(rb"^\[<[0-9a-fA-FxX]*>\] ([^+\s]+)")


def kernel_stack(raw: bytes) -> list[str]:
    """Return the functions of /proc/PID/stack, innermost first."""
    return [clean(m[1]) for line in raw.splitlines() if (m := _FRAME.match(line))]


class FdInfo(NamedTuple):
    """/proc/PID/fdinfo/N: file position, open flags, mount, and inode (0 before kernel 5.14)."""

    position: int
    flags: int
    mount_id: int
    inode: int


def fdinfo(raw: bytes) -> FdInfo:
    """Parse the head of an fdinfo file."""
    found: dict[bytes, bytes] = {}
    for line in raw.splitlines():
        name, colon, value = line.partition(b":")
        if colon:
            found.setdefault(name, value.strip())
    try:
        return FdInfo(
            int(found[b"pos"]), int(found[b"flags"], 8), int(found.get(b"mnt_id", b"-1")), int(found.get(b"ino", b"0"))
        )
    except KeyError as error:
        raise ValueError(f"fdinfo without {error}") from None


def link_path(link: bytes) -> tuple[str, bool]:
    """Return the inert path of a /proc/PID/fd link, and whether the kernel marked the file as deleted.

    A file whose name ends in " (deleted)" looks like a deleted one.
    """
    plain = link.removesuffix(b" (deleted)")
    return clean_path(plain), plain != link
