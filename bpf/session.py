"""One session of the kernel side, with the life of an `Engine`: load, start, poll, stop, read, close.

``load`` takes long (the kernel verifies; hooks are attached one by one, and count nothing yet). ``start`` and ``stop``
open and close one gate for all hooks, so that several sessions can start and stop together. Nothing outlives the
process: all attachments are file descriptors. A session belongs to one thread; several sessions may run at once.
"""

from __future__ import annotations

import ctypes as ct
import os
import resource
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.bpf.attached import AttachedObject
from whystall.bpf.collector import Collector, Setup, Window
from whystall.bpf.collectors import COLLECTORS
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import KernelTypes, Link, Map, Object, Ring
from whystall.bpf.preemption import preempt_distance
from whystall.bpf.ring import MixedRing

_WALK_RING_MAX = 64 << 20
_MAX_STACKS = 1 << 18  # kept in this process, about 200 bytes each
_READER = {
    lay.RECORD_CALL: "reader_call",
    lay.RECORD_PATH: "reader_call",
    lay.RECORD_SEGMENT: "reader_segment",
    lay.RECORD_BLOCK: "reader_block",
}
"""Reasons of records lost because this process keeps no more of them."""
_NO_PROCESS = (1 << 32) - 1  # `config.target` where all targets are in the map
_CONSTANT_VARIANTS = frozenset(name for name, *_ in lay.Config._fields_)


@dataclass(frozen=True)
class SessionConfig:
    """Which processes to observe, and how."""

    targets: frozenset[int] | None
    """Process ids (1 to 1024 of them); None: every process but the tracer, and then only file operations
    among the system calls."""
    self_tgid: int = field(default_factory=os.getpid)
    """The tracer: not reported unless it is a target; its events are counted to verify that the hooks work."""
    follow: bool = False
    """Whether to observe processes that targets start during the window."""
    changing: bool = False
    """Whether any target may leave during the window; there may be none at first."""
    ring_bytes: int = 1 << 21
    """Power of two, at least a page."""
    max_bytes: int = 32 << 20
    """Memory for records in this process; later records are counted as lost (``reader_call`` ...)."""
    variants: Mapping[str, bool] = field(default_factory=dict)
    """False: behave as on an older kernel for task_storage, pt_regs_helper, current_btf, loop_helper, preempt_count,
    plain_loads, switch_has_state, atomics, or without an event of the page cache (``category:name``)."""


@lru_cache(maxsize=1)
def kernel_variants() -> Mapping[str, bool]:
    """Return which newer features the running kernel has. Raises ``BpfError`` ``no_btf`` or ``no_libbpf``."""
    with KernelTypes() as kernel:
        helpers = kernel.enum_names("bpf_func_id")
        switch_arguments = kernel.tracepoint_arguments("sched_switch")
        if switch_arguments < 0:
            raise BpfError("no_btf", "the kernel's type information has no tracepoints", "use a kernel from 5.8 on")
        current_btf = "BPF_FUNC_get_current_task_btf" in helpers
        return {
            "task_storage": "BPF_MAP_TYPE_TASK_STORAGE" in kernel.enum_names("bpf_map_type") and current_btf,
            "pt_regs_helper": "BPF_FUNC_task_pt_regs" in helpers,
            "current_btf": current_btf,
            "loop_helper": "BPF_FUNC_loop" in helpers,
            "plain_loads": kernel.has_function("bpf_rdonly_cast") and current_btf,
            "switch_has_state": switch_arguments >= 4,
            "block_one_arg": kernel.tracepoint_arguments("block_rq_insert") == 1,
            "block_merge_hook": kernel.tracepoint_arguments("block_rq_merge") > 0,
            "preempt_count": os.uname().machine == "aarch64" or preempt_distance() != 0,
            "wake_contexts": kernel.tracepoint_arguments("hrtimer_expire_entry") > 0
            and kernel.tracepoint_arguments("hrtimer_expire_exit") > 0
            and kernel.tracepoint_arguments("softirq_entry") > 0
            and kernel.tracepoint_arguments("softirq_exit") > 0,
            "fault_hook": kernel.tracepoint_arguments("mm_filemap_fault") == 2 and current_btf,
        }


