"""The `proc` collector: counters of host, processes, target threads, disks and cgroups over a window.

Cost (measured on a 2-CPU x86_64 virtual machine): 5 to 12 us per file. Processes are read twice, at the start and at
the end; host, disks and cgroups once per period; the target's threads as often as `_THREAD_SHARE` of one CPU allows, at
most every `_THREAD_TICK_NS`, because their states are the only sign of block I/O where delay accounting is off (the
kernel's default since 5.14).
"""

from __future__ import annotations

import mmap
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from whystall.tools.collect import proc_counters as counters
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.collect.own_priority import own_real_time
from whystall.tools.collect.proc_bounds import BoundsReader
from whystall.tools.collect.proc_cgroup import Hierarchies, Place, read_limits
from whystall.tools.collect.proc_disks import partitions, whole_disks
from whystall.tools.collect.proc_filesystems import filesystems
from whystall.tools.collect.proc_io_limits import IoLimitReader
from whystall.tools.collect.proc_memory import read_memory
from whystall.tools.collect.proc_real_time import OwnCpuTime, RealTimeThreads
from whystall.tools.collect.proc_task_limits import task_limits
from whystall.tools.collect.proc_topology import cpu_rows
from whystall.tools.collect.proc_weights import WeightReader
from whystall.tools.contract.text import clean_path
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.target import Target, children_of

DEFAULT_PERIOD_NS = parse.NS
_THREAD_TICK_NS = 25_000_000
_IO_TICK_NS = 100_000_000
"""Of reads of what cgroups with an I/O limit move: the longest slice of blk-throttle (DFL_THROTL_SLICE_HD)."""
_THREAD_SHARE = 0.005
_KTHREADD = 2
_MAX_THREAD_ROWS = 200_000
Row = tuple[object, ...]


