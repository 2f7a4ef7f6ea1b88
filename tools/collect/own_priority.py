"""Real-time priority for our own threads while real-time programs leave them almost no CPU time.

Threads with a real-time policy run before all ordinary ones; the kernel leaves the others about 5 % of each CPU
(``kernel.sched_rt_runtime_us``, or the fair server since Linux 6.8). A diagnosis, which needs some seconds of CPU time,
would take minutes there. See sched(7).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_real_time import OwnCpuTime, RealTimeThreads

_PERIOD_S = 0.5
# Of the time in which our threads are ready to run: below this they are starved.
_STARVED_SHARE = 0.2
# Of the time of our CPUs: real-time threads that take so much are what starves us; ordinary load is not preempted.
_TAKEN_SHARE = 0.5
_PRIORITIES = ("fifo", "rr")
_HIGHEST = 99
_Policy = tuple[int, os.sched_param]


@contextmanager
def raised_when_starved() -> Iterator[None]:
    """Until the block ends, raise all our threads above the real-time threads that run, once these starve ours.

    Starved: ready to run for a second or more, but running in less than a fifth of that time, while real-time threads
    take half of the CPUs or more. Does nothing without permission (CAP_SYS_NICE, or a cgroup without a real-time
    budget). The former policies are restored at the end; threads started meanwhile get that of the first thread.
    """
    ended = threading.Event()
    before: dict[int, _Policy] = {}
    watcher = threading.Thread(target=_watch, args=(ended, before), name="own-priority", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        _restore(before)


def own_real_time() -> int:
    """Return the real-time priority of our first thread; 0 if it is an ordinary one."""
    return os.sched_getparam(os.getpid()).sched_priority


def _watch(ended: threading.Event, before: dict[int, _Policy]) -> None:
    own = OwnCpuTime(_read, _threads)
    while not ended.wait(_PERIOD_S):
        if own.starved(share=_STARVED_SHARE) is None:
            continue
        if priority := _priority_that_starves(ended):
            _raise_threads(min(priority + 1, _HIGHEST), before)
            return


def _priority_that_starves(ended: threading.Event) -> int:
    """Return the highest priority of the real-time threads of other processes that take most of our CPUs in the next
    half second; 0 if they do not."""
    real_time = RealTimeThreads(_read, _threads)
    real_time.look(_others())
    start_ns = time.monotonic_ns()
    ended.wait(_PERIOD_S)
    rows = [row for row in real_time.look(_others()) if row[4] in _PRIORITIES]
    taken = sum(max(int(str(row[6])), 0) for row in rows)
    if taken < _TAKEN_SHARE * (time.monotonic_ns() - start_ns) * len(os.sched_getaffinity(0)):
        return 0
    return max(int(str(row[5])) for row in rows)


def _others() -> Iterator[parse.PidStat]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with suppress(OSError, ValueError):  # exited
                yield parse.pid_stat(_read(f"{name}/stat"))


def _raise_threads(priority: int, before: dict[int, _Policy]) -> None:
    for name in _threads(os.getpid()):
        tid = int(name)
        with suppress(OSError):  # exited, or not permitted
            former = os.sched_getscheduler(tid), os.sched_getparam(tid)
            if former[1].sched_priority:
                continue
            os.sched_setscheduler(tid, os.SCHED_RR, os.sched_param(priority))
            before[tid] = former


def _restore(before: dict[int, _Policy]) -> None:
    if not before:
        return
    usual = before.get(os.getpid(), (os.SCHED_OTHER, os.sched_param(0)))
    for name in _threads(os.getpid()):
        with suppress(OSError):  # exited
            os.sched_setscheduler(int(name), *before.get(int(name), usual))


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # exited


def _read(name: str) -> bytes:
    with open(f"/proc/{name}", "rb") as file:
        return file.read()
