"""Threads of the host with a real-time policy, and the CPU time that they used between two looks.

The policy of a process's first thread is a field of its stat file; that of the others is asked for with
sched_getscheduler(2), which needs no permission and costs about 1 us; listing the threads of a process costs about
20 us. See sched(7).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.ftrace.cpus import format_cpus

POLICIES = {1: "fifo", 2: "rr", 6: "deadline"}
"""Policies that go before all ordinary threads, by their number in ``linux/sched.h``."""
_RESET_ON_FORK = 0x40000000
# Threads asked for their policy at one look, besides the first of each process: 10 ms.
_MOST_ASKED = 10_000
_MOST_FOUND = 1_000
# One that ran for less than this kept nobody waiting.
_LEAST_NS = 1_000_000
Row = tuple[object, ...]


class _Thread(NamedTuple):
    pid: int
    comm: str
    policy: str
    priority: int
    run_ns: int
    start_ticks: int


class RealTimeThreads:
    """Looks at the start and at the end of a window. `cut`: there were too many threads to ask all of them."""

    def __init__(
        self,
        read: Callable[[str], bytes],
        threads_of: Callable[[int], Iterable[str]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`read`: a file below /proc, by its path; `threads_of`: the names in ``/proc/PID/task``."""
        self.cut = False
        self._read = read
        self._threads_of = threads_of
        self._clock = clock
        self._before: dict[int, _Thread] | None = None
        self._latest_start = 0

    def look(self, processes: Iterable[parse.PidStat]) -> list[Row]:
        """Return the rows of ``proc.real_time``, none at the first look. `processes`: all of the host."""
        found: dict[int, _Thread] = {}
        asked = latest = 0
        for process in processes:
            latest = max(latest, process.start_ticks)
            tids = [process.pid] if process.policy in POLICIES else []
            if process.threads > 1:
                for name in self._threads_of(process.pid):
                    if (tid := int(name)) == process.pid:
                        continue
                    asked += 1
                    if asked > _MOST_ASKED or len(found) >= _MOST_FOUND:
                        self.cut = True
                        break
                    if _policy(tid) in POLICIES:
                        tids.append(tid)
            for tid in tids:
                if (thread := self._thread(process.pid, tid)) is not None:
                    found[tid] = thread
        before, self._before = self._before, found
        if before is None:
            self._latest_start = latest
            return []
        return [row for tid, thread in found.items() if (row := self._row(tid, thread, before.get(tid))) is not None]

    def _row(self, tid: int, thread: _Thread, before: _Thread | None) -> Row | None:
        same = before is not None and before.start_ticks == thread.start_ticks
        if same and before is not None:
            ran = thread.run_ns - before.run_ns
        elif thread.start_ticks > self._latest_start:  # it began after the first look: all its time is in the window
            ran = thread.run_ns
        else:
            ran = parse.UNKNOWN  # it had another policy at the first look
        if 0 <= ran < _LEAST_NS:
            return None
        try:
            cpus = format_cpus(os.sched_getaffinity(tid))
        except OSError:
            cpus = ""
        return (self._clock(), thread.pid, tid, thread.comm, thread.policy, thread.priority, ran, cpus)

    def _thread(self, pid: int, tid: int) -> _Thread | None:
        base = f"{pid}/task/{tid}"
        try:
            stat = parse.pid_stat(self._read(f"{base}/stat"))
            ran = parse.schedstat(self._read(f"{base}/schedstat")).run_ns
        except (OSError, ValueError):
            return None  # exited
        if stat.policy not in POLICIES:
            return None
        used = ran if ran >= 0 else stat.user_ns + stat.system_ns
        return _Thread(pid, stat.comm, POLICIES[stat.policy], stat.priority, used, stat.start_ticks)


def _policy(tid: int) -> int:
    try:
        return os.sched_getscheduler(tid) & ~_RESET_ON_FORK
    except OSError:
        return parse.UNKNOWN  # exited


class OwnCpuTime:
    """What our own process got of the CPU time that it was ready to use, between its creation and `starved`."""

    def __init__(self, read: Callable[[str], bytes], threads_of: Callable[[int], Iterable[str]]) -> None:
        """As of `RealTimeThreads`."""
        self._read = read
        self._threads_of = threads_of
        self._before = self._times()

    def starved(self, least_ns: int = parse.NS, share: float = 0.5) -> float | None:
        """Return the share of the time, in percent, that its threads ran while they were ready to run; None if it was
        more than `share`, or if they waited for less than `least_ns` in all."""
        ran, waited = (after - before for after, before in zip(self._times(), self._before, strict=True))
        if waited < least_ns or ran > share * (ran + waited):
            return None
        return 100.0 * max(ran, 0) / (max(ran, 0) + waited)

    def _times(self) -> tuple[int, int]:
        ran = waited = 0
        pid = os.getpid()
        for name in self._threads_of(pid):
            try:
                times = parse.schedstat(self._read(f"{pid}/task/{name}/schedstat"))
            except (OSError, ValueError):
                continue  # exited
            ran, waited = ran + max(times.run_ns, 0), waited + max(times.wait_ns, 0)
        return ran, waited
