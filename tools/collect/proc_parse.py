"""Pure parsers of /proc and cgroup files: bytes in, numbers and inert text out.

Formats: proc(5), Documentation/filesystems/proc.rst, Documentation/admin-guide/iostats.rst,
Documentation/accounting/psi.rst and cgroup-v2.rst of the kernel. A malformed file raises ValueError (IndexError is
turned into it), never anything else; files grow fields at their end, so extra ones are ignored.
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
"""Stands for a counter that this kernel or our permissions do not offer."""


def ticks_ns(ticks: int) -> int:
    """Clock ticks (USER_HZ) in nanoseconds."""
    return ticks * NS // TICKS


class PidStat(NamedTuple):
    """/proc/PID/stat or /proc/PID/task/TID/stat; times in ns since the start of the process or thread."""

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


def pid_stat(raw: bytes) -> PidStat:
    """Parse a stat file. The command name is whatever stands between the first ``(`` and the last ``)``."""
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
    )


class SchedStat(NamedTuple):
    """schedstat of a thread: ns on a CPU, ns runnable without one, times it was put on a CPU; -1 if not kept."""

    run_ns: int
    wait_ns: int
    slices: int


def schedstat(raw: bytes) -> SchedStat:
    """Parse /proc/PID/schedstat; "0 0 0" is what a kernel without that accounting prints."""
    run, wait, slices = map(int, raw.split()[:3])
    return SchedStat(run, wait, slices) if run or wait or slices else SchedStat(UNKNOWN, UNKNOWN, UNKNOWN)


def keyed(raw: bytes) -> dict[str, int]:
    """Parse "name value" or "name: value [kB]" lines (vmstat, meminfo, io, cpu.stat, memory.stat, memory.events).

    Values with a unit of kB come out in bytes. Lines that are no such pair are left out.
    """
    found: dict[str, int] = {}
    for line in raw.splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].lstrip(b"-").isdigit():
            continue
        value = int(words[1]) * (1024 if words[2:3] == [b"kB"] else 1)
        found[clean(words[0].rstrip(b":"))] = value
    return found


_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


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
        """All states together."""
        return sum(self)

    @property
    def busy(self) -> int:
        """Time a CPU could not be used by one more task."""
        return self.total - self.idle - self.iowait


class HostStat(NamedTuple):
    """/proc/stat: all CPUs together, each by number, and counters."""

    all: CpuTimes
    cpus: dict[int, CpuTimes]
    context_switches: int
    forks: int
    runnable: int
    blocked: int


def host_stat(raw: bytes) -> HostStat:
    """Parse /proc/stat. CPUs that are offline have no line."""
    total: CpuTimes | None = None
    cpus: dict[int, CpuTimes] = {}
    counters: dict[bytes, int] = {}
    for line in raw.splitlines():
        name, _, rest = line.partition(b" ")
        if name.startswith(b"cpu"):
            values = [ticks_ns(int(v)) for v in rest.split()[: len(_CPU_FIELDS)]]
            times = CpuTimes(*values, *[0] * (len(_CPU_FIELDS) - len(values)))
            if name == b"cpu":
                total = times
            else:
                cpus[int(name[3:])] = times
        elif name in (b"ctxt", b"processes", b"procs_running", b"procs_blocked"):
            counters[name] = int(rest)
    if total is None:
        raise ValueError("no cpu line in /proc/stat")
    return HostStat(
        total,
        cpus,
        counters.get(b"ctxt", UNKNOWN),
        counters.get(b"processes", UNKNOWN),
        counters.get(b"procs_running", UNKNOWN),
        counters.get(b"procs_blocked", UNKNOWN),
    )


def loadavg(raw: bytes) -> tuple[float, float, float]:
    """Load averages over 1, 5 and 15 minutes."""
    one, five, fifteen = map(float, raw.split()[:3])
    return one, five, fifteen


def pressure(raw: bytes) -> dict[str, int]:
    """Total stall time in microseconds by kind (``some``, ``full``) of a PSI file."""
    found: dict[str, int] = {}
    for line in raw.splitlines():
        kind, *pairs = line.split()
        for pair in pairs:
            key, _, value = pair.partition(b"=")
            if key == b"total" and kind in (b"some", b"full"):
                found[kind.decode()] = int(value)
    return found


class DiskStat(NamedTuple):
    """A line of /proc/diskstats since boot; -1 for discards and flushes on kernels before 4.18 and 5.5."""

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
    """Parse /proc/diskstats: disks and partitions alike."""
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
    """/proc/PID/syscall of a thread that is off its CPU; `nr` -1 if it blocked outside a system call."""

    nr: int
    args: tuple[int, ...]


def syscall(raw: bytes) -> InSyscall | None:
    """Parse /proc/PID/syscall; None for a thread that was on a CPU (``running``)."""
    words = raw.split()
    if not words or words[0] == b"running":
        return None
    return InSyscall(int(words[0]), tuple(int(w, 16) for w in words[1:7]) if len(words) >= 7 else ())


_FRAME = re.compile(rb"^\[<[0-9a-fA-FxX]*>\] ([^+\s]+)")


def kernel_stack(raw: bytes) -> list[str]:
    """Functions of /proc/PID/stack, innermost first."""
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
    """Inert path of a /proc/PID/fd link, and whether the kernel marked the file as deleted.

    A file whose name itself ends in " (deleted)" cannot be told apart from a deleted one here.
    """
    plain = link.removesuffix(b" (deleted)")
    return clean_path(plain), plain != link
