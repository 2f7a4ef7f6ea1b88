"""Readings that prove a fault: from the workload's own log, or from counters of the kernel, which diagnosers do not
influence.

A reading of the log is a function of (case, span); a counter is a function of (case) whose increase per second over
the span counts; a level is a function of (case) at the end of the span. All take the arguments of the check too.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.case import Case
from benchmarks.faults.log import Span, median

_KTHREADD = 2
_PARENT, _SESSION, _CPU_TIMES = 4, 6, (14, 15, 16, 17)  # columns of /proc/PID/stat, proc_pid_stat(5)
_TICK_S = 0.01


def _median_s(case: Case, span: Span, event: str = "") -> float:
    return median(case.log.durations(event or case.scenario.unit, span))


def _p90_s(case: Case, span: Span, event: str = "") -> float:
    values = sorted(case.log.durations(event or case.scenario.unit, span))
    return values[int(len(values) * 0.9)] if values else 0.0


def _max_s(case: Case, span: Span, event: str = "") -> float:
    return max(case.log.durations(event or case.scenario.unit, span), default=0.0)


def _share_pct(case: Case, span: Span, event: str) -> float:
    return case.log.share_pct(event, span)


def _rate(case: Case, span: Span, event: str = "") -> float:
    return len(case.log.of(event or case.scenario.unit, span)) / span.length


def _worst_s(case: Case, span: Span, event: str = "") -> float:
    """Return the longest duration since the start of the job."""
    return _max_s(case, Span(0.0, span.end), event)


def _silent_s(case: Case, span: Span, event: str = "") -> float:
    return case.log.silent_s(event or case.scenario.unit, span)


def _field_median(case: Case, span: Span, event: str, field: str) -> float:
    return median([line[field] for line in case.log.of(event, span) if field in line])


def _period_s(case: Case, span: Span, event: str) -> float:
    ends = [line["at"] for line in case.log.of(event, span)]
    return median([later - earlier for earlier, later in itertools.pairwise(ends)])


def _threads(pid: int, only_main: bool) -> list[Path]:
    return [Path(f"/proc/{pid}/task/{pid}")] if only_main else list(Path(f"/proc/{pid}/task").iterdir())


def _schedstat(case: Case, role: str, column: int, main: bool) -> float:
    """Sum a column of schedstat, ns as percent-seconds of one CPU: 0 time on CPU, 1 time waiting for one."""
    total = 0
    for task in _threads(case.pids[role], main):
        try:
            total += int((task / "schedstat").read_text().split()[column])
        except OSError:
            continue  # the thread ended
    return total / 1e7


def _cpu_pct(case: Case, role: str = "job", main: bool = False) -> float:
    if not main:  # also of threads that have ended
        return (_stat(case, role, 14) + _stat(case, role, 15)) * _TICK_S * 100
    return _schedstat(case, role, 0, main)


def _cpu_wait_pct(case: Case, role: str = "job", main: bool = True) -> float:
    return _schedstat(case, role, 1, main)


def _status(case: Case, role: str, key: str, main: bool = True) -> float:
    total = 0
    for task in _threads(case.pids[role], main):
        for line in (task / "status").read_text().splitlines():
            if line.startswith(key + ":"):
                total += int(line.split()[1])
    return float(total)


def _voluntary(case: Case, role: str = "job", main: bool = True) -> float:
    return _status(case, role, "voluntary_ctxt_switches", main)


def _involuntary(case: Case, role: str = "job", main: bool = True) -> float:
    return _status(case, role, "nonvoluntary_ctxt_switches", main)


def _stat(case: Case, role: str, column: int) -> float:
    """Return a field of /proc/PID/stat, numbered as in proc(5)."""
    text = Path(f"/proc/{case.pids[role]}/stat").read_text(errors="replace")
    return float(text.rpartition(")")[2].split()[column - 3])


def _major_faults(case: Case, role: str = "job") -> float:
    return _stat(case, role, 12)


def _child_cpu_pct(case: Case, role: str = "job") -> float:
    """CPU time of children that ended and were waited for."""
    return (_stat(case, role, 16) + _stat(case, role, 17)) * _TICK_S * 100


def _system_pct(case: Case, role: str = "job") -> float:
    return _stat(case, role, 15) * _TICK_S * 100


def _io_bytes(case: Case, role: str = "job", key: str = "write_bytes") -> float:
    for line in Path(f"/proc/{case.pids[role]}/io").read_text().splitlines():
        if line.startswith(key + ":"):
            return float(line.split()[1])
    raise KeyError(key)


def _minor_faults(case: Case, role: str = "job") -> float:
    return _stat(case, role, 10)


def _open_files(case: Case, role: str = "job") -> float:
    return float(len(list(Path(f"/proc/{case.pids[role]}/fd").iterdir())))


def _softirqs(case: Case, name: str, cpu: int) -> float:
    """Return how often a CPU ran a kind of softirq (/proc/softirqs)."""
    for line in Path("/proc/softirqs").read_text().splitlines():
        words = line.split()
        if words[0] == name + ":":
            return float(words[1 + cpu])
    raise KeyError(name)


def _rss_mib(case: Case, role: str = "job") -> float:
    return _status(case, role, "VmRSS") / 1024


def _in_state(case: Case, role: str = "job", states: str = "T") -> float:
    """Return 1 if the main thread is in one of these states now."""
    text = Path(f"/proc/{case.pids[role]}/stat").read_text(errors="replace")
    return float(text.rpartition(")")[2].split()[0] in states)


def _file_number(case: Case, fact: str, name: str, key: str = "") -> float:
    """Return a number in a file of the directory that a fact names: a cgroup's counter, for instance."""
    text = (Path(case.facts[fact]) / name).read_text()
    if not key:
        return float(text.split()[0])
    for line in text.splitlines():
        words = line.split()
        if words[0] == key:
            return float(words[1])
    raise KeyError(key)