class ProcReader:
    """Reads the tables of `proc`. Call `start`, `sample` whenever `due_ns` has passed, `finish`, and `read`.

    `clock`: CLOCK_MONOTONIC in ns. A process or thread that exits between two reads is no error; what may not be read
    is reported as a blind spot.
    """

    def __init__(
        self,
        target: Target,
        period_ns: int = DEFAULT_PERIOD_NS,
        root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._target = target
        self._period_ns = max(period_ns, 10_000_000)
        self._proc = str(root)
        self._view = CgroupView(root)
        self._clock = clock
        self._pids: list[int] = list(target.pids)
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)
        self._denied: dict[str, set[int]] = {}
        self._granted: set[tuple[str, str]] = set()
        self._exited = 0
        self._unreadable: set[str] = set()
        self._disks = whole_disks()
        self._places: list[Place] = []
        self._cpus: set[int] = set()
        self._masks: dict[int, set[int]] = {}
        self._own_weights: dict[int, tuple[int, parse.PidStat]] = {}
        self._cpusets: dict[int, str] = {}
        self._cgroup_of: dict[tuple[int, int], dict[str, bytes]] = {}
        self._bounds = BoundsReader(Hierarchies(self._view.mounts), clock)
        self._weights = WeightReader(Hierarchies(self._view.mounts), self._read, clock)
        self._delays = _delay_accounting()
        self._real_time = RealTimeThreads(self._read, self._threads_of, clock)
        self._own = OwnCpuTime(self._read, self._threads_of)
        self._io = IoLimitReader(self._view.mounts, self._membership, clock)
        self._next_host = self._next_threads = self._next_io = 0
        self._thread_cost_ns = 0
        self._finished = False

    @property
    def due_ns(self) -> int:
        """Return when the next sample is due, CLOCK_MONOTONIC in ns."""
        threads = self._next_threads if self._pids else self._next_host
        return min(self._next_host, threads, self._next_io if self._io.any else self._next_host)

    @property
    def thread_tick_ns(self) -> int:
        """Return the time between two reads of the target's threads."""
        return max(_THREAD_TICK_NS, int(self._thread_cost_ns / _THREAD_SHARE))

    def start(self) -> None:
        """Take the first sample."""
        self._cpus = self._allowed_cpus()
        self._rows["cpus"] += cpu_rows()
        self._sample_filesystems()
        self._places = self._find_cgroups()
        self._sample_processes()
        self.sample()

    def sample(self) -> None:
        """Read what is due now."""
        now = self._clock()
        full = now >= self._next_host
        if full:
            self._next_host = now + self._period_ns
            if self._target.follow:
                self._pids = sorted({*self._pids, *children_of(self._pids)})
            self._sample_host()
            self._sample_disks()
            self._sample_cgroups()
            self._io.find(self._pids)
        if full or now >= self._next_io:
            self._io.sample()
            self._next_io = now + _IO_TICK_NS
        if self._pids and now >= self._next_threads and len(self._rows["threads"]) < _MAX_THREAD_ROWS:
            self._sample_threads(full)
            self._next_threads = now + self.thread_tick_ns

    def finish(self) -> None:
        """Take the last sample, once."""
        if self._finished:
            return
        self._finished = True
        self._sample_threads(full=True)
        self._sample_host()
        self._sample_disks()
        self._sample_cgroups()
        self._io.find(self._pids)
        self._io.sample()
        self._sample_processes()
        self._sample_filesystems()

    def read(self) -> Capture:
        """Return the capture, after the last sample."""
        self.finish()
        self._rows["io_limits"], self._rows["io_use"] = self._io.limits, self._io.use
        self._rows["partitions"] = list(partitions())
        memberships = [found for pid in self._pids if (found := self._membership(pid))]
        self._rows["task_limits"] = task_limits(self._view.mounts, memberships, self._clock)
        from whystall.tools.collect.tables import PROC, filled  # large: not needed until now

        tables = filled(PROC, **self._rows)
        rows = sum(frame.height for frame in tables.values())
        return Capture(
            tables=tables,
            hooks=[self._proc],
            seen=rows,
            kept=rows,
            lost=0,
            proven=self._proven(),
            not_seen=self._blind_spots(),
        )

    def _proven(self) -> bool:
        """Return whether our own counters show the CPU time that we used."""
        own = [row for row in self._rows["processes"] if row[1] == os.getpid()]
        return bool(own) and any(_number(row[5]) + _number(row[6]) > 0 for row in own) and bool(self._rows["host"])

    def _blind_spots(self) -> list[tuple[str, str]]:
        spots = []
        for what, pids in sorted(self._denied.items()):
            # with a target only its own processes count
            if denied := (pids.intersection(self._pids) if self._pids else pids):
                spots.append(("not_permitted", f"{what} of {len(denied)} processes"))
        spots += [("not_permitted", name) for name in sorted(self._unreadable) if not name.startswith("pressure/")]
        if any(name.startswith("pressure/") for name in self._unreadable):
            spots.append(("psi_absent", ""))
        for controller in ("cpu", "memory"):
            if not any(getattr(place, controller) for place in self._places):
                spots.append(("cgroup_absent", controller))
        if self._real_time.cut:
            spots.append(("priorities_cut", ""))
        if (share := self._own.starved()) is not None:
            spots.append(("self_starved", f"{share:.2g} %"))
        if priority := own_real_time():
            spots.append(("self_real_time", f"priority {priority}"))
        if self._pids and not self._rows["threads"]:
            spots.append(("no_target_threads", self._target.describe()))
        elif self._pids and self._delays is False:
            detail = f"thread states read every {self.thread_tick_ns // 1_000_000} ms"
            spots.append(("no_delay_accounting", detail))
        return spots

    def _read(self, name: str) -> bytes:
        descriptor = os.open(f"{self._proc}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = b""
            while chunk := os.read(descriptor, 1 << 16):
                content += chunk
            return content
        finally:
            os.close(descriptor)

    def _host_file(self, name: str) -> bytes | None:
        try:
            return self._read(name)
        except OSError:
            self._unreadable.add(name)
            return None

    def _sample_host(self) -> None:
        found: dict[str, float] = {}
        if raw := self._host_file("stat"):
            stat, now = parse.host_stat(raw), self._clock()
            found |= counters.stat_counters(stat, self._cpus)
            self._rows["cpu_times"] += [(now, cpu, times.busy) for cpu, times in stat.cpus.items()]
        if raw := self._host_file("loadavg"):
            found |= dict(zip(("load1", "load5", "load15"), parse.loadavg(raw), strict=True))
        if raw := self._host_file("meminfo"):
            found |= counters.memory_counters(parse.keyed(raw))
        if raw := self._host_file("vmstat"):
            found |= counters.vm_counters(parse.keyed(raw))
        for resource in counters.PRESSURES:
            name = f"pressure/{resource}"
            if resource == "irq" and not os.path.exists(f"{self._proc}/{name}"):
                continue  # since 6.1 and only with CONFIG_IRQ_TIME_ACCOUNTING
            if raw := self._host_file(name):
                found |= counters.pressure_counters(resource, parse.pressure(raw))
        found["mem_page_bytes"] = float(mmap.PAGESIZE)
        now = self._clock()
        self._rows["host"] += [(now, name, value) for name, value in found.items()]

    def _sample_disks(self) -> None:
        raw = self._host_file("diskstats")
        now = self._clock()
        for d in parse.diskstats(raw or b""):
            if self._disks is None or d.device in self._disks:
                self._rows["disks"].append(
                    (
                        *(now, d.device, d.dev, d.reads, d.read_bytes, d.read_ms),
                        *(d.writes, d.write_bytes, d.write_ms, d.busy_ms, d.in_flight),
                    )
                )

    def _sample_filesystems(self) -> None:
        found = filesystems(self._proc, self._pids) if self._pids else []
        now = self._clock()
        self._rows["filesystems"] += [(now, *row) for row in found]

    def _sample_cgroups(self) -> None:
        for place in self._places:
            limits = read_limits(place)
            if limits is not None:
                self._rows["cgroups"].append((self._clock(), place.name, place.version, *limits))
            memory = read_memory(place)
            if memory is not None:
                self._rows["memory"].append((self._clock(), place.name, place.version, *memory))

    def _sample_processes(self) -> None:
        found: list[parse.PidStat] = []
        for name in os.listdir(self._proc):
            if not name.isdigit():
                continue
            try:
                stat = parse.pid_stat(self._read(f"{name}/stat"))
            except (FileNotFoundError, ProcessLookupError):
                self._exited += 1
                continue
            except PermissionError:
                self._deny("stat", int(name))
                continue
            found.append(stat)
            now = self._clock()
            io = self._process_file(name, "io")
            counts = parse.keyed(io) if io is not None else {}
            self._rows["processes"].append(
                (
                    *(now, stat.pid, stat.ppid, stat.comm, stat.start_ticks, stat.user_ns, stat.system_ns),
                    *(self._delay(stat), stat.major_faults, stat.minor_faults, stat.rss_bytes),
                    *(counts.get("read_bytes", parse.UNKNOWN), counts.get("write_bytes", parse.UNKNOWN)),
                    *(stat.threads, self._cgroup(name, stat), stat.state),
                    stat.exit_code if stat.state == "Z" else parse.UNKNOWN,
                )
            )
        if self._pids:
            ours = (stat for stat in found if _KTHREADD not in (stat.pid, stat.ppid))
            cgroups = {stat.pid: self._cgroup_of[stat.pid, stat.start_ticks] for stat in ours}
            self._rows["cpu_bounds"] += self._bounds.look(cgroups, self._pids)
            self._rows["cpu_weights"] += self._weights.look(found, cgroups, self._pids, self._own_weights)
        self._rows["real_time"] += self._real_time.look(one for one in found if one.pid != os.getpid())

    def _process_file(self, pid: str, name: str) -> bytes | None:
        try:
            content = self._read(f"{pid}/{name}")
            self._granted.add((pid, name))
            return content
        except PermissionError:
            if (pid, name) not in self._granted:  # else it is exiting, and its files belong to root now
                self._deny(name, int(pid))
        except (FileNotFoundError, ProcessLookupError):
            self._exited += 1
        return None

    def _deny(self, what: str, pid: int) -> None:
        self._denied.setdefault(what, set()).add(pid)

    def _delay(self, stat: parse.PidStat) -> int:
        return parse.UNKNOWN if self._delays is False else stat.block_io_ns

    def _cgroup(self, pid: str, stat: parse.PidStat) -> str:
        """Return the path in the unified hierarchy, else of the v1 cpu or memory controller; cached."""
        key = (stat.pid, stat.start_ticks)
        if key not in self._cgroup_of:
            raw = self._process_file(pid, "cgroup")
            self._cgroup_of[key] = self._view.membership(raw or b"")
        paths = self._cgroup_of[key]
        named = [paths[c] for c in ("", "cpu", "memory") if paths.get(c, b"/") != b"/"]
        return clean_path((named or [b"/" if paths else b""])[0])

    def _threads_of(self, pid: int) -> Sequence[str]:
        try:
            return os.listdir(f"{self._proc}/{pid}/task")
        except OSError:
            return ()  # exited

    def _sample_threads(self, full: bool) -> None:
        """Read state and times of every target thread; context switches (the most expensive file) only when `full`."""
        began = time.thread_time_ns()
        self._own_weights.clear()
        for pid in self._pids:
            leader: parse.PidStat | None = None
            for tid in self._threads_of(pid):
                base = f"{pid}/task/{tid}"
                try:
                    stat = parse.pid_stat(self._read(f"{base}/stat"))
                    sched = parse.schedstat(self._read(f"{base}/schedstat"))
                    switches = self._switches(base) if full else (parse.UNKNOWN, parse.UNKNOWN)
                except (FileNotFoundError, ProcessLookupError, ValueError):
                    self._exited += 1  # an exiting thread gives an error or an empty file
                    continue
                except PermissionError:
                    self._deny("threads", pid)
                    continue
                if stat.state in "ZX":
                    continue  # its counters moved to its process; the previous sample is its last
                leader = leader or stat  # the first one listed is the main thread
                if (stat.policy, stat.nice) != (leader.policy, leader.nice):
                    self._own_weights[stat.pid] = pid, stat
                self._rows["threads"].append(
                    (
                        *(self._clock(), pid, int(tid), stat.comm, stat.state, stat.user_ns, stat.system_ns),
                        *(sched.run_ns, sched.wait_ns, self._delay(stat), *switches),
                    )
                )
                self._sample_affinity(pid, int(tid), stat.comm)
        self._thread_cost_ns = time.thread_time_ns() - began

    def _sample_affinity(self, pid: int, tid: int, comm: str) -> None:
        """Record the CPUs that a thread may run on at first and after each change: other processes may set them."""
        try:
            cpus = os.sched_getaffinity(tid)
        except OSError:
            return  # exited
        if cpus != self._masks.get(tid):
            self._masks[tid] = cpus
            self._rows["affinity"].append((self._clock(), pid, tid, comm, format_cpus(cpus), self._cpuset(pid)))

    def _cpuset(self, pid: int) -> str:
        """Return the CPUs of the cgroup of a process; empty if unknown."""
        if pid not in self._cpusets:
            raw = self._process_file(str(pid), "cgroup")
            self._cpusets[pid] = Hierarchies(self._view.mounts).cpuset(self._view.membership(raw or b""))
        return self._cpusets[pid]

    def _switches(self, base: str) -> tuple[int, int]:
        found = parse.keyed(self._read(f"{base}/status"))
        voluntary, involuntary = "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"
        return found.get(voluntary, parse.UNKNOWN), found.get(involuntary, parse.UNKNOWN)

    def _allowed_cpus(self) -> set[int]:
        """Return the CPUs that the target may run on; empty if unknown."""
        cpus: set[int] = set()
        for pid in self._pids:
            for tid in self._threads_of(pid):
                try:
                    cpus |= os.sched_getaffinity(int(tid))
                except OSError:
                    continue  # exited
        return cpus

    def _find_cgroups(self) -> list[Place]:
        hierarchies = Hierarchies(self._view.mounts)
        if not self._pids:
            return hierarchies.top_level()
        found = [self._membership(pid) for pid in self._pids]
        return hierarchies.places(membership for membership in found if membership is not None)

    def _membership(self, pid: int) -> dict[str, bytes] | None:
        """Return the cgroups of a process; None if they cannot be read."""
        text = self._process_file(str(pid), "cgroup")
        return self._view.membership(text) if text is not None else None


def _delay_accounting() -> bool | None:
    """Return whether the kernel keeps I/O delays per task; None before 5.14, which does by default."""
    try:
        return Path("/proc/sys/kernel/task_delayacct").read_bytes().strip() != b"0"
    except OSError:
        return None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
