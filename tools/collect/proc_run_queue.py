"""Totals of waits for a CPU from /proc/PID/task/TID/schedstat, without single waits.

The scheduler's account (kernel/sched/stats.h, sched_info) is exact for threads that live at both readings. It adds a
wait when it ends; a wait in progress is a runnable thread that did not run between the readings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.tables import RUN_QUEUE, filled
from whystall.tools.recording.collector import Capture

_MOST_THREADS = 20_000
# On a CPU without a tick (nohz_full) a running thread is accounted once per second (sched_tick_remote).
_STILL_NS = 1_500_000_000


class _Reading(NamedTuple):
    """One reading of one thread. `started`: ticks since boot, as thread ids are reused."""

    at_ns: int
    pid: int
    comm: str
    state: str
    started: int
    stat: parse.SchedStat


class ThreadWaits:
    """Reads the account of threads at the start and at the end.

    `denied`: processes whose threads may not be read; `gone`: threads that exited in between, whose waits are unknown;
    `left`: threads beyond the limit.
    """

    def __init__(self, root: str = "/proc", clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._root, self._clock = root, clock
        self._first: dict[int, _Reading] = {}
        self._last: dict[int, _Reading] = {}
        self._began = 0
        self.denied: set[int] = set()
        self.gone = self.left = 0

    def sample(self, pids: Iterable[int]) -> None:
        """Read the threads of `pids`; only the first and the last call count."""
        now: dict[int, _Reading] = {}
        self.left = 0
        for pid in pids:
            for tid in self._threads(pid):
                if len(now) >= _MOST_THREADS:
                    self.left += 1
                elif (reading := self._read_thread(pid, tid)) is not None:
                    now[tid] = reading
        if not self._began:
            self._began, self._first = self._clock(), now
        self._last = now

    def _threads(self, pid: int) -> Sequence[int]:
        try:
            return [int(tid) for tid in os.listdir(f"{self._root}/{pid}/task")]
        except PermissionError:
            self.denied.add(pid)
        except OSError:
            pass  # exited
        return ()

    def _read_thread(self, pid: int, tid: int) -> _Reading | None:
        base = f"{self._root}/{pid}/task/{tid}"
        try:
            with open(f"{base}/schedstat", "rb") as file:
                sched = parse.schedstat(file.read())
            with open(f"{base}/stat", "rb") as file:
                stat = parse.pid_stat(file.read())
        except PermissionError:
            self.denied.add(pid)
            return None
        except (OSError, ValueError):
            return None  # exited
        if stat.state in "ZX":
            return None
        return _Reading(self._clock(), pid, stat.comm, stat.state, stat.start_ticks, sched)

    def read(self) -> Capture:
        """Return the tables of `run_queue`: totals only. Proven if the kernel kept our own account."""
        rows, count = [], 0
        self.gone = sum(1 for tid, first in self._first.items() if not self._lives(tid, first))
        for tid, last in self._last.items():
            row = self._row(tid, last)
            if row is not None:
                rows.append(row)
                count += int(row[3])
        not_seen = [("no_single_waits", "")]
        if self.denied:
            not_seen.append(("not_permitted", f"schedstat of {len(self.denied)} processes"))
        return Capture(
            tables=filled(RUN_QUEUE, totals=rows),
            hooks=["/proc/PID/task/TID/schedstat"],
            seen=count,
            kept=count,
            lost=self.gone + self.left,
            proven=self._own_is_kept(),
            not_seen=not_seen,
        )

    def _own_is_kept(self) -> bool:
        """Return whether our own account shows that we ran."""
        try:
            with open(f"{self._root}/self/schedstat", "rb") as file:
                return parse.schedstat(file.read()).run_ns > 0
        except (OSError, ValueError):
            return False

    def _lives(self, tid: int, first: _Reading) -> bool:
        last = self._last.get(tid)
        return last is not None and last.started == first.started

    def _row(self, tid: int, last: _Reading) -> tuple[int, int, str, int, int, int] | None:
        first = self._first.get(tid)
        if last.stat.wait_ns < 0 and last.stat.run_ns < 0 and (first is None or last.state != "R"):
            return None  # it never ran, or nothing is kept
        known = first is not None and first.started == last.started
        run, wait, slices = (max(0, value) for value in (first.stat if first is not None and known else (0, 0, 0)))
        runs, waited = max(0, last.stat.slices) - slices, max(0, last.stat.wait_ns) - wait
        ran = max(0, max(0, last.stat.run_ns) - run)
        span = last.at_ns - (first.at_ns if first is not None and known else self._began)
        starved = known and first is not None and first.state == last.state == "R" and not runs and not ran
        if starved and span >= _STILL_NS:
            return last.pid, tid, last.comm, 1, span, -1  # runnable all the time without running
        waited = min(waited, max(0, span - ran))  # without waits from before the window
        return (last.pid, tid, last.comm, runs, waited, -1) if runs > 0 or waited > 0 else None
