"""The ``procfs`` engine, which needs no privilege: it reads counters in /proc, and samples what others trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from whystall.tools.collect.device_log import DeviceLog
from whystall.tools.collect.hardware import Hardware
from whystall.tools.collect.objects import Objects
from whystall.tools.collect.options import (
    DeviceLogOptions,
    MemoryUseOptions,
    ProcOptions,
    SampleOptions,
    SwitchOptions,
    SyscallOptions,
)
from whystall.tools.collect.proc_block import BlockTotals
from whystall.tools.collect.proc_disks import whole_disks
from whystall.tools.collect.proc_interrupts import InterruptCounts
from whystall.tools.collect.proc_job import JobProcesses
from whystall.tools.collect.proc_memory_use import MemoryUse
from whystall.tools.collect.proc_python import PythonStacks
from whystall.tools.collect.proc_reader import DEFAULT_PERIOD_NS, ProcReader
from whystall.tools.collect.proc_residency import OpenFiles
from whystall.tools.collect.proc_run_queue import ThreadWaits
from whystall.tools.collect.proc_sampler import ThreadSampler
from whystall.tools.collect.proc_versions import Versions
from whystall.tools.collect.python_notes import refusals
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.vantage import PARTIAL_PROC, hidden_processes, proc_is_whole
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target, children_of

_TARGET_PERIOD_NS = 20_000_000
_HOST_PERIOD_NS = 100_000_000
_BLOCK_PERIOD_NS = 100_000_000
_CHILDREN_PERIOD_NS = 1_000_000_000
# Limit of sampling, as a share of one CPU; with many threads it samples less often, and reports how often.
_CPU_SHARE = 0.05
# Scans are shifted by multiples of the golden ratio, so that they do not always sample the same point of a program with
# the same period.
_JITTER, _GOLDEN = 0.5, 0.618033988749895
_SAMPLED = frozenset({"syscalls", "switches", "samples"})
_PER_PROCESS = frozenset({"proc", "syscalls", "switches", "samples", "run_queue", "objects", "job_processes"})
"""Collectors that read single processes; the others count for the whole host."""


class ProcfsEngine(Engine):
    """See the module.

    `proc` and `memory_use` are exact. `syscalls`, `switches` and `samples` are sampled: the target's threads 50 times
    per second, or, without a target, threads in uninterruptible sleep, and for `samples` on a CPU, 10 times per second.
    `block`, `interrupts` and `run_queue` have totals only. `residency` (of a target only), `interrupts`, `run_queue`,
    `objects`, `job_processes` and `hardware` are read at the start and at the end, `device_log` and
    `versions` at the end.
    """

    name = "procfs"
    serves = frozenset(
        {
            *("proc", "syscalls", "switches", "samples", "block", "residency", "interrupts", "run_queue", "objects"),
            *("memory_use", "job_processes", "device_log", "hardware", "versions"),
        }
    )

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.period_s = DEFAULT_PERIOD_NS / 1e9
        self._clock = clock
        self._wanted: dict[str, Options] = {}
        self._pids: list[int] = []
        self._target = Target(everything=True)
        self._reader: ProcReader | None = None
        self._sampler: ThreadSampler | None = None
        self._block: BlockTotals | None = None
        self._open_files: OpenFiles | None = None
        self._interrupts: InterruptCounts | None = None
        self._waits: ThreadWaits | None = None
        self._stopped_ns = 0
        self._objects: Objects | None = None
        self._job: JobProcesses | None = None
        self._memory: MemoryUse | None = None
        self._hardware: Hardware | None = None
        self._proven = False
        self._next_scan = self._next_block = self._next_children = 0
        self._started = 0
        self._scans = 0

    def unavailable(self) -> str | None:
        """Return that /proc is not mounted, or not completely."""
        if not os.path.exists("/proc/self/stat"):
            return "/proc is not mounted"
        return None if proc_is_whole() else PARTIAL_PROC

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Take the first samples."""
        self._wanted = dict(wanted)
        self._target, self._pids = target, list(target.pids)
        try:
            if "block" in wanted:
                self._block = BlockTotals(whole_disks())
                self._block.sample()
            if "residency" in wanted:
                self._open_files = OpenFiles(clock=self._clock)
                self._open_files.sample(self._pids)
            if "interrupts" in wanted:
                self._interrupts = InterruptCounts()
            if "run_queue" in wanted:
                self._waits = ThreadWaits(clock=self._clock)
                self._waits.sample(self._pids or _other_pids())
            if "memory_use" in wanted:
                period = MemoryUseOptions.of(wanted, "memory_use").period_ns
                self._memory = MemoryUse(target, period, clock=self._clock)
            if _SAMPLED & wanted.keys():
                self._sampler = self._new_sampler(wanted)
                self._proven = self._sampler.prove()
            if "objects" in wanted:
                self._objects = Objects(target, clock=self._clock)
                self._objects.take_snapshot()
            if "job_processes" in wanted:
                self._job = JobProcesses(target, clock=self._clock)
                self._job.take_snapshot()
            if "hardware" in wanted:
                self._hardware = Hardware(clock=self._clock)
                self._hardware.sample()
            if "proc" in wanted:
                period = ProcOptions.of(wanted, "proc").period_ns
                self._reader = ProcReader(target, period, clock=self._clock)
                self._reader.start()
        except OSError as error:
            self.close()
            raise ToolError(
                ErrorCode.PROBE_FAILED, f"cannot read {error.filename}: {error.strerror}", "is /proc mounted in full?"
            ) from error
        self._started = self._clock()
        self.poll()

    def _new_sampler(self, wanted: Mapping[str, Options]) -> ThreadSampler:
        everywhere = not self._pids
        python = SwitchOptions.of(wanted, "switches").python or SampleOptions.of(wanted, "samples").python
        stacks = PythonStacks(named_only=everywhere) if python else None
        if stacks is not None:
            stacks.update(self._pids)
        return ThreadSampler(
            _HOST_PERIOD_NS if everywhere else _TARGET_PERIOD_NS,
            blocked_only=everywhere,
            min_ns=(SyscallOptions.of(wanted, "syscalls").min_ns, SwitchOptions.of(wanted, "switches").min_ns),
            runs="samples" in wanted,
            python=stacks,
        )

    def start(self) -> int:
        """Take the first readings of memory sizes."""
        begun = self._clock()
        if self._memory is not None:
            self._memory.start()
            self.poll()
        return begun

    def poll(self) -> None:
        """Take the samples that are due, and set `period_s` to the time until the next one."""
        now = self._clock()
        due = [now + DEFAULT_PERIOD_NS]
        if self._reader is not None:
            if now >= self._reader.due_ns:
                self._reader.sample()
            due.append(self._reader.due_ns)
        if self._block is not None:
            if now >= self._next_block:
                self._block.sample()
                self._next_block = now + _BLOCK_PERIOD_NS
            due.append(self._next_block)
        if self._memory is not None and self._memory.due_ns:
            self._memory.sample()
            due.append(self._memory.due_ns)
        if self._sampler is not None:
            if now >= self._next_scan:
                self._scan(self._sampler, now)
            due.append(self._next_scan)
        self.period_s = max(0.002, (min(due) - self._clock()) / 1e9)

    def _scan(self, sampler: ThreadSampler, now: int) -> None:
        if self._target.follow and now >= self._next_children:
            self._pids = sorted({*self._pids, *children_of(self._pids)})
            self._next_children = now + _CHILDREN_PERIOD_NS
        began = time.thread_time_ns()
        sampler.scan(self._pids or _other_pids())
        # the first scan, which reads everything, is before the window
        cost = time.thread_time_ns() - began if self._scans else 0
        self._scans += 1
        period = sampler.period_ns * (1 + _JITTER * (self._scans * _GOLDEN % 1 - 0.5))
        self._next_scan = now + int(max(period, cost / _CPU_SHARE))

    def stop(self) -> int:
        """Read the counters for the last time: totals cannot be trimmed to the window later."""
        if not self._stopped_ns:
            if self._reader is not None:
                self._reader.finish()
            if self._interrupts is not None:
                self._interrupts.stop()
            if self._waits is not None:
                followed = children_of(self._pids) if self._target.follow else []
                self._waits.sample(sorted({*self._pids, *followed}) or _other_pids())
            if self._block is not None:
                self._block.sample()
            if self._hardware is not None:
                self._hardware.sample()
            self._stopped_ns = self._clock()
        return self._stopped_ns

    def read(self) -> dict[str, Capture]:
        """Take the last samples; return all captures."""
        self.stop()
        captures: dict[str, Capture] = {}
        if self._objects is not None:
            # first, so that waits open at the end are still open when they are read
            self._objects.take_snapshot(last=True)
            captures["objects"] = self._objects.read()
        if self._job is not None:
            self._job.take_snapshot(last=True)
            captures["job_processes"] = self._job.read()
        if self._memory is not None:
            captures["memory_use"] = self._memory.read()
        if "device_log" in self._wanted:
            recent_s = DeviceLogOptions.of(self._wanted, "device_log").recent_s
            captures["device_log"] = DeviceLog(recent_s=recent_s).read()
        if self._hardware is not None:
            captures["hardware"] = self._hardware.read()
        if "versions" in self._wanted:
            followed = children_of(self._pids) if self._target.follow else []
            captures["versions"] = Versions({*self._pids, *followed}).read()
        if self._sampler is not None:
            self._scan(self._sampler, self._clock())
        if self._reader is not None:
            captures["proc"] = self._reader.read()
        if self._open_files is not None:
            if self._target.follow:
                self._pids = sorted({*self._pids, *children_of(self._pids)})
            self._open_files.sample(self._pids)
            captures["residency"] = self._open_files.read()
        if self._interrupts is not None:
            captures["interrupts"] = _interrupt_capture(self._interrupts)
        if self._waits is not None:
            captures["run_queue"] = self._waits.read()
        if self._block is not None:
            captures["block"] = self._block_capture(self._block)
        if self._sampler is not None:
            self._sampler.stop()
            captures |= self._sampled(self._sampler)
        why = hidden_processes() if self._target.everything else None
        for name in _PER_PROCESS & captures.keys() if why is not None else ():
            captures[name].not_seen = [*captures[name].not_seen, ("hidden_processes", why or "")]
        self.close()
        return captures

    def close(self) -> None:
        """Release everything; nothing is attached."""
        self._reader, self._sampler, self._block, self._open_files = None, None, None, None
        self._interrupts, self._waits, self._objects, self._job = None, None, None, None
        self._hardware = None
        if self._memory is not None:
            self._memory.close()
        self._memory = None

    def _sampled(self, sampler: ThreadSampler) -> dict[str, Capture]:
        period_ns = (self._clock() - self._started) // max(1, self._scans - 1)
        permitted = [
            ("not_permitted", f"{name} of {len(pids)} processes")
            for name, pids in sorted(sampler.denied.items())
            if name in ("syscall", "stat", "io", "mem")
        ]
        captures = {}
        for name in _SAMPLED & self._wanted.keys():
            if name == "syscalls":
                frames, kept = sampler.syscall_tables(), "calls"
            elif name == "switches":
                frames, kept = sampler.switch_tables(), "segments"
            else:
                frames, kept = sampler.sample_tables(period_ns), "samples"
            sampled = "threads" if self._pids else "threads on a CPU" if name == "samples" else "threads in state D"
            frame_kinds = ", Python frames only" if name == "samples" else ""
            not_seen = [("sampled", f"{sampled} every {period_ns / 1e6:.0f} ms{frame_kinds}"), *permitted]
            captures[name] = Capture(
                tables=frames,
                hooks=["/proc/PID/task"],
                seen=sampler.samples,
                kept=frames[kept].height,
                lost=sampler.lost,
                proven=self._proven,
                not_seen=not_seen + ([] if name == "syscalls" else _python_notes(sampler.python)),
                events=frozenset({"samples"} if name == "samples" else ()),
            )
        return captures

    def _block_capture(self, block: BlockTotals) -> Capture:
        tables = block.tables()
        requests = int(tables["totals"]["count"].sum())
        return Capture(
            tables=tables,
            hooks=["/proc/diskstats"],
            seen=requests,
            kept=requests,
            lost=0,
            proven=block.reads > 1,
            not_seen=[("sampled", "block requests: totals only, queue and device time together")],
        )


def _python_notes(python: PythonStacks | None) -> list[tuple[str, str]]:
    """Return (blind spot, detail): processes whose frames cannot be walked, stacks left out, stacks not usable."""
    if python is None:
        return []
    notes = [("python_frames", refusals(python.refused))] if python.refused else []
    if python.skipped:
        notes.append(("python_skipped", f"{python.skipped}/{python.walks + python.skipped}"))
    if python.torn:
        notes.append(("python_broken", f"{python.torn}/{python.walks}"))
    return notes


def _interrupt_capture(counts: InterruptCounts) -> Capture:
    tables = counts.tables()
    seen = int(tables["totals"]["count"].sum())
    return Capture(
        tables=tables,
        hooks=["/proc/interrupts", "/proc/softirqs", "/proc/stat"],
        seen=seen,
        kept=seen,
        lost=0,
        # timers run on every host: counts that do not grow are wrong
        proven=seen > 0,
        not_seen=[("untimed_interrupts", "all"), *(("not_permitted", f"/proc/{name}") for name in counts.denied)],
    )


def _other_pids() -> list[int]:
    own = os.getpid()
    return [pid for name in os.listdir("/proc") if name.isdigit() and (pid := int(name)) != own]
