"""One scheduling trace: load, poll, read, close.

Every event is a record of one size (`layout.TraceRecord`); they are returned as they lie in the ring buffer, to be
split into columns by the caller.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.bpf.attached import AttachedObject
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import KernelTypes, Map, Object
from whystall.bpf.preemption import preempt_distance
from whystall.bpf.ring import HEAD, BulkRing
from whystall.bpf.session import kernel_variants

RECORD_BYTES = HEAD + 48
"""Size of a record: 8 bytes of the ring buffer's header, then `layout.TraceRecord`."""
MAX_CPUS = 8192
GROUPS = ("sched", "irq", "softirq", "futex", "syscalls", "block", "power")
# group -> program: tracepoint
_CALLS = {"trace_sys_exit": "sys_exit", "trace_sys_enter": "sys_enter"}
_PROGRAMS: dict[str, dict[str, str]] = {
    "sched": {
        "trace_switch": "sched_switch",
        "trace_waking": "sched_waking",
        "trace_wakeup": "sched_wakeup",
        "trace_wakeup_new": "sched_wakeup_new",
        "trace_migrate": "sched_migrate_task",
        "trace_fork": "sched_process_fork",
        "trace_exec": "sched_process_exec",
        "trace_exit": "sched_process_exit",
        "trace_rename": "task_rename",
    },
    "irq": {"trace_irq_exit": "irq_handler_exit", "trace_irq_entry": "irq_handler_entry"},
    "softirq": {"trace_softirq_exit": "softirq_exit", "trace_softirq_entry": "softirq_entry"},
    "futex": _CALLS,
    "syscalls": _CALLS,
    "block": {
        "trace_complete": "block_rq_complete",
        "trace_issue": "block_rq_issue",
        "trace_insert": "block_rq_insert",
    },
    "power": {"trace_idle": "cpu_idle", "trace_frequency": "cpu_frequency"},
}
_FUTEX = frozenset({"futex", "futex_waitv", "futex_wait", "futex_wake", "futex_requeue"})


@lru_cache(maxsize=1)
def _kernel() -> frozenset[str]:
    """Return which of our tracepoints exist."""
    with KernelTypes() as kernel:
        hooks = {hook for programs in _PROGRAMS.values() for hook in programs.values()}
        here = frozenset(hook for hook in hooks if kernel.tracepoint_arguments(hook) >= 0)
    return here


@dataclass(frozen=True)
class TraceConfig:
    """What to trace. `groups` of `GROUPS`; ``sched`` always is."""

    groups: frozenset[str] = frozenset({"sched"})
    cpus: frozenset[int] | None = None
    """Events on these CPUs; None: on all. Starts, ends and names of threads are reported from all CPUs."""
    targets: frozenset[int] | None = None
    """Only events of threads of these processes (1 to 1024); None: of all, the tracer included."""
    follow: bool = False
    """Whether to trace processes that targets start."""
    self_tgid: int = field(default_factory=os.getpid)
    """The process whose switches are counted to verify that the hooks work."""
    ring_bytes: int = 1 << 23
    """Power of two, at least a page."""
    max_bytes: int = 1 << 28
    """Memory for records in this process; tracing ends if it is full."""
    variants: Mapping[str, bool] = field(default_factory=dict)
    """False: behave as on an older kernel for current_btf, switch_has_state, pt_regs_helper."""


class Loss(NamedTuple):
    """The number of events missing from a trace between two times."""

    cpu: int
    """-1: any."""
    start: int
    end: int
    events: int


@dataclass(frozen=True)
class Trace:
    """A finished trace; times are CLOCK_MONOTONIC nanoseconds."""

    start: int
    end: int
    records: list[bytes]
    """Chunks of whole records, `RECORD_BYTES` each, in the order of the ring buffer; type ``lost`` reports losses."""
    losses: list[Loss]
    """Losses not in the records: at the end, and by recursion of hooks."""
    stopped: int
    """When tracing ended because the memory was full; 0: not."""
    threads: list[tuple[int, int, int, bytes]]
    """All threads at the start and at the end: time, thread, process, name."""
    self_switches: int
    """Switches away from threads of `TraceConfig.self_tgid`, even if it is not a target."""
    compat_calls: int
    """System calls of 32-bit programs, which are left out: their numbers differ."""
    targets_full: bool
    """Whether some processes that targets started were not followed."""
    hooks: tuple[str, ...]
    missing: tuple[str, ...]
    """Wanted tracepoints that this kernel does not have."""