class Session(AttachedObject):
    """See the module."""

    _ring: Ring | MixedRing | None

    def __init__(self, config: SessionConfig, collectors: Iterable[Collector]) -> None:
        super().__init__()
        self.config = config
        self.collectors = tuple(collectors)
        self.hooks: tuple[str, ...] = ()
        self.variants: dict[str, bool] = {}
        self._targets: Map | None = None
        self._records: list[bytes] = []
        self._attached: dict[str, list[Link]] = {}
        self._handlers: dict[int, Callable[[bytes], object]] = {
            lay.RECORD_STACK: self._take_stack,
            lay.RECORD_FOLLOWED: self._take_followed,
        }
        self._followed: list[cap.Followed] = []
        self._stacks: dict[int, cap.Stack] = {}
        self._stacks_full = 0
        self._bytes = 0
        self._dropped: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()

    def __enter__(self) -> Session:
        self.load()
        self.start()
        return self

    def load(self) -> None:
        """Attach all hooks as one unit; nothing counts before `start`. Raises ``BpfError``; then nothing is left."""
        try:
            made = self._load()
            for collector in self.collectors:
                collector.loaded(made)
            self._attach(made)
        except BaseException:
            self.close()
            raise

    def start(self) -> int:
        """Begin to count, and return the instant by the monotonic clock. Raises ``BpfError``; then nothing is left."""
        made = self._loaded()
        try:
            self._missed = Counter()
            self._missed.subtract(self._misses_by_program())
            since = self._live.window_start = time.monotonic_ns()
            for name in _unique(name for one in self.collectors for name in one.start_iterators):
                made.program(name).run_iterator()
        except BaseException:
            self.close()
            raise
        return since

    def _load(self) -> Object:
        forced = self.config.variants
        self.variants = {name: here and forced.get(name, True) for name, here in kernel_variants().items()}
        for collector in self.collectors:
            collector.prepare(Setup(self.variants, forced, self._targets_now, self._stacks))
            self._handlers |= collector.record_handlers()
        kind = "host" if self.variants["plain_loads"] else "host_old"
        made = self._open(kind, self.config.targets or ({0} if self.config.changing else self.config.targets))
        if made.map(".data.live").value_size != ct.sizeof(lay.Live):
            raise BpfError("object_missing", f"{made.name} was built from other sources", "build it again: make build")
        self._choose(made)
        made.map(".rodata.config").set_initial(bytes(self._constants()))
        made.map(".rodata.rows").set_initial(syscalls.rows_image())
        made.map("ring").set_max_entries(max(self.config.ring_bytes, self._ring_for_walk()))
        made.load()
        self._live = lay.Live.from_buffer(made.map(".data.live").memory())
        self._targets = made.map("targets")
        for tgid in sorted(self.config.targets or ())[0 if self.config.changing else 1 :]:
            self.add_target(tgid)
        self._open_ring(made.map("ring"))
        return made

    def _open_ring(self, ring: Map) -> None:
        self._ring = Ring(ring, self._take)

    def _targets_now(self) -> frozenset[int] | None:
        """Return the targets, followed children included; None: all processes."""
        targets = self.config.targets
        if targets is None or self._targets is None:
            return targets
        now = {int.from_bytes(key, "little") for key, _ in self._targets.items()}
        return frozenset(now if self.config.changing else targets | now)

    def _ring_for_walk(self) -> int:
        """Return the size of a ring for the last walk, which writes an open segment of every thread at once."""
        most = max((collector.bytes_per_thread for collector in self.collectors), default=0)
        if self.config.targets is not None or not most:
            return 0
        threads = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
        return min(_WALK_RING_MAX, 1 << (2 * threads * most).bit_length())

    def _choose(self, made: Object) -> None:
        """Choose the programs to load and the maps to create."""
        iterators = {name for one in self.collectors for name in (*one.start_iterators, *one.stop_iterators)}
        wanted = {*self._owners(), *iterators}
        for name in made.program_names():
            made.program(name).set_autoload(name in wanted)
        made.map("state_storage").set_autocreate(self.variants["task_storage"])
        if self.variants["task_storage"]:
            made.map("state_hash").set_max_entries(1)
        needed = {name for one in self.collectors for name in one.needed_maps()}
        for kind in COLLECTORS:
            for name in {*kind.maps} - needed:
                made.map(name).set_autocreate(False)
            for name in {*kind.shared_maps} - needed:
                made.map(name).set_max_entries(1)
        for collector in self.collectors:
            for name, entries in collector.map_sizes().items():
                made.map(name).set_max_entries(entries)

    def _owners(self) -> dict[str, Collector | None]:
        """Return the programs to attach in this order, each with its collector."""
        owners: dict[str, Collector | None] = {}
        for collector in self.collectors:
            for name in collector.programs():
                owners.setdefault(name, collector)
        if self.config.follow and (self.config.targets or self.config.changing):
            owners["on_fork"] = None
        return owners

    def _constants(self) -> lay.Config:
        config = self.config
        targets = sorted(config.targets or ())
        values: dict[str, int] = {
            "wakeup_bytes": config.ring_bytes // 4,
            "target": _NO_PROCESS if config.changing else targets[0] if targets else 0,
            "self_tgid": 0 if config.self_tgid in targets else config.self_tgid,
            "thread_size": 16384 if os.uname().machine == "x86_64" else max(16384, resource.getpagesize()),
            "follow": config.follow and bool(targets or config.changing),
            "anonymous_dev": _anonymous_device(),
            "realtime_offset": time.time_ns() - time.monotonic_ns(),
        }
        for collector in self.collectors:
            values |= collector.constants()
        return lay.Config(**values, **{name: on for name, on in self.variants.items() if name in _CONSTANT_VARIANTS})

    def _attach(self, made: Object) -> None:
        for name, owner in self._owners().items():
            program = made.program(name)
            links = owner.attach(program) if owner is not None else [program.attach()]
            self._links += links
            self._attached[name] = links
            self._programs.append(program)
        self.hooks = tuple(program.name for program in self._programs)

    def _take(self, record: bytes) -> None:
        handler = self._handlers.get(record[0])
        if handler is not None:
            handler(record)
        elif self._bytes + len(record) > self.config.max_bytes and record[0] != lay.RECORD_FILE:
            self._dropped[_READER.get(record[0], "reader_full")] += 1
        else:
            self._bytes += len(record)
            self._records.append(record)

    def _take_followed(self, record: bytes) -> None:
        self._followed.append(cap.followed(record))

    def _take_stack(self, record: bytes) -> None:
        if len(self._stacks) < _MAX_STACKS:
            number, stack = cap.stack(record)
            self._stacks[number] = stack
        else:
            self._stacks_full += 1

    def fileno(self) -> int:
        """Return a descriptor that is readable when the ring buffer fills; call ``poll`` then, and every second."""
        if self._ring is None:
            raise BpfError("read_failed", "the session is not open", "load it first")
        return self._ring.fileno()

    def poll(self) -> int:
        """Process the available records; return their number."""
        if self._ring is None:
            return 0
        for collector in self.collectors:
            collector.poll()
        number = self._ring.consume()
        if self._followed:
            self._admit_followed()
        return number

    def _admit_followed(self) -> None:
        """Find the threads of newly followed processes that are off the CPU: no switch event has reported them."""
        new, self._followed = self._followed, []
        for collector in self.collectors:
            collector.followed(new)
        if self._live.window_end or self._targets is None:
            return
        self._live.walk_followed = 1
        self._loaded().program("walk").run_iterator()
        for one in new:
            self._targets.update(one.tgid.to_bytes(4, "little"), bytes([lay.TRACED_WAKER_WALKED]))

    def add_target(self, tgid: int) -> None:
        """Observe one more process from now on."""
        if self._targets is None or self.config.targets is None:
            raise BpfError("bad_config", "the session has no targets", "load it with targets")
        self._targets.update(tgid.to_bytes(4, "little"), b"\1")
        self._live.more_targets = 1

    def follow(self, tgids: Iterable[int]) -> None:
        """Record the switches and samples of processes outside of the targets from now on, as those of wakers."""
        if self._targets is None or self.config.targets is None:
            return
        for tgid in set(tgids) - (self._targets_now() or frozenset()) - {self.config.self_tgid}:
            try:
                comm = Path(f"/proc/{tgid}/comm").read_bytes().strip()
            except OSError:
                continue  # it has ended
            self._targets.update(tgid.to_bytes(4, "little"), bytes([lay.TRACED_WAKER]))
            self._live.more_targets = 1
            self._followed.append(cap.Followed(time.monotonic_ns(), tgid, tgid, comm, 0))
        if self._followed:
            self._admit_followed()

    def counters(self) -> dict[str, list[int]]:
        """Return every counter (layout.COUNTERS), per CPU, now."""
        if self._object is None:
            return {}
        raw = self._object.map("counters").lookup(bytes(4), per_cpu=True) or b""
        words = memoryview(raw).cast("Q")
        width = len(lay.COUNTERS)
        return {name: [words[i] for i in range(at, len(words), width)] for at, name in enumerate(lay.COUNTERS)}

    def stop(self) -> int:
        """End counting, record what is still in progress, and return the instant; the first one when repeated. Raises
        ``BpfError``."""
        made = self._loaded()
        if self._live.window_end:
            return int(self._live.window_end)
        self.poll()  # make room for what the walk writes
        end = self._live.window_end = time.monotonic_ns()
        self._missed.update(self._misses_by_program())
        self._live.walk_stage = lay.WALK_FINISH  # at once: a call that ends before the walk reaches it is not recorded
        for name in _unique(name for one in self.collectors for name in one.stop_iterators):
            made.program(name).run_iterator()
            self.poll()
        return end

    def read(self) -> cap.Capture:
        """Stop, detach, read everything, close. Raises ``BpfError``."""
        made = self._loaded()
        try:
            end = self.stop()
            self._detach()
            self.poll()
            return self._capture(made, end)
        finally:
            self.close()

    def _misses_by_program(self) -> dict[str, int]:
        """Return how often each program did not run because it was already running, since it was attached."""
        unimportant = {name for one in self.collectors for name in one.hints}
        return {
            f"recursion_{one.name}": one.recursion_misses() for one in self._programs if one.name not in unimportant
        }

    def _capture(self, made: Object, end: int) -> cap.Capture:
        records = cap.Records(self._records)
        counters = self.counters()
        lost = {name: counters[name] for name in lay.LOSSES if any(counters[name])}
        more = {**self._dropped, "stacks_full": self._stacks_full, **self._missed}
        lost |= {name: [count] for name, count in more.items() if count}
        seen = {name.removeprefix("seen_"): sum(counters[name]) for name in lay.COUNTERS[len(lay.LOSSES) :]}
        window = Window(made, end, records, lost, seen)
        results = [collector.read(window) for collector in self.collectors]
        return cap.Capture(
            window_start=self._live.window_start,
            window_end=end,
            files=records.files,
            threads=cap.threads(made.map("threads").items()),
            stacks=self._stacks,
            results={type(result): result for result in results},
            lost=lost,
            seen=seen,
            hooks=self.hooks,
            variants={name: "new" if here else "old" for name, here in self.variants.items()},
        )


@lru_cache(maxsize=1)
def _anonymous_device() -> int:
    """Return the kernel's number of the file system of anonymous inodes (eventfd, epoll, ...)."""
    descriptor = select.epoll()
    try:
        found = os.fstat(descriptor.fileno()).st_dev
    finally:
        descriptor.close()
    return os.major(found) << 20 | os.minor(found)


def _unique(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(names)
