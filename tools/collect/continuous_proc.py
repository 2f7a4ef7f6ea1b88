"""Look at the counters of /proc beside a continuous recording, within a share of one CPU: the collector ``proc``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from whystall.tools.collect.proc_disks import partitions
from whystall.tools.collect.proc_reader import ProcReader
from whystall.tools.collect.proc_task_limits import task_limits
from whystall.tools.collect.proc_topology import cpu_rows
from whystall.tools.collect.slice_parts import packed
from whystall.tools.recording.target import Target

_HOST = (1_000_000_000, 0.0015)
_THREADS = (5_000_000_000, 0.0007)
_PROCESSES = (10_000_000_000, 0.0007)
"""Of each kind of look: the shortest period, ns, and the largest share of one CPU."""
_REUSED = 10  # looks at processes that reuse their control groups


class _Paced:
    """A look that is taken once per period, or less often if it costs more than its share."""

    def __init__(self, limits: tuple[int, float], look: Callable[[], None]) -> None:
        (self._period_ns, self._share), self._look = limits, look
        self._due = 0

    def take(self, now: int, always: bool) -> None:
        if now < self._due and not always:
            return
        began = time.thread_time_ns()
        self._look()
        self._due = now + max(self._period_ns, int((time.thread_time_ns() - began) / self._share))


class ProcLooks(ProcReader):
    """Call `look` each second."""

    def __init__(self) -> None:
        super().__init__(Target(everything=False))
        self._count = 0
        self._looks = (
            _Paced(_PROCESSES, self._look_at_processes),
            _Paced(_HOST, self._look_at_host),
            _Paced(_THREADS, lambda: self._sample_threads(full=True)),
        )

    def look(self, pids: Iterable[int], *, always: bool = False) -> bytes:
        """Read what is due (`always`: everything) for the target processes `pids`; return it as `rows_of` reads it;
        empty if nothing was due."""
        self._pids = sorted(pids)
        now = self._clock()
        for one in self._looks:
            one.take(now, always)
        self._rows["io_limits"], self._io.limits = self._io.limits, []
        self._rows["io_use"], self._io.use = self._io.use, []
        rows = {name: rows for name, rows in self._rows.items() if rows}
        self._rows.clear()
        return packed(rows) if rows else b""

    def _look_at_processes(self) -> None:
        self._count += 1
        if self._count % _REUSED == 0:  # processes may move, and the cache grows
            self._cgroup_of.clear()
        self._places = self._find_cgroups() if self._pids else []
        self._cpus = self._allowed_cpus()
        self._sample_processes()
        self._sample_filesystems()
        self._io.find(self._pids)
        memberships = [found for pid in self._pids if (found := self._membership(pid))]
        self._rows["task_limits"] += task_limits(self._view.mounts, memberships, self._clock)
        self._rows["partitions"] += partitions()
        self._rows["cpus"] += cpu_rows()

    def _look_at_host(self) -> None:
        self._sample_host()
        self._sample_disks()
        self._sample_cgroups()
        self._io.sample()
