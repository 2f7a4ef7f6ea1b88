"""Sample threads through /proc, and fill the tables of `syscalls` and `switches` with what the samples prove."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import polars as pl

from whystall.bpf import layout, syscalls
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_calls import RUNNING, Sample, Span, Thread
from whystall.tools.collect.proc_files import Files
from whystall.tools.collect.tables import SWITCHES, SYSCALLS, filled
from whystall.tools.contract.text import clean

_MAX_ROWS = 100_000
_ARG_LIMIT = 1 << 62
Row = tuple[object, ...]
Totals = dict[tuple[object, ...], list[int]]


class ThreadSampler:
    """Samples threads every `period_ns`; events shorter than two periods or `min_ns` are not reported.

    `scan` samples the threads of the given processes once; with `blocked_only` only those in uninterruptible sleep.
    `denied`: processes by the file that may not be read; without ``syscall`` calls have no names.
    """

    def __init__(
        self,
        period_ns: int,
        blocked_only: bool,
        min_ns: tuple[int, int] = (0, 0),
        root: str = "/proc",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`min_ns`: of calls, of waits."""
        self.period_ns = period_ns
        self.denied: dict[str, set[int]] = {}
        self._granted: set[tuple[int, str]] = set()
        self.samples = 0
        self.lost = 0
        self._scanned = False
        self._blocked_only = blocked_only
        self._root = root
        self._clock = clock
        self._call_ns, self._wait_ns = (max(ns, 2 * period_ns) for ns in min_ns)
        self._files = Files(root)
        self._threads: dict[int, Thread] = {}
        self._stacks: dict[tuple[str, ...], int] = {}
        self._calls: list[Row] = []
        self._waits: list[Row] = []
        self._call_totals: Totals = {}
        self._wait_totals: Totals = {}

    def prove(self) -> bool:
        """Return whether a sample of the calling thread shows it in a read, which it is then doing."""
        sample = self._sample(os.getpid(), threading.get_native_id(), None)
        return sample is not None and sample[1].name in ("read", "pread64")

    def scan(self, pids: Iterable[int]) -> None:
        """Take one sample of every thread of `pids`."""
        alive: set[int] = set()
        first, self._scanned = not self._scanned, True
        for pid in pids:
            for tid in self._tids(pid):
                thread = self._threads.get(tid)
                taken = self._sample(pid, tid, thread)
                if taken is None:
                    continue
                comm, sample = taken
                self.samples += 1
                if thread is None:
                    if self._blocked_only and sample.state != "D":
                        continue
                    thread = self._threads[tid] = Thread(pid, tid, comm, fresh=first)
                elif self._blocked_only and sample.state not in ("D", RUNNING):
                    continue
                thread.comm = comm
                alive.add(tid)
                self._keep(thread, *thread.feed(sample))
                self._resolve(thread)
        for tid in self._threads.keys() - alive:
            thread = self._threads.pop(tid)
            self._keep(thread, *thread.end(alive=False))

    def stop(self) -> None:
        """Report calls and waits that were still open at the last sample."""
        for thread in self._threads.values():
            self._keep(thread, *thread.end(alive=True))
        self._threads.clear()

    def syscall_tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of `syscalls`; the histogram is empty, as it would lack all short calls."""
        totals = [(*key, *values) for key, values in self._call_totals.items()]
        return filled(SYSCALLS, calls=self._calls, totals=totals, files=self._files.rows, stacks=self._stack_rows())

    def switch_tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of `switches`."""
        totals = [(*key, *values) for key, values in self._wait_totals.items()]
        return filled(SWITCHES, segments=self._waits, totals=totals, files=self._files.rows, stacks=self._stack_rows())

    def _stack_rows(self) -> list[Row]:
        return [(key, True, list(frames)) for frames, key in self._stacks.items()]

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
            # the call first: a thread that wakes meanwhile is then sampled as running, not in a call that it left
            call_text = self._read(base, "syscall", pid) if thread is not None or not self._blocked_only else None
            raw = self._read(base, "stat", pid)
            if raw is None:
                return None
            stat = parse.pid_stat(raw)
            if stat.state in "ZX":
                return None
            if self._blocked_only and thread is None:
                if stat.state != "D":
                    return None
                call_text = self._read(base, "syscall", pid)
            sched = parse.schedstat(self._read(base, "schedstat", pid) or b"0 0 0")
            call = parse.syscall(call_text) if call_text else None
            name = syscall_name(call.nr) if call else ""
            finished = -1
            if name and syscalls.row(name)["flags"] & layout.ROW_FILE_OP:
                io = parse.keyed(self._read(base, "io", pid) or b"")
                finished = io["syscr"] + io["syscw"] if "syscr" in io and "syscw" in io else -1
            kstack = self._kernel_stack(base, pid, thread, sched.slices) if stat.state != RUNNING else -1
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None  # exited
        times = (stat.user_ns, sched.run_ns, sched.wait_ns, sched.slices)
        return stat.comm, Sample(now, stat.state, call, name, *times, finished, kstack)

    def _kernel_stack(self, base: str, pid: int, thread: Thread | None, slices: int) -> int:
        """Return the number of the kernel stack of a thread off the CPU; it does not change during a wait."""
        if thread is not None and thread.wait is not None and slices == thread.wait.last.slices:
            return thread.wait.last.kstack
        frames = parse.kernel_stack(self._read(base, "stack", pid) or b"")
        if not frames:
            function = clean(self._read(base, "wchan", pid) or b"")
            frames = [function] if function not in ("", "0") else []
        return self._stacks.setdefault(tuple(frames), len(self._stacks)) if frames else -1

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

    def _keep(self, thread: Thread, call: Span | None, wait: Span | None) -> None:
        owner = (thread.pid, thread.tid, thread.comm)
        if call is not None and call.wall_ns >= self._call_ns:
            self._keep_call(owner, call)
        if wait is not None and wait.wall_ns >= self._wait_ns:
            # the call of a wait is one that began no later
            inside = next((c for c in (call, thread.call) if c and c.first.at_ns <= wait.first.at_ns), None)
            inside = inside if inside and inside.first.call == wait.first.call else None
            self._keep_wait(owner, wait, inside.file if inside else -1)

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

    def _keep_wait(self, owner: tuple[int, int, str], wait: Span, file: int) -> None:
        if len(self._waits) >= _MAX_ROWS:
            self.lost += 1
            return
        first = wait.first
        place = (first.state, first.name, file, first.kstack, -1)
        lock = 0
        if first.call is not None and syscalls.row(first.name)["flags"] & layout.ROW_FUTEX and first.call.args:
            lock = _signed(first.call.args[0])
        span = (first.at_ns, wait.last.at_ns)
        self._waits.append((*span, *owner, *place, lock, 0, 0, "", 0, wait.open, wait.seeded))
        _count(self._wait_totals, (*owner, *place), [1, wait.wall_ns], wait.wall_ns)


def syscall_name(nr: int) -> str:
    """Return the name of a system call; ``syscall_<nr>`` if the table does not cover this machine."""
    try:
        return syscalls.name(nr)
    except KeyError:
        return f"syscall_{nr}"


def _count(totals: Totals, key: tuple[object, ...], sums: list[int], peak: int, tail: Sequence[int] = ()) -> None:
    """Add to `totals`: sums, then the maximum, then constants."""
    old = totals.setdefault(key, [*[0] * (len(sums) + 1), *tail])
    for index, value in enumerate(sums):
        old[index] += value
    old[len(sums)] = max(old[len(sums)], peak)


def _signed(value: int) -> int:
    """Convert a register to a signed 64-bit number."""
    return value - (1 << 64) if value >= 1 << 63 else value
