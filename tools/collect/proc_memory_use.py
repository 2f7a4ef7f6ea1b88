"""The collector `memory_use`: memory of processes and cgroups, read periodically, and out-of-memory kills.

Cost: 40 us per process and reading. smaps_rollup walks the page tables of a process while its mappings are locked
(about 5 ms per GiB), so it is read at the start and at the end only, within `_ROLLUP_NS` in total and not for processes
above `_ROLLUP_BYTES`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.kernel_log import KernelLog, OomKill
from whystall.tools.collect.proc_cgroup import Hierarchies, Place, read_file
from whystall.tools.collect.proc_memory_sizes import (
    ProcessMemory,
    Rollup,
    read_group,
    read_host,
    read_process,
    read_rollup,
)
from whystall.tools.collect.tables import MEMORY_USE, filled
from whystall.tools.contract.text import clean_path
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.oom_kills import Vanished, counted_kills, exit_signal
from whystall.tools.recording.target import Target, all_pids, children_of

_ROLLUP_NS = 100_000_000
_ROLLUP_BYTES = 16 << 30
_MOST_PROCESSES = 4096
_MOST_BETWEEN = 128
"""Most processes read between start and end, the largest."""
_MOST_GROUPS = 64
_CHILDREN_NS = 5_000_000_000
"""Time between two searches for new descendants, each of which reads a file of every process."""
_UNKNOWN = parse.UNKNOWN
Row = tuple[object, ...]


class MemoryUse:
    """Reads the tables of `memory_use`. Call `start`, `sample` whenever `due_ns` has passed, `read` at the end."""

    def __init__(
        self,
        target: Target,
        period_ns: int,
        root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        log: KernelLog | None = None,
    ) -> None:
        self._target = target
        self._period_ns = max(period_ns, 10_000_000)
        self._root, self._proc = root, str(root)
        self._clock = clock
        self._log = log or KernelLog()
        self._view = CgroupView(root)
        self._hierarchies = Hierarchies(self._view.mounts)
        self._pids: list[int] = list(target.pids)
        self._seen: dict[int, ProcessMemory] = {}
        self._alive: set[int] = set()
        self._group_of: dict[tuple[int, int], str] = {}
        self._places: dict[str, Place] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._rolled: list[int] = []
        self._rows: dict[str, list[Row]] = {name: [] for name in MEMORY_USE}
        self._kills: list[tuple[int, OomKill]] = []
        self._denied: set[int] = set()
        self._left_out: set[int] = set()
        self.due_ns = self._next_children = self._polled_ns = 0

    def start(self) -> None:
        """Take the first readings."""
        self._polled_ns = self._clock()
        self._read_everything()

    def sample(self) -> None:
        """Read what is due now."""
        now = self._clock()
        if now < self.due_ns:
            return
        if self._target.pids and now >= self._next_children:
            self._find_descendants()
        alive = [self._seen[pid] for pid in self._alive]
        largest = [p.pid for p in sorted(alive, key=lambda p: -p.rss_bytes)[:_MOST_BETWEEN]]
        new = [pid for pid in self._pids if pid not in self._seen][:_MOST_BETWEEN]
        self._add_processes(self._read_processes({*largest, *new}), {})
        self._read_groups()
        self._read_log()
        self.due_ns = self._clock() + self._period_ns

    def read(self) -> Capture:
        """Take the last readings; return the capture."""
        self._read_everything()
        self._log.close()
        self._rows["oom_kills"] = self._oom_kills()
        tables = filled(MEMORY_USE, **self._rows)
        rows = sum(frame.height for frame in tables.values())
        return Capture(
            tables=tables,
            hooks=[f"{self._proc}/PID/status", "memory.stat", f"{self._proc}/meminfo"],
            seen=rows,
            kept=rows,
            lost=0,
            proven=any(row[1] == "" for row in self._rows["groups"]),  # the host was read
            not_seen=self._blind_spots(),
        )

    def close(self) -> None:
        """Close the kernel's log."""
        self._log.close()

    def _read_everything(self) -> None:
        """Read every process with its private and shared memory, all cgroups and the log."""
        if self._target.pids:
            self._find_descendants()
        pids = self._pids if self._target.pids else all_pids()
        found = self._read_processes(pids[:_MOST_PROCESSES])
        self._read_groups()
        self._read_log()
        self._add_processes(found, self._rollups([p for _, p in found]))
        self.due_ns = self._clock() + self._period_ns

    def _find_descendants(self) -> None:
        self._pids = children_of(self._pids)
        self._next_children = self._clock() + _CHILDREN_NS

    def _read_processes(self, pids: set[int] | list[int]) -> list[tuple[int, ProcessMemory]]:
        """Return the processes that could be read, with the times of their readings."""
        found = []
        for pid in pids:
            self._alive.discard(pid)
            try:
                process = read_process(self._proc, pid)
            except PermissionError:
                self._denied.add(pid)
                continue
            except (OSError, ValueError):
                continue  # exited
            if process is not None:
                found.append((self._clock(), process))
                self._seen[pid] = process
                self._alive.add(pid)
                self._find_group(process)
        return found

    def _add_processes(self, found: list[tuple[int, ProcessMemory]], rollups: dict[int, Rollup]) -> None:
        for at_ns, process in found:
            rollup = rollups.get(process.pid, Rollup())
            group = self._group_of[process.pid, process.start_ticks]
            self._rows["processes"].append((at_ns, *process, *rollup, group))

    def _rollups(self, processes: list[ProcessMemory]) -> dict[int, Rollup]:
        """Read the shared memory of processes, the largest first; at the end, first those read at the start."""
        first = set(self._rolled)
        order = sorted(processes, key=lambda p: (p.pid not in first, -p.rss_bytes))
        found: dict[int, Rollup] = {}
        began = self._clock()
        for process in order:
            if process.rss_bytes > _ROLLUP_BYTES or self._clock() - began > _ROLLUP_NS:
                self._left_out.add(process.pid)
                continue
            try:
                found[process.pid] = read_rollup(self._proc, process.pid)
            except OSError:
                continue  # exited, no permission, or a kernel before 4.14
        self._rolled = list(found)
        return found

    def _find_group(self, process: ProcessMemory) -> None:
        """Find the memory cgroup of a process, and store it with its ancestors."""
        key = (process.pid, process.start_ticks)
        if key in self._group_of:
            return
        membership = self._view.membership(read_file(f"{self._proc}/{process.pid}/cgroup".encode()))
        path = membership.get("memory", membership.get("", b""))
        self._group_of[key] = clean_path(path) if path else ""
        if self._target.pids and len(self._places) < _MOST_GROUPS:
            for place in self._hierarchies.places([membership]):
                if place.memory is not None:
                    self._places.setdefault(place.name, place)

    def _read_groups(self) -> None:
        host = read_host(self._proc)
        groups = [("", host), *((name, read_group(place)) for name, place in self._places.items())]
        now = self._clock()
        for name, group in groups:
            if group is None:
                continue  # removed
            self._rows["groups"].append((now, name, *group))
            if group.oom_kills >= 0:
                first, _ = self._counts.get(name, (group.oom_kills, 0))
                self._counts[name] = (first, group.oom_kills)

    def _read_log(self) -> None:
        now = self._clock()
        for kill in self._log.read():
            # bound the time of the record, since the clock of the log may differ by seconds
            self._kills.append((min(max(kill.time_us * 1000, self._polled_ns), now), kill))
        self._polled_ns = now

    def _oom_kills(self) -> list[Row]:
        """Return the kills from the log, and those shown by counters only, without those of unrelated processes."""
        now = self._clock()
        groups = {*self._group_of.values(), *self._places}
        risen = {name: last - first for name, (first, last) in self._counts.items() if name and last > first}
        own = []
        for at_ns, kill in self._kills:
            group = kill.cgroup if kill.cgroup is not None else self._group_of_kill(kill.pid, risen)
            if group is not None and (not self._target.pids or kill.pid in self._seen or group in groups):
                own.append((at_ns, kill, group))
        rows: list[Row] = [
            (at, k.pid, k.comm, group, k.limit_cgroup, k.anon_bytes, "counter" if k.cgroup is None else "log")
            for at, k, group in own
        ]
        logged = {kill.pid for _, kill, _ in own}
        vanished = [
            Vanished(p.pid, p.comm, self._group_of[p.pid, p.start_ticks], p.anon_bytes)
            for pid, p in self._seen.items()
            if pid not in self._alive and pid not in logged
        ]
        signals = {one.pid: exit_signal(self._root / str(one.pid) / "stat") for one in vanished}
        for one, group in counted_kills(vanished, signals, risen, [group for *_, group in own]):
            named = (one.pid, one.comm, group, "", one.anon_bytes) if one else (_UNKNOWN, "", group, "", _UNKNOWN)
            rows.append((now, *named, "counter"))
        return rows

    def _group_of_kill(self, pid: int, risen: Collection[str]) -> str | None:
        """Return the cgroup of a killed process that was not logged: its own if it was read, else the only one whose
        counter has risen."""
        if (process := self._seen.get(pid)) is not None:
            return self._group_of[pid, process.start_ticks]
        return next(iter(risen)) if len(risen) == 1 else None

    def _blind_spots(self) -> list[tuple[str, str]]:
        spots = []
        if self._denied:
            spots.append(("not_permitted", f"memory of {len(self._denied)} processes"))
        if self._left_out:
            spots.append(("shares_unread", f"{len(self._left_out)} processes"))
        if self._target.pids and not self._places:
            spots.append(("cgroup_absent", "memory"))
        return spots