class TraceSession(AttachedObject):
    """See the module."""

    _ring: BulkRing | None

    def __init__(self, config: TraceConfig) -> None:
        super().__init__()
        self.config = config
        self._hooks: tuple[str, ...] = ()
        self._missing: tuple[str, ...] = ()
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._stopped = 0
        self._threads: list[tuple[int, int, int, bytes]] = []

    def __enter__(self) -> TraceSession:
        self.load()
        return self

    def load(self) -> None:
        """Load and attach, as one unit. Raises ``BpfError``; then nothing is attached."""
        config = self.config
        if not config.groups <= set(GROUPS):
            raise BpfError("bad_config", "unknown group of events", f"give some of {', '.join(GROUPS)}")
        if config.cpus is not None and not (config.cpus and 0 <= min(config.cpus) <= max(config.cpus) < MAX_CPUS):
            raise BpfError("bad_config", "no such CPUs", f"give some of 0 to {MAX_CPUS - 1}, or none for all")
        try:
            made = self._load()
            for program in self._programs:
                self._links.append(program.attach())
            self._live.window_start = time.monotonic_ns()
            self._name_all(made, self._live.window_start)
        except BaseException:
            self.close()
            raise

    def _load(self) -> Object:
        made = self._open("trace", self.config.targets)
        hooks = self._choose()
        for name in made.program_names():
            made.program(name).set_autoload(name in hooks or name == "name_all")
        made.map(".rodata.config").set_initial(bytes(self._constants()))
        made.map(".rodata.wanted_cpus").set_initial(self._cpu_mask())
        made.map(".rodata.wanted_calls").set_initial(self._call_mask())
        made.map("ring").set_max_entries(self.config.ring_bytes)
        made.load()
        targets = sorted(self.config.targets or ())
        for tgid in targets[1:]:
            made.map("targets").update(tgid.to_bytes(4, "little"), b"\1")
        self._live = lay.Live.from_buffer(made.map(".data.live").memory())
        self._live.more_targets = len(targets) > 1
        self._ring = BulkRing(made.map("ring"), RECORD_BYTES - HEAD)
        self._programs = [made.program(name) for name in hooks]
        self._hooks = tuple(hooks.values())
        return made

    def _choose(self) -> dict[str, str]:
        """Return the wanted programs with their tracepoints, as far as the kernel has them."""
        wanted: dict[str, str] = {}
        for group in GROUPS:
            if group == "sched" or group in self.config.groups:
                wanted |= _PROGRAMS[group]
        here = _kernel()
        missing = {program for program, hook in wanted.items() if hook not in here}
        self._missing = tuple(wanted[program] for program in wanted if program in missing)
        return {program: hook for program, hook in wanted.items() if program not in missing}

    def _constants(self) -> lay.Config:
        config = self.config
        here = {name: value and config.variants.get(name, True) for name, value in kernel_variants().items()}
        return lay.Config(
            target=min(config.targets) if config.targets else 0,
            self_tgid=config.self_tgid,
            follow=config.follow and bool(config.targets),
            all_cpus=config.cpus is None,
            preempt_distance=preempt_distance(),
            **{name: here[name] for name in ("current_btf", "switch_has_state", "pt_regs_helper", "block_one_arg")},
        )

    def _cpu_mask(self) -> bytes:
        return sum(1 << cpu for cpu in self.config.cpus or ()).to_bytes(MAX_CPUS // 8, "little")

    def _call_mask(self) -> bytes:
        everything = "syscalls" in self.config.groups
        return bytes(everything or syscalls.name(number) in _FUTEX for number in range(lay.SYSCALL_ROWS))

    def poll(self) -> int:
        """Take the available records; return their number. Call it often enough that the ring buffer does not fill."""
        taken = self._ring.take() if self._ring is not None else b""
        if taken:
            self._chunks.append(taken)
            self._bytes += len(taken)
        if self._bytes > self.config.max_bytes and not self._stopped:
            self._live.window_end = self._stopped = time.monotonic_ns()
            self._detach()
        return len(taken) // RECORD_BYTES

    def read(self) -> Trace:
        """Detach, read everything, close. Raises ``BpfError``."""
        made = self._loaded()
        try:
            start, end = self._live.window_start, time.monotonic_ns()
            self._live.window_end = self._live.window_end or end
            self._detach()
            self._name_all(made, end)  # threads whose start was not reported
            self.poll()
            counted = dict(zip(lay.COUNTERS, map(sum, _columns(made.map("counters"))), strict=True))
            losses = self._losses(made.map("losses"), end)
            if missed := self._misses():
                losses.append(Loss(-1, start, end, missed))
            return Trace(
                start=start,
                end=end,
                records=self._chunks,
                losses=losses,
                stopped=self._stopped,
                threads=self._threads,
                self_switches=counted["self_switches"],
                compat_calls=counted["compat_skipped"],
                targets_full=counted["targets_full"] > 0,
                hooks=self._hooks,
                missing=self._missing,
            )
        finally:
            self.close()

    def _name_all(self, made: Object, at: int) -> None:
        found = lay.unpacker(lay.ThreadName).iter_unpack(made.program("name_all").run_iterator())
        self._threads.extend((at, tid, tgid, comm.split(b"\0", 1)[0]) for tid, tgid, comm in found)

    def _losses(self, source: Map, end: int) -> list[Loss]:
        """Return the losses since the last record of each CPU."""
        first, count = _columns(source)
        return [Loss(cpu, at, end, n) for cpu, (at, n) in enumerate(zip(first, count, strict=True)) if n]

    def close(self) -> None:
        """Detach and free everything, the records too; idempotent, at any point."""
        super().close()
        self._chunks = []


def _columns(source: Map) -> list[list[int]]:
    """Return, per member of a per-CPU structure of 64-bit numbers, its values by CPU."""
    words = memoryview(source.lookup(bytes(4), per_cpu=True) or b"").cast("Q")
    width = source.value_size // 8
    return [list(words[member::width]) for member in range(width)]
