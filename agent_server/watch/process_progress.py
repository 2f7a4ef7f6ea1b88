"""The progress of one process: that of the thread that makes it. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from whystall.agent_server.watch.memory import Learnt
from whystall.agent_server.watch.pause_account import Wait
from whystall.agent_server.watch.progress import Stall, ThreadProgress

_MOST_THREADS = 256


class ProcessProgress:
    """The progress of one process: that of its main thread, or of the thread with most usual places if the main thread
    has none."""

    def __init__(self, pid: int, learn_ns: int) -> None:
        self.pid = pid
        self._learn_ns = learn_ns
        self._threads: dict[int, ThreadProgress] = {}
        self._followed: int | None = None

    def feed(self, waits: Iterable[Wait], now_ns: int, calls: Callable[[int], int | None] | None = None) -> list[Stall]:
        """Record the waits that ended since the last call, and return the deviations of the thread that makes progress,
        also one in progress at `now_ns`. `calls`: see `ThreadProgress.judge`, of the thread given."""
        found: list[Stall] = []
        for wait in sorted(waits, key=lambda one: one.end_ns):
            thread = self._threads.get(wait.tid)
            if thread is None:
                if len(self._threads) >= _MOST_THREADS:
                    self._forget_idle()
                thread = self._threads[wait.tid] = ThreadProgress(wait.tid, self._learn_ns)
            found += thread.wait(wait)
        followed = self.thread
        for thread in self._threads.values():
            tid, thread.followed = thread.tid, thread is followed
            count = partial(calls, tid) if calls is not None and thread.followed else None
            found += thread.judge(now_ns, count)
        return [one for one in found if followed is not None and one.tid == followed.tid]

    def forget(self, tid: int) -> None:
        """Forget a thread that has ended; another one is followed then."""
        self._threads.pop(tid, None)
        self._followed = None if self._followed == tid else self._followed

    def _forget_idle(self) -> None:
        """Forget the half of the threads whose last wait was longest ago: most have ended."""
        kept = (self.pid, self._followed)
        idle = sorted((one for one in self._threads.values() if one.tid not in kept), key=lambda one: one.last_ns)
        for thread in idle[: len(idle) // 2]:
            del self._threads[thread.tid]

    def restore(self, learnt: Learnt, *, same: bool) -> None:
        """Take over what was learnt of a thread of this process, or of the main thread of an earlier run."""
        if learnt.tid and not same:
            return
        tid = learnt.tid or self.pid
        thread = self._threads.setdefault(tid, ThreadProgress(tid, self._learn_ns))
        thread.restore(learnt, same=same)

    def learnt(self, run: str, seen: float) -> Learnt | None:
        """Return what was learnt of the thread that makes progress; None if nothing."""
        thread = self.thread
        found = thread.learnt(run, seen) if thread is not None else None
        return replace(found, tid=0) if found is not None and found.tid == self.pid else found

    def unobserved(self, until_ns: int) -> None:
        """See `ThreadProgress.unobserved`."""
        for thread in self._threads.values():
            thread.unobserved(until_ns)

    def forget_short(self, min_ns: int) -> None:
        """See `ThreadProgress.forget_short`."""
        for thread in self._threads.values():
            thread.forget_short(min_ns)

    @property
    def thread(self) -> ThreadProgress | None:
        """The thread that makes progress, if known."""
        main = self._threads.get(self.pid)
        if main is not None and (main.regular or len(self._threads) == 1):
            return main
        if self._followed is not None and self._threads[self._followed].regular:
            return self._threads[self._followed]
        best = max(self._threads.values(), key=lambda one: one.regular, default=None)
        if best is None or not best.regular:
            return main
        self._followed = best.tid
        return best
