"""Real-time priority for our own threads while real-time programs leave them almost no CPU time.

Threads with a real-time policy run before all ordinary ones; the kernel leaves the others about 5 % of each CPU
(``kernel.sched_rt_runtime_us``, or the fair server since Linux 6.8). A diagnosis, which needs some seconds of CPU time,
would take minutes there. See sched(7).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from whystall.tools.collect.proc_real_time import OwnCpuTime

_PERIOD_S = 0.5
# Fair scheduling leaves more unless five programs compete for each CPU; those are not preempted.
_STARVED_SHARE = 0.2
_REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)
_HIGHEST = 99
_KERNEL_PARENT = "2"  # kthreadd


@contextmanager
def raised_when_starved() -> Iterator[None]:
    """Until the block ends, raise all our threads above the highest real-time thread of a user, once they are starved.

    Starved: ready to run for a second or more, but running in less than a fifth of that time, while some process has
    real-time priority. Does nothing without permission (CAP_SYS_NICE, or a cgroup without a real-time budget). The
    former policies are restored at the end; threads started meanwhile become ordinary.
    """
    ended = threading.Event()
    before: dict[int, tuple[int, os.sched_param]] = {}
    watcher = threading.Thread(target=_watch, args=(ended, before), name="own-priority", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if before:
            for tid in _threads(os.getpid()):
                policy, param = before.get(tid, (os.SCHED_OTHER, os.sched_param(0)))
                with suppress(OSError):  # exited
                    os.sched_setscheduler(tid, policy, param)


def _watch(ended: threading.Event, before: dict[int, tuple[int, os.sched_param]]) -> None:
    own = OwnCpuTime(_read, lambda pid: map(str, _threads(pid)))
    while not ended.wait(_PERIOD_S):
        if own.starved(share=_STARVED_SHARE) is None:
            continue
        if highest := highest_real_time():
            _raise_threads(min(highest + 1, _HIGHEST), before)
        return


def _raise_threads(priority: int, before: dict[int, tuple[int, os.sched_param]]) -> None:
    for tid in _threads(os.getpid()):
        with suppress(OSError):  # exited, or not permitted
            policy = os.sched_getscheduler(tid)
            if policy in _REAL_TIME:
                continue
            param = os.sched_getparam(tid)
            os.sched_setscheduler(tid, os.SCHED_RR, os.sched_param(priority))
            before[tid] = (policy, param)


def own_real_time() -> int:
    """Return the real-time priority of our first thread; 0 if it is an ordinary one."""
    return os.sched_getparam(os.getpid()).sched_priority


def highest_real_time() -> int:
    """Return the highest real-time priority (1 to 99) of a thread of another user process; 0 without any."""
    highest = 0
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid() or _is_kernel_thread(name):
            continue
        for tid in _threads(int(name)):
            with suppress(OSError):  # exited
                if os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK in _REAL_TIME:
                    highest = max(highest, os.sched_getparam(tid).sched_priority)
    return highest


def _is_kernel_thread(pid: str) -> bool:
    try:
        parent = _read(f"{pid}/stat").rsplit(b")", 1)[1].split()[1].decode()
    except (OSError, IndexError):
        return True  # exited
    return parent == _KERNEL_PARENT or pid == _KERNEL_PARENT


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []  # exited


def _read(name: str) -> bytes:
    with open(f"/proc/{name}", "rb") as file:
        return file.read()
