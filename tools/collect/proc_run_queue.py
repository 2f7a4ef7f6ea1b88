"""Waits for a CPU from /proc/PID/task/TID/schedstat: how long, how often a thread got a CPU, but no single wait.

The scheduler's account (kernel/sched/stats.h, sched_info) is exact, for whoever is there at both readings; it gets a
wait when it ends. One that lasts shows as a runnable thread that ran no more since it was read last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import polars as pl

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.tables import RUN_QUEUE
from whystall.tools.recording.collector import Capture

_MOST_THREADS = 20_000
# What runs on a CPU without a tick (nohz_full) is accounted once a second (kernel/sched/core.c, sched_tick_remote).
_STILL_NS = 1_500_000_000


class _Seen(NamedTuple):
    """One reading of one thread."""

    at_ns: int
    pid: int
    comm: str
    state: str
    started: int
    """Ticks since boot: tells a reused number from the same thread."""
    stat: parse.SchedStat


class ThreadWaits:
    """Reads the account of threads at the start and at the end.

    `denied`: processes whose threads may not be read; `gone`: threads of the first reading that are not there any
    more, so that what they waited since is not known; `left`: threads beyond the bound.
    """

    def __init__(self, root: str = "/proc", clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._root, self._clock = root, clock
        self._first: dict[int, _Seen] = {}
        self._last: dict[int, _Seen] = {}
        self._began = 0
        self.denied: set[int] = set()
        self.gone = self.left = 0

    def look(self, pids: Iterable[int]) -> None:
        """Read the threads of `pids`; the first time and the last count."""
        now: dict[int, _Seen] = {}
        self.left = 0
        for pid in pids:
            for tid in self._threads(pid):
                if len(now) >= _MOST_THREADS:
                    self.left += 1
                elif (seen := self._read(pid, tid)) is not None:
                    now[tid] = seen
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

    def _read(self, pid: int, tid: int) -> _Seen | None:
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
        return _Seen(self._clock(), pid, stat.comm, stat.state, stat.start_ticks, sched)

    def finish(self) -> Capture:
        """The tables of `run_queue`: totals only. Proven where the kernel kept our own account."""
        rows, count = [], 0
        self.gone = sum(1 for tid, seen in self._first.items() if not self._is_there(tid, seen))
        for tid, last in self._last.items():
            row = self._row(tid, last)
            if row is not None:
                rows.append(row)
                count += int(row[3])
        not_seen = [("no_single_waits", "")]
        if self.denied:
            not_seen.append(("not_permitted", f"schedstat of {len(self.denied)} processes"))
        return Capture(
            tables={
                "totals": pl.DataFrame(rows, RUN_QUEUE["totals"], orient="row"),
                "latency": pl.DataFrame([], RUN_QUEUE["latency"]),
            },
            hooks=["/proc/PID/task/TID/schedstat"],
            seen=count,
            kept=count,
            lost=self.gone + self.left,
            proven=self._own_is_kept(),
            not_seen=not_seen,
        )

    def _own_is_kept(self) -> bool:
        """We have had a CPU: our own account must show it."""
        try:
            with open(f"{self._root}/self/schedstat", "rb") as file:
                return parse.schedstat(file.read()).run_ns > 0
        except (OSError, ValueError):
            return False

    def _is_there(self, tid: int, seen: _Seen) -> bool:
        last = self._last.get(tid)
        return last is not None and last.started == seen.started

    def _row(self, tid: int, last: _Seen) -> tuple[int, int, str, int, int, int] | None:
        first = self._first.get(tid)
        if last.stat.wait_ns < 0 and last.stat.run_ns < 0 and (first is None or last.state != "R"):
            return None  # it never ran, or nothing is kept
        known = first is not None and first.started == last.started
        run, wait, slices = (max(0, value) for value in (first.stat if first is not None and known else (0, 0, 0)))
        slept, waited = max(0, last.stat.slices) - slices, max(0, last.stat.wait_ns) - wait
        ran = max(0, max(0, last.stat.run_ns) - run)
        there = last.at_ns - (first.at_ns if first is not None and known else self._began)
        stood = known and first is not None and first.state == last.state == "R" and not slept and not ran
        if stood and there >= _STILL_NS:
            return last.pid, tid, last.comm, 1, there, -1  # runnable, and did not run at all
        waited = min(waited, max(0, there - ran))  # less what was before
        return (last.pid, tid, last.comm, slept, waited, -1) if slept > 0 or waited > 0 else None
