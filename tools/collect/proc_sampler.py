"""Sample threads through /proc, and fill the tables of `syscalls`, `switches` and `samples`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import polars as pl

from whystall.bpf import layout, syscalls
from whystall.bpf.python_walk import Memory
from whystall.tools.collect import proc_arguments as arguments
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_calls import RUNNING, Ended, Run, Sample, Span, Thread, syscall_name
from whystall.tools.collect.proc_files import Files
from whystall.tools.collect.proc_python import PythonStacks
from whystall.tools.collect.proc_samples import Sampled, Stacks, sample_tables
from whystall.tools.collect.tables import SWITCHES, SYSCALLS_WITHOUT_FAILURES, filled
from whystall.tools.contract.text import clean

_MAX_ROWS = 100_000
_ARG_LIMIT = 1 << 62
_ESTIMATED = 2
"""Up to this number of sightings the length of a wait is an estimate, with an error of up to 100 %."""
Row = tuple[object, ...]
Totals = dict[tuple[object, ...], list[int]]


class ThreadSampler:
    """Samples threads every `period_ns`.

    Calls shorter than two periods or `min_ns` are not reported. A wait, whatever its length, stands for the time from
    its first sample to the one after its last (see `proc_calls`); those shorter than `min_ns` are in the totals only.

    `scan` samples the threads of the given processes once; with `blocked_only` only those in uninterruptible sleep, and
    with `runs` those that are runnable. `runs`: keep samples of threads on a CPU. `python`: reads their Python stacks
    and those of waiting threads. `denied`: processes by the file that may not be read; without ``syscall`` calls have
    no names.
    """

    def __init__(
        self,
        period_ns: int,
        blocked_only: bool,
        min_ns: tuple[int, int] = (0, 0),
        *,
        runs: bool = False,
        python: PythonStacks | None = None,
        root: str = "/proc",
        clock: Callable[[], int] = time.monotonic_ns,
        memory: Callable[[int], Memory] = Memory,
    ) -> None:
        """`min_ns`: of calls, of waits."""
        self.period_ns = period_ns
        self.python = python
        self.denied: dict[str, set[int]] = {}
        self._granted: set[tuple[int, str]] = set()
        self.samples = 0
        self.lost = 0
        self.on_cpu: list[Sampled] = []
        self._scanned = False
        self._blocked_only = blocked_only
        self._runs = runs
        self._root = root
        self._clock = clock
        self._open_memory = memory
        self._memories: dict[int, Memory | None] = {}
        self._call_ns, self._wait_ns = max(min_ns[0], 2 * period_ns), min_ns[1]
        self._files = Files(root)
        self._threads: dict[int, Thread] = {}
        self._stacks = Stacks()
        self._calls: list[Row] = []
        self._waits: list[Row] = []
        self._call_totals: Totals = {}
        self._wait_totals: Totals = {}
        self._estimated: set[tuple[object, ...]] = set()

    def prove(self) -> bool:
        """Return whether a sample of the calling thread shows it in a read, which it is then doing."""
        sample = self._sample(os.getpid(), threading.get_native_id(), None)
        return sample is not None and sample[1].name in ("read", "pread64")

    def scan(self, pids: Iterable[int]) -> None:
        """Take one sample of every thread of `pids`."""
        if self.python is not None:
            self.python.begin_scan(first=not self._scanned)
        alive: set[int] = set()
        left: dict[int, Sample] = {}
        first, self._scanned = not self._scanned, True
        try:
            for pid in pids:
                for tid in self._tids(pid):
                    self._scan(pid, tid, first, alive, left)
        finally:
            for memory in self._memories.values():
                if memory is not None:
                    memory.close()
            self._memories.clear()
        for tid in self._threads.keys() - alive:
            thread = self._threads.pop(tid)
            self._keep(thread, thread.end(alive=False, at=left.get(tid)))

    def _scan(self, pid: int, tid: int, first: bool, alive: set[int], left: dict[int, Sample]) -> None:
        thread = self._threads.get(tid)
        taken = self._sample(pid, tid, thread)
        if taken is None:
            return
        comm, sample = taken
        self.samples += 1
        if self._blocked_only:
            if thread is None and sample.state != "D" and not (self._runs and sample.state == RUNNING):
                return
            if sample.state not in ("D", RUNNING):
                left[tid] = sample
                return
        if thread is None:
            thread = self._threads[tid] = Thread(pid, tid, comm, fresh=first)
        thread.comm = comm
        alive.add(tid)
        self._keep(thread, thread.feed(sample))
        self._resolve(thread)
        if thread.wait is not None and not thread.wait.placed:
            self._place(thread, thread.wait)
        elif thread.runnable is not None and (self._runs or not self._blocked_only):
            thread.ustack = self._running_stack(pid, tid)

    def stop(self) -> None:
        """Report calls and waits that were still open at the last sample."""
        for thread in self._threads.values():
            self._keep(thread, thread.end(alive=True))
        self._threads.clear()

    def syscall_tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of `syscalls`; the histogram is empty, as it would lack all short calls."""
        totals = [(*key, *values) for key, values in self._call_totals.items()]
        stacks = self._stacks.rows()
        files = self._files.rows
        return filled(SYSCALLS_WITHOUT_FAILURES, calls=self._calls, totals=totals, files=files, stacks=stacks)

    def switch_tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of `switches`; a count is unknown (-1) if short waits were seen, since others were
        missed."""
        totals = [
            (*key, -1 if key in self._estimated else count, total, longest or -1)
            for key, (count, total, longest) in self._wait_totals.items()
        ]
        stacks = self._stacks.rows()
        return filled(SWITCHES, segments=self._waits, totals=totals, files=self._files.rows, stacks=stacks)

    def sample_tables(self, period_ns: int) -> dict[str, pl.DataFrame]:
        """Return the tables of `samples`; `period_ns`: the mean time between two scans."""
        return sample_tables(self.on_cpu, self._stacks, period_ns)

    def _tids(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"{self._root}/{pid}/task")]
        except OSError:
            return []  # exited

    def _read(self, base: str, name: str, pid: int) -> bytes | None:
        """Return a thread's file; None if it may not be read. Raises OSError if the thread has exited."""
        if pid in self.denied.get(name, ()):
            return None
        try:
            descriptor = os.open(f"{base}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = os.read(descriptor, 16384)
            finally:
                os.close(descriptor)
            self._granted.add((pid, name))
            return content
        except PermissionError:
            if (pid, name) in self._granted:
                raise ProcessLookupError from None  # the files of an exiting process belong to root
            self.denied.setdefault(name, set()).add(pid)
            return None

    def _sample(self, pid: int, tid: int, thread: Thread | None) -> tuple[str, Sample] | None:
        base = f"{self._root}/{pid}/task/{tid}"
        now = self._clock()
        try:
            if thread is not None and (last := self._still_waiting(base, thread)) is not None:
                return thread.comm, last._replace(at_ns=now)
            # the call first: a thread that wakes meanwhile is then sampled as running, not in a call that it left
            call_text = self._read(base, "syscall", pid) if thread is not None or not self._blocked_only else None
            raw = self._read(base, "stat", pid)
            if raw is None:
                return None
            stat = parse.pid_stat(raw)
            if stat.state in "ZX":
                return None
            if self._blocked_only and thread is None:
                if stat.state != "D" and not (self._runs and stat.state == RUNNING):
                    return None
                call_text = self._read(base, "syscall", pid) if stat.state == "D" else None
            sched = parse.schedstat(self._read(base, "schedstat", pid) or b"0 0 0")
            call = parse.syscall(call_text) if call_text else None
            name = syscall_name(call.nr) if call else ""
            finished = -1
            if name and syscalls.row(name)["flags"] & layout.ROW_FILE_OP:
                io = parse.keyed(self._read(base, "io", pid) or b"")
                finished = io["syscr"] + io["syscw"] if "syscr" in io and "syscw" in io else -1
            kstack = self._kernel_stack(base, pid) if stat.state != RUNNING else -1
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None  # exited
        times = (stat.user_ns, sched.run_ns, sched.wait_ns, sched.slices)
        return stat.comm, Sample(now, stat.state, call, name, *times, finished, kstack)

    def _still_waiting(self, base: str, thread: Thread) -> Sample | None:
        """Return the last sample of a thread if it has not run since: one file is read instead of four."""
        if thread.wait is None:
            return None
        last = thread.wait.last
        if last.slices < 0 or (last.call is None and thread.pid not in self.denied.get("syscall", ())):
            return None
        now = parse.schedstat(self._read(base, "schedstat", thread.pid) or b"0 0 0")
        return last if now.slices == last.slices else None

    def _kernel_stack(self, base: str, pid: int) -> int:
        """Return the number of the kernel stack of a thread off the CPU."""
        frames = parse.kernel_stack(self._read(base, "stack", pid) or b"")
        if not frames:
            function = clean(self._read(base, "wchan", pid) or b"")
            frames = [function] if function not in ("", "0") else []
        return self._stacks.kernel(frames)

    def _resolve(self, thread: Thread) -> None:
        """Find the file of a call from its second sample on: its descriptor is open as long as the call lasts."""
        call = thread.call
        if call is None or call.resolved or call.samples < 2 or call.first.call is None:
            return
        call.resolved = True
        row, args = syscalls.row(call.first.name), call.first.call.args
        if row["fd"] >= len(args):
            return
        call.fd = _signed(args[row["fd"]])
        opened = self._files.resolve(thread.pid, call.fd) if 0 <= call.fd < 1 << 31 else None
        if opened is not None:
            call.file, call.direct = opened.key, opened.direct
            given = row["offset"] < len(args) and not row["flags"] & layout.ROW_POSITION
            call.offset = _signed(args[row["offset"]]) if given else opened.position

    def _memory(self, pid: int) -> Memory | None:
        """Return the memory of a process, open until the end of the scan; None if it may not be read."""
        if pid not in self._memories:
            self._memories[pid] = None
            if pid not in self.denied.get("mem", ()):
                try:
                    self._memories[pid] = self._open_memory(pid)
                except PermissionError:
                    self.denied.setdefault("mem", set()).add(pid)
                except OSError:
                    pass  # the process ends
        return self._memories[pid]

    def _running_stack(self, pid: int, tid: int) -> int:
        if self.python is None or (memory := self._memory(pid)) is None:
            return -1
        return self._stacks.python(self.python.running(pid, tid, memory))

    def _place(self, thread: Thread, wait: Span) -> None:
        """Read what a wait is for, from arguments, descriptors and memory; kept only if the thread has not run since it
        was sampled."""
        sample, pid = wait.last, thread.pid
        if sample.slices < 0:
            return
        args = sample.call.args if sample.call is not None else ()
        memory = self._memory(pid) if args or self.python is not None else None
        fd = arguments.descriptor(sample.name, args, memory) if args else -1
        asked = arguments.asked_ns(sample.name, args, memory) if args else -1
        link, file = self._files.named(pid, fd) if fd >= 0 else ("", -1)
        frames = self.python.waiting(pid, thread.tid, memory) if self.python is not None and memory is not None else ()
        try:
            base = f"{self._root}/{pid}/task/{thread.tid}"
            same = parse.schedstat(self._read(base, "schedstat", pid) or b"0 0 0").slices == sample.slices
        except (OSError, ValueError):
            return  # exited
        if same:
            wait.skipped = frames is None
            wait.object, wait.fd, wait.file, wait.asked_ns = link, fd, file, asked
            wait.ustack = self._stacks.python(frames or ())
            wait.placed = not wait.skipped

    def _keep(self, thread: Thread, ended: Ended) -> None:
        call, wait, run = ended
        owner = (thread.pid, thread.tid, thread.comm)
        if call is not None and call.wall_ns >= self._call_ns:
            self._keep_call(owner, call)
        if wait is not None:
            if self.python is not None and wait.skipped:
                self.python.skipped += 1
            # the call of a wait is one that began no later
            inside = next((c for c in (call, thread.call) if c and c.first.at_ns <= wait.first.at_ns), None)
            if wait.file < 0 and inside is not None and inside.first.call == wait.first.call:
                wait.file = inside.file
            self._keep_wait(owner, wait)
        if run is not None:
            self._keep_run(owner, run)

    def _keep_call(self, owner: tuple[int, int, str], call: Span) -> None:
        if len(self._calls) >= _MAX_ROWS:
            self.lost += 1
            return
        row = syscalls.row(call.first.name)
        args = call.first.call.args if call.first.call else ()
        counted = row["size"] < len(args) and not row["flags"] & layout.ROW_VECTOR
        asked = min(args[row["size"]], _ARG_LIMIT) if counted else 0
        parts = call.split()
        span = (call.first.at_ns, call.last.at_ns)
        place = (call.file, call.fd, asked, 0, call.offset, call.direct)
        self._calls.append((*span, *owner, call.first.name, *place, *parts, call.open, call.last.kstack))
        _count(self._call_totals, (*owner, call.first.name), [1, call.wall_ns, *parts], call.wall_ns, tail=[0])

    def _keep_wait(self, owner: tuple[int, int, str], wait: Span) -> None:
        first = wait.first
        place = (first.state, first.name, wait.file, first.kstack, wait.ustack)
        lock = 0
        if first.call is not None and syscalls.row(first.name)["flags"] & layout.ROW_FUTEX and first.call.args:
            lock = _signed(first.call.args[0])
        what = (-1, "", "", wait.object, wait.fd, wait.asked_ns)
        flags = (lock, 0, 0, "", 0, wait.open, wait.seeded)
        self._keep_segment(owner, place, (first.at_ns, wait.held_ns), (*flags, *what), wait.samples)

    def _keep_run(self, owner: tuple[int, int, str], run: Run) -> None:
        if self._runs and run.oncpu_ns:
            if len(self.on_cpu) < _MAX_ROWS:
                self.on_cpu.append(Sampled(run.at_ns, *owner, run.ustack, run.oncpu_ns))
            else:
                self.lost += 1
        waited = run.held_ns - run.oncpu_ns
        if waited and not self._blocked_only:
            place = (RUNNING, "", -1, -1, run.ustack)
            more = (0, 0, 0, "", 0, False, False, waited, "", "", "", -1, -1)
            self._keep_segment(owner, place, (run.at_ns, waited), more, 1)

    def _keep_segment(
        self,
        owner: tuple[int, int, str],
        place: tuple[str, str, int, int, int],
        span: tuple[int, int],
        more: tuple[object, ...],
        sightings: int,
    ) -> None:
        """Add a wait of `span` (start, length) to the totals, and if it is long enough to the segments."""
        start, length = span
        if not length:
            return
        measured = sightings > _ESTIMATED
        _count(self._wait_totals, (*owner, *place), [1, length], length if measured else 0)
        if not measured:
            self._estimated.add((*owner, *place))
        if length < self._wait_ns:
            return
        if len(self._waits) >= _MAX_ROWS:
            self.lost += 1
            return
        self._waits.append((start, start + length, *owner, *place, *more, -1, "", sightings))


def _count(totals: Totals, key: tuple[object, ...], sums: list[int], peak: int, tail: Sequence[int] = ()) -> None:
    """Add to `totals`: sums, then the maximum, then constants."""
    old = totals.setdefault(key, [*[0] * (len(sums) + 1), *tail])
    for index, value in enumerate(sums):
        old[index] += value
    old[len(sums)] = max(old[len(sums)], peak)


def _signed(value: int) -> int:
    """Convert a register to a signed 64-bit number."""
    return value - (1 << 64) if value >= 1 << 63 else value