def _children_private_mib(case: Case, role: str = "job") -> float:
    """Memory that the processes of a role, except the first, do not share with another."""
    kib = 0
    for pid in _stats_of({case.pids[role]}).keys() - {case.pids[role]}:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
    return kib / 1024


def _free_kib(case: Case, path: str, role: str = "job") -> float:
    """Space of a file system, as the process sees it."""
    found = os.statvfs(f"/proc/{case.pids[role]}/root{path}")
    return found.f_bavail * found.f_bsize / 1024


def _vmstat(case: Case, key: str) -> float:
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, value = line.split()
        if name == key:
            return float(value)
    raise KeyError(key)


def _net_counter(case: Case, key: str, role: str = "job", table: str = "Tcp") -> float:
    """Return a counter of /proc/net/snmp or netstat in a process's network namespace."""
    for file in ("snmp", "netstat"):
        lines = Path(f"/proc/{case.pids[role]}/net/{file}").read_text().splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            if names.startswith(table + ":") and key in names.split():
                return float(values.split()[names.split().index(key)])
    raise KeyError(key)


def _request_pct(case: Case, kind: str) -> float:
    """Return the time that requests of a kind spent at the case's block device, ms as percent-seconds (summed up)."""
    words = Path(f"/sys/class/block/{case.facts['device']}/stat").read_text().split()
    return int(words[{"read": 3, "write": 7}[kind]]) / 10


def _rtt_ms(case: Case, role: str = "job") -> float:
    """Return the longest smoothed round trip of the TCP connections in a process's network namespace (ss -ti)."""
    trips = re.findall(r"\brtt:([\d.]+)", _in_network(case, role, "ss", "-tinH"))
    return max(map(float, trips), default=0.0)


def _dropped(case: Case, device: str, role: str = "job") -> float:
    """Return how many packets the queue of a network device has dropped (tc -s)."""
    text = _in_network(case, role, "tc", "-s", "qdisc", "show", "dev", device)
    return float(sum(int(number) for number in re.findall(r"\bdropped (\d+)", text)))


