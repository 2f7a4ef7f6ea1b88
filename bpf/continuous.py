"""A session without an end: its records are taken raw, and cut into slices while all hooks stay attached.

A wait belongs to the slice in which it ends. `cut` also records the waits in progress, which go on: a slice tells what
every thread waited for at its end. The marks of what was emitted are removed at a cut: each slice has the stacks
and files that its records name, except the stacks of waits that began earlier.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.attached import MAX_TARGETS
from whystall.bpf.collectors.accelerator import AcceleratorCalls
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.collectors.samples import CpuSamples
from whystall.bpf.collectors.switches import Switches
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import Map, Object
from whystall.bpf.ring import MixedRing
from whystall.bpf.session import Session, SessionConfig

_SEARCH_S = 5.0  # between searches for new Python processes: each reads a file of every process
_STACKS = 16384
_LOOK_NS = 900_000_000
_CPU_CLOCK = 2  # in the number of the clock of a process (MAKE_PROCESS_CPUCLOCK, CPUCLOCK_SCHED of posix-timers.h)
_FOLLOW_NS = 5_000_000
_CALL_NS = 15  # what the kernel takes to call a program at a tracepoint, beside the program itself
_APPLIED = 3  # attempts to fill a table that the kernel side changes, too
_COST = struct.Struct("<QQ").unpack  # struct process_cost
_TICK_NS = round(time.clock_getres(6) * 1e9)  # CLOCK_MONOTONIC_COARSE: the kernel's tick


class Cut(NamedTuple):
    """What the kernel side counted since the last cut. `totals`, `threads`: keys in a row, and values, of the maps
    ``off_totals`` and ``threads``; `counters`: by the names of `layout.COUNTERS`, those that are not 0; `calls`: as
    `totals`, of ``accelerator_totals``."""

    start: int
    end: int
    totals: tuple[bytes, bytes]
    threads: tuple[bytes, bytes]
    counters: dict[str, int]
    calls: tuple[bytes, bytes] = (b"", b"")


class Detail(NamedTuple):
    """How a process is recorded by hooks at switches: waits of at least `min_ns`; who ends one of at least
    `wake_min_ns`; stacks are reused by the registers alone for `reuse_ns`, 0: never."""

    min_ns: int
    wake_min_ns: int
    reuse_ns: int


class HookTime(NamedTuple):
    """The time of the hooks at switches that ran for a process, ns, and how often they ran: about thrice per wait."""

    ns: int
    runs: int


class ContinuousSession(Session):
    """See the module. Call `load`, `start`, then `take` each second, and `cut`. Errors: ``BpfError``."""

    _ring: MixedRing | None

    def __init__(
        self,
        targets: frozenset[int],
        min_ns: int,
        sample_ns: int,
        keep_code: Callable[[bytes], object],
        *,
        accelerator: bool = False,
    ) -> None:
        """`keep_code`: receives the records of code objects that user space reads. `accelerator`: whether functions of
        accelerators' libraries can be probed, by `calls`."""
        self.python = PythonFrames(_SEARCH_S, keep_code)
        self._sampler = CpuSamples(sample_ns, _STACKS)
        self._switches = Switches(min_ns, wakers=True, user_stacks=True, follow_wakers=True)
        self.calls = AcceleratorCalls() if accelerator else None
        more = (self.calls,) if self.calls is not None else ()
        collectors = (self._switches, self._sampler, self.python, *more)
        super().__init__(SessionConfig(targets=targets, follow=True, changing=True), collectors)
        self._wanted = targets
        self._levels: dict[int, int] = {}
        self._details = 1
        self._hooked = True
        self._looked = 0
        self._began = 0
        self._counted: dict[str, int] = {}

    def start(self) -> int:
        """Begin to count, and return the instant by the monotonic clock."""
        self._live.follow_min_ns = _FOLLOW_NS
        self._apply_levels()
        self._began = super().start()
        return self._began

    def _choose(self, made: Object) -> None:
        super()._choose(made)
        made.map("process_costs").set_max_entries(MAX_TARGETS)
        if self.calls is not None:
            self.calls.choose(made)

    def _constants(self) -> lay.Config:
        made = super()._constants()
        made.limited = True
        return made

    def _open_ring(self, ring: Map) -> None:
        self._ring = MixedRing(ring)

    def take(self) -> bytes:
        """Return the records that have arrived, to be read by `ring.records`."""
        if self._ring is None:
            return b""
        self.python.poll()
        self._look()
        return self._ring.take()

    def seeded(self) -> dict[int, cap.Stack]:
        """Return the Python stacks of waits in progress that user space has read since the last call."""
        found = dict(self._stacks)
        self._stacks.clear()
        if self.python.processes is not None:
            self.python.processes.stacks.clear()
        return found

    def admit(self, found: Sequence[cap.Followed]) -> None:
        """Find the threads that are off the CPU of processes that `take` reported as followed."""
        self._followed += found
        if self._followed:
            self._admit_followed()

    def cut(self) -> Cut:
        """End a slice: record the waits in progress, and return what was counted. `take` has the records before it, and
        must be called for those of the waits."""
        made = self._loaded()
        self._live.walk_stage = lay.WALK_REPORT
        try:
            made.program("walk").run_iterator()
        finally:
            self._live.walk_stage = lay.WALK_SEED
        totals = made.map("off_totals").drain()
        threads = made.map("threads").drain()
        made.map("files_seen").drain()
        made.map("stacks_emitted").drain()
        start, self._began = self._began, time.monotonic_ns()
        before = self._counted
        self._counted = {name: sum(values) for name, values in self.counters().items()}
        counted = {name: more for name, value in self._counted.items() if (more := value - before.get(name, 0))}
        calls = made.map("accelerator_totals").drain() if self.calls is not None else (b"", b"")
        return Cut(start, self._began, totals, threads, counted, calls)

    def emit_codes_again(self) -> None:
        """Have the kernel side emit every code object again at its next use."""
        self._loaded().map("codes_emitted").drain()

    def kinds(self) -> dict[int, int]:
        """Return the processes recorded now: targets, their children, and followed wakers, each as a
        ``layout.TRACED_...``."""
        if self._targets is None:
            return {}
        return {int.from_bytes(key, "little"): value[0] for key, value in self._targets.items()}

    def target_pids(self) -> list[int]:
        """Return the targets and their children, without followed wakers."""
        return [pid for pid, kind in self.kinds().items() if kind == lay.TRACED_TARGET]

    def set_targets(self, wanted: frozenset[int]) -> None:
        """Observe the processes `wanted`, and no longer those of an earlier call; children that were followed stay.
        Those that find no room beside them are observed after a `prune`."""
        if len(wanted) > MAX_TARGETS:
            raise BpfError("bad_config", f"{len(wanted)} targets", f"give at most {MAX_TARGETS}")
        kinds = self.kinds()
        self._remove(self._wanted - wanted)
        self._wanted = wanted
        self._add([pid for pid in sorted(wanted) if kinds.get(pid) != lay.TRACED_TARGET])

    def prune(self) -> list[int]:
        """Remove the processes that have ended; return them. Then observe those wanted for which there was no room."""
        ended, kinds = self._remove_ended(), self.kinds()
        left = [pid for pid in sorted(self._wanted) if kinds.get(pid) != lay.TRACED_TARGET]
        self._add([pid for pid in left if os.path.exists(f"/proc/{pid}")])
        return ended

    def _remove_ended(self) -> list[int]:
        ended = [pid for pid in self.kinds() if not os.path.exists(f"/proc/{pid}")]
        self._remove(ended)
        return ended

    def release_wakers(self) -> None:
        """Follow the processes no longer that are followed because they woke a target; they are again at a wake-up."""
        self._remove(pid for pid, kind in self.kinds().items() if kind != lay.TRACED_TARGET)
        self._live.followed_users = self._live.followed_kernel = 0

    def set_details(self, details: Sequence[Detail], look_min_ns: int) -> None:
        """Set the levels of detail that processes may have, at most `layout.DETAIL_LEVELS`, from the most to the least.
        `look_min_ns`: the shortest wait that is recorded of processes that are looked at."""
        self._details = len(details)
        for at, one in enumerate(details):
            made = self._live.details[at]
            made.switch_min_ns, made.wake_min_ns, made.reuse_ns = one.min_ns, one.wake_min_ns, one.reuse_ns
            made.wake_min_ticks = max(0, one.wake_min_ns // _TICK_NS - 1)  # of the first only a part has passed
        self._live.look_min_ns = look_min_ns

    def limit(self, levels: Mapping[int, int], sample_one_in: int) -> None:
        """Record each process with one of the details of `set_details`, and one of `sample_one_in` samples. A level
        beyond them: no switch of it is recorded, but its threads are looked at each second: of waits that are in
        progress at two looks, the system call and the kernel stack are recorded, and not who ended them. If that holds
        for all processes, no hook at switches is attached."""
        self._levels = dict(levels)
        self._live.sample_one_in = sample_one_in
        self._apply_levels()

    def level_of(self, pid: int) -> int:
        """Return the level of a process; of one that the kernel side has added since `limit`, its parent's."""
        known = self._levels.get(pid)
        return known if known is not None else max(0, self._live.levels[pid % lay.PROCESS_SLOTS] - 1)

    def _apply_levels(self) -> None:
        """Fill the table by which the hooks find the level of a process."""
        for _ in range(_APPLIED):
            pids = self.kinds().keys()
            wanted = bytearray(lay.PROCESS_SLOTS)
            for pid in pids:
                level, slot = self.level_of(pid), pid % lay.PROCESS_SLOTS
                if level < self._details and not 0 < wanted[slot] <= level:
                    wanted[slot] = level + 1
            self._hook(any(wanted) or not pids)
            for slot, (before, level) in enumerate(zip(bytes(self._live.levels), wanted, strict=True)):
                if before != level:
                    self._live.levels[slot] = level
            self._live.looking = any(self.level_of(pid) >= self._details for pid in pids)
            if not self.kinds().keys() - pids:  # else the kernel side has added one meanwhile
                break

    def job_times_ns(self) -> dict[int, int]:
        """Return the CPU time of each process that is recorded and lives, ns."""
        found = {}
        for pid in self.kinds():
            with suppress(OSError):  # it has ended
                found[pid] = time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
        return found

    def measure(self, on: bool) -> dict[int, HookTime]:
        """Begin to measure the time of the hooks at switches by process, or end it, and return what each took."""
        self._live.measuring = on
        keys, values = self._loaded().map("process_costs").drain()
        return {
            int.from_bytes(keys[at * 4 : at * 4 + 4], "little"): HookTime(ns + runs * _CALL_NS, runs)
            for at in range(len(keys) // 4)
            for ns, runs in [_COST(values[at * 16 : at * 16 + 16])]
        }

    def _hook(self, wanted: bool) -> None:
        """Attach the hooks at switches, or detach them."""
        if wanted == self._hooked:
            return
        names = [name for name in self._switches.programs() if name in self._attached]
        for name in names:
            for link in self._attached[name]:
                link.close()
            self._attached[name] = [self._loaded().program(name).attach()] if wanted else []
        self._links = [link for links in self._attached.values() for link in links]
        self.hooks = tuple(name for name, links in self._attached.items() if links)
        self._hooked = wanted

    def _look(self) -> None:
        """Find the long waits of processes without hooks at switches, once per second."""
        now = time.monotonic_ns()
        if not self._live.looking or now - self._looked < _LOOK_NS:
            return
        self._looked = now
        self._live.walk_stage = lay.WALK_LOOK
        try:
            self._loaded().program("walk").run_iterator()
        finally:
            self._live.walk_stage = lay.WALK_SEED

    def run_time_ns(self) -> int:
        """Return the time of all programs on all CPUs while `libbpf.run_statistics` were on, without those of `calls`,
        whose cost counts apart."""
        apart = self.calls.programs() if self.calls is not None else ()
        return sum(program.run_time_ns() for program in self._programs if program.name not in apart)

    def hits(self) -> int:
        """Return how many entries and returns of probed functions there were, of any process."""
        return sum(self.counters().get("accelerator_hits", ()))

    def close(self) -> None:
        """Detach and free everything; idempotent."""
        if self.calls is not None:
            self.calls.close()
        super().close()

    def _add(self, pids: list[int]) -> None:
        """Observe `pids`, as many as the map has room for."""
        if self._targets is None or not pids:
            return
        if len(self.kinds()) + len(pids) > MAX_TARGETS:
            self._remove_ended()
            self.release_wakers()
        now, added = time.monotonic_ns(), list[int]()
        for pid in pids:  # as wakers at first, for the walk to find them
            if not self._targets.insert(pid.to_bytes(4, "little"), bytes([lay.TRACED_WAKER])):
                break  # children of others have filled it
            added.append(pid)
        pids = added
        self._live.more_targets = 1
        self._apply_levels()
        self.python.followed([cap.Followed(now, pid, pid, b"", 0) for pid in pids])
        self._live.walk_followed = 1
        self._loaded().program("walk").run_iterator()
        for pid in pids:
            self._targets.update(pid.to_bytes(4, "little"), bytes([lay.TRACED_TARGET]))

    def _remove(self, pids: Iterable[int]) -> None:
        if self._targets is None:
            return
        gone = list(pids)
        for pid in gone:
            self._targets.delete(pid.to_bytes(4, "little"))
            self._levels.pop(pid, None)
        if gone:
            self._apply_levels()
        if self.python.processes is not None:
            self.python.processes.forget(gone)
