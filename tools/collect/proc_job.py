"""The collector `job_processes`: which processes of a job live, which have ended and how, and when they last ran.

A process that has ended stays as a zombie until its parent waits for it: with its exit status, and the time at which it
last ran. Its rank is not stated any more. What was killed for lack of memory is in the kernel's log, an uncaught
exception in the log of the rank.

Cost: some 20 us per process of the host, 50 us per process that last ran where one of the job did, and what `read_logs`
reads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.kernel_log import KernelLog
from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.objects_snapshot import limit
from whystall.tools.collect.proc_cgroup import Hierarchies
from whystall.tools.collect.proc_memory_sizes import read_group
from whystall.tools.collect.rank_logs import read_logs
from whystall.tools.collect.tables import JOB_PROCESSES, filled
from whystall.tools.contract.text import clean_path
from whystall.tools.node import environment
from whystall.tools.node.environment import Identity
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.target import Target, children_of

_MOST_PROCESSES = 1024
_CLOCKS_NS = 100_000_000
_LOGS_NS = 200_000_000
_LOG_RECORDS = 1 << 16
_MARGIN_S = 10
"""Difference between the clock of the kernel's log and that of processes' starts (kernel_log.OomKill)."""
_LAST_RUN = re.compile(rb"^se\.exec_start\s*:\s*(\d+)\.(\d{6})", re.MULTILINE)
# a loopback address as MASTER_ADDR: all ranks are on this host
_LOOPBACK = ("localhost:", "127.", "::1", "[::1]")
_UNKNOWN = parse.UNKNOWN
Row = tuple[object, ...]


class JobProcesses:
    """Take snapshots of the processes of `target`: call `take_snapshot` at the start and, with ``last``, at the end,
    then `read`."""

    def __init__(
        self,
        target: Target,
        root: str = "/proc",
        clock: Callable[[], int] = time.monotonic_ns,
        log: Callable[[], KernelLog] = lambda: KernelLog(new=False),
    ) -> None:
        self._target = target
        self._proc = Proc(root)
        self._clock = clock
        self._log = log
        self._rows: dict[str, list[Row]] = {name: [] for name in JOB_PROCESSES}
        self._not_seen: list[tuple[str, str]] = []
        self._proven = False

    def take_snapshot(self, *, last: bool = False) -> None:
        """Read the processes once. `last`: also what explains their end, and when they last ran."""
        at_ns = self._clock()
        own = list(self._target.pids)
        own = [pid for pid in children_of(own) if pid != os.getpid()] if own else []
        stats = {pid: stat for pid in self._proc.pids() if (stat := self._proc.state(pid)) is not None}
        living = [pid for pid in own if pid in stats and stats[pid].state not in "ZX"][:_MOST_PROCESSES]
        # the parent of ranks may be no part of the target
        parents = {*living, *(stats[pid].ppid for pid in living)} - {0, 1}
        ended = [pid for pid, stat in stats.items() if stat.state == "Z" and stat.ppid in parents][:_MOST_PROCESSES]
        known = {pid: environment.identity(self._proc.read(pid, "environ", most=environment.LIMIT)) for pid in living}
        for pid in (*living, *ended):
            self._keep(at_ns, stats[pid], known.get(pid, Identity()))
        self._proven = bool(living)
        if last:
            self._keep_idle([*living, *ended], stats)
            if living:
                # the oldest process that states a rank, without a shell that started it
                ranks = [pid for pid, one in known.items() if one.rank is not None] or living
                began_s = min(stats[pid].start_ticks for pid in ranks) / parse.TICKS
                self._keep_logs(known, began_s)
                self._keep_kills(living, [stats[pid] for pid in (*living, *ended)], began_s)

    def read(self) -> Capture:
        """Return the capture."""
        tables = filled(JOB_PROCESSES, **self._rows)
        rows = sum(frame.height for frame in tables.values())
        return Capture(
            tables=tables,
            hooks=["/proc/PID/stat", "/proc/PID/sched", "/dev/kmsg"],
            seen=rows,
            kept=rows,
            lost=0,
            proven=self._proven,
            not_seen=self._not_seen
            + [
                ("not_permitted", f"{what} of {len(pids)} processes")
                for what, pids in sorted(self._proc.denied.items())
            ],
        )

    def _keep(self, at_ns: int, stat: parse.PidStat, one: Identity) -> None:
        alone = (one.master or "").startswith(_LOOPBACK) or (
            one.world_size is not None and one.world_size == one.local_size
        )
        numbers = (one.rank, one.local_rank, one.local_size, one.group_rank, one.world_size)
        stated = (_UNKNOWN if number is None else number for number in numbers)
        exit_code = self._exit_code(stat) if stat.state == "Z" else _UNKNOWN
        row = (at_ns, stat.pid, stat.ppid, stat.comm, stat.state, stat.start_ticks, *stated, alone, exit_code)
        self._rows["processes"].append(row)

    def _exit_code(self, stat: parse.PidStat) -> int:
        """Return the wait status of a zombie; -1 if it may not be read, for which the kernel writes 0."""
        if stat.exit_code == 0:
            try:
                os.readlink(f"{self._proc.root}/{stat.pid}/exe")
            except PermissionError:
                return _UNKNOWN
            except OSError:
                pass  # ENOENT: permitted, but the program's file is released
        return stat.exit_code

    def _keep_idle(self, own: list[int], stats: dict[int, parse.PidStat]) -> None:
        """Keep for how long main threads of `own` have not run, at least.

        The scheduler's clock leaves out interrupts and stolen time, so that each CPU has its own. It is at least at the
        time when any thread, such as one of the kernel's, ran last on that CPU. To read it there could take long.
        """
        over = limit(_CLOCKS_NS)
        wanted = {stats[pid].processor for pid in own}
        now: dict[int, int] = {}
        for pid, stat in stats.items():
            if stat.processor in wanted and not over():
                now[stat.processor] = max(now.get(stat.processor, 0), self._last_run(pid, stat.processor))
        for pid in own:
            cpu = stats[pid].processor
            ran = self._last_run(pid, cpu)
            if 0 < ran < now.get(cpu, 0):
                self._rows["idle"].append((pid, now[cpu] - ran))

    def _last_run(self, pid: int, cpu: int) -> int:
        """Return when a main thread last ran, if that was on `cpu`; else -1."""
        ran = last_run_ns(self._proc.read(pid, "sched", pid))
        after = self._proc.state(pid)
        return ran if after is not None and after.processor == cpu else _UNKNOWN

    def _keep_logs(self, known: dict[int, Identity], began_s: float) -> None:
        since_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + began_s
        found = read_logs(self._proc.root, known, since_s, limit(_LOGS_NS))
        self._rows["exceptions"] += found.rows
        if found.remote:
            self._not_seen.append(("logs_unread", f"{len(found.remote)} files of network file systems"))
        if found.left:
            self._not_seen.append(("logs_unread", f"{found.left} of many"))

    def _keep_kills(self, living: list[int], stats: list[parse.PidStat], began_s: float) -> None:
        """Keep kills for lack of memory, since the job began, of processes with its names or in its cgroups."""
        view = CgroupView(Path(self._proc.root))
        memberships = [view.membership(self._proc.read(pid, "cgroup")) for pid in living]
        paths = {clean_path(path) for one in memberships if (path := one.get("memory", one.get("", b"")))} - {"/"}
        names, pids = {stat.comm for stat in stats}, {stat.pid for stat in stats}
        log = self._log()
        if log.denied:
            self._not_seen.append(("not_permitted", "/dev/kmsg"))
        for kill in log.read(_LOG_RECORDS):
            late = kill.time_us / 1e6 >= began_s - _MARGIN_S
            if late and (kill.pid in pids or kill.comm in names or kill.cgroup in paths):
                of_job = kill.cgroup in paths
                self._rows["oom_kills"].append((kill.pid, kill.comm, kill.cgroup or "", kill.limit_cgroup, of_job, 1))
        log.close()
        for place in Hierarchies(view.mounts).places(memberships):
            group = read_group(place) if place.memory is not None and place.name in paths else None
            if group is not None and group.oom_kills > 0:
                self._rows["oom_kills"].append((_UNKNOWN, "", place.name, "", True, group.oom_kills))


def last_run_ns(raw: bytes) -> int:
    """Return when a thread last ran, in ns of the scheduler's clock, from /proc/PID/sched; -1 if that is not stated.

    The file needs CONFIG_SCHED_DEBUG before Linux 6.15. A line of it (kernel/sched/debug.c, ``SPLIT_NS``: ms)::

        se.exec_start                                :      56801343.672573
    """
    found = _LAST_RUN.search(raw)
    return int(found[1]) * 1_000_000 + int(found[2]) if found else _UNKNOWN