def _in_network(case: Case, role: str, *argv: str) -> str:
    """Return what a command prints in the network namespace of a process."""
    place = f"--net=/proc/{case.pids[role]}/ns/net"
    done = subprocess.run(["nsenter", place, *argv], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout


def _others_cpu_pct(case: Case) -> float:
    """CPU time of processes outside the case, percent of one CPU, without threads of the kernel, which serve any."""
    with Path("/proc/stat").open() as file:
        numbers = [int(word) for word in file.readline().split()[1:]]
    busy = sum(numbers) - numbers[3] - numbers[4]
    sessions = set(case.pids.values())
    inside = _stats(lambda words: int(words[_SESSION - 3]) in sessions or int(words[_PARENT - 3]) == _KTHREADD)
    return (busy - _ticks(inside)) * _TICK_S * 100


def _ticks(stats: Mapping[int, list[str]]) -> float:
    """Return the CPU time of processes, with that of their children that have ended."""
    return sum(float(words[column - 3]) for words in stats.values() for column in _CPU_TIMES)


def _stats_of(sessions: set[int]) -> dict[int, list[str]]:
    """Return the processes of these sessions, with /proc/PID/stat from its third field on."""
    return _stats(lambda words: int(words[_SESSION - 3]) in sessions)


def _stats(wanted: Callable[[list[str]], bool]) -> dict[int, list[str]]:
    """Return the processes whose /proc/PID/stat, from its third field on, is `wanted`."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if wanted(words):
            found[int(path.parent.name)] = words
    return found


LOGGED: Mapping[str, Callable[..., float]] = {
    "median_s": _median_s,
    "p90_s": _p90_s,
    "max_s": _max_s,
    "worst_s": _worst_s,
    "share_pct": _share_pct,
    "rate": _rate,
    "silent_s": _silent_s,
    "field_median": _field_median,
    "period_s": _period_s,
}
COUNTERS: Mapping[str, Callable[..., float]] = {
    "cpu_pct": _cpu_pct,
    "cpu_wait_pct": _cpu_wait_pct,
    "voluntary_switches": _voluntary,
    "involuntary_switches": _involuntary,
    "major_faults": _major_faults,
    "minor_faults": _minor_faults,
    "softirqs": _softirqs,
    "child_cpu_pct": _child_cpu_pct,
    "system_pct": _system_pct,
    "io_bytes": _io_bytes,
    "file_counter": _file_number,
    "vmstat": _vmstat,
    "net_counter": _net_counter,
    "others_cpu_pct": _others_cpu_pct,
    "dropped": _dropped,
    "request_pct": _request_pct,
    "children_private_mib_s": _children_private_mib,
}
LEVELS: Mapping[str, Callable[..., float]] = {
    "rss_mib": _rss_mib,
    "in_state": _in_state,
    "open_files": _open_files,
    "file_value": _file_number,
    "rtt_ms": _rtt_ms,
    "children_private_mib": _children_private_mib,
    "free_kib": _free_kib,
}


@dataclass(frozen=True)
class Sample:
    """Counters at one moment; the keys are positions of checks."""

    at: float
    counters: dict[int, float] = field(default_factory=dict)


def sample(case: Case) -> Sample:
    """Read all counters that the oracle of the case needs; -1: those outside the case use of the CPUs."""
    found = {-1: _others_cpu_pct(case)}
    for number, check in enumerate(case.scenario.oracle):
        if reader := COUNTERS.get(check.reading):
            try:
                found[number] = reader(case, **check.of)
            except (KeyError, FileNotFoundError):  # a process that the injector has not started yet
                found[number] = 0.0
    return Sample(time.monotonic(), found)


def value(case: Case, number: int, first: Sample, last: Sample) -> float:
    """Return the value of a check between two samples."""
    check = case.scenario.oracle[number]
    span = Span(first.at, last.at)
    if check.reading in COUNTERS:
        return (last.counters[number] - first.counters[number]) / span.length
    if check.reading in LEVELS:
        return LEVELS[check.reading](case, **check.of)
    arguments: dict[str, Any] = check.of
    return LOGGED[check.reading](case, span, **arguments)


def others_cpu_pct(first: Sample, last: Sample, diagnoser_s: float) -> float:
    """Return how much CPU programs other than the case and the diagnoser used between two samples, percent of one."""
    return (last.counters[-1] - first.counters[-1] - 100 * diagnoser_s) / (last.at - first.at)
