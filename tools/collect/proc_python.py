"""Read the Python stacks of threads from the memory of their processes, without stopping them.

The stack of a waiting thread is consistent if the thread did not run in between, which the caller checks (schedstat).
The stack of a running thread is read twice: the outer frames that are equal in both readings are kept, which are the
whole stack or that of a caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from whystall.bpf import layout as lay
from whystall.bpf.python_code import Code, Frame, decode, frames
from whystall.bpf.python_find import NotReady, find, tasks_of
from whystall.bpf.python_offsets import UnknownLayout
from whystall.bpf.python_walk import (
    Memory,
    Reader,
    Runtime,
    Thread,
    code_id,
    code_record,
    stack,
    thread_number,
    threads,
    word,
)

_PAGE = 4096
_RECHECK_NS = 1_000_000_000
"""Time between two checks for new threads of an interpreter, and for an exec of its process."""
_SCAN_NS = 10_000_000
"""CPU time for reading stacks per scan; the rest is read in the next scan."""
_FIRST_NS = 1_000_000_000
"""The same for examining processes, and for the first scan, before the window."""
_MOST_PROCESSES = 4096
_MOST_CODES = 50_000
_MOST_LINES = 32 << 20  # bytes of line tables

Stack = tuple[Frame, ...]
"""Innermost first."""


class _Pages:
    """Memory read in pages, each once, since the frames of a thread are close together."""

    def __init__(self, memory: Reader) -> None:
        self._memory = memory
        self._pages: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        """See `Reader`."""
        start, at = address & ~(_PAGE - 1), address & _PAGE - 1
        if at + size > _PAGE:
            return self._memory.read(address, size)
        page = self._pages.get(start)
        if page is None:
            page = self._pages[start] = self._memory.read(start, _PAGE)
        return page[at : at + size]


@dataclass
class _Process:
    """What is known of a process; `runtime` None: frames cannot be walked."""

    identity: bytes
    runtime: Runtime | None
    settled: bool
    checked_ns: int
    states: dict[int, list[Thread]] = field(default_factory=dict)
    """Thread states by thread id, the newest first."""
    listed_ns: int = 0
    codes: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Code objects by address: their head, which changes when the address is reused, and their id."""


class PythonStacks:
    """Reads stacks of the processes given to `update`, and of others on first use.

    `named_only`: search only files named like Python. `refused`: per process, why its frames cannot be walked. `walks`,
    `torn`, `skipped`: stacks read, those not usable, those left out to limit the cost (for waits the caller counts
    these, since it may try again).
    """

    def __init__(
        self,
        named_only: bool = False,
        find: Callable[..., Runtime | None] = find,
        clock: Callable[[], int] = time.monotonic_ns,
        cost: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.refused: dict[int, str] = {}
        self.walks = self.torn = self.skipped = 0
        self._named_only = named_only
        self._find = find
        self._clock = clock
        self._cost = cost
        self._processes: dict[int, _Process] = {}
        self._codes: dict[tuple[int, int], Code] = {}
        self._stacks: dict[tuple[int, tuple[int, ...]], Stack] = {}
        self._line_bytes = 0
        self._limit_ns = 0

    def update(self, pids: Iterable[int]) -> None:
        """Examine processes before the window, for a limited time."""
        self.begin_scan(first=True)
        for pid in pids:
            if self._spent():
                break
            self._process(pid)

    def begin_scan(self, *, first: bool = False) -> None:
        """Allow CPU time until the next call; more before the window."""
        self._limit_ns = self._cost() + (_FIRST_NS if first else _SCAN_NS)

    def waiting(self, pid: int, tid: int, memory: Memory) -> Stack | None:
        """Return the stack of a thread, empty if it has none; None if it was not read. The caller checks afterwards
        that the thread has not run."""
        process = self._ready(pid)
        if process is None or process.runtime is None:
            return () if process is not None else None
        self.walks += 1
        words = self._words(pid, tid, memory, process, process.runtime)
        return self._frames(pid, words)

    def running(self, pid: int, tid: int, memory: Memory) -> Stack:
        """Return the stack of a running thread; empty without one, or if two readings do not agree."""
        process = self._ready(pid)
        if process is None:
            self.skipped += 1
        if process is None or process.runtime is None:
            return ()
        first = self._words(pid, tid, memory, process, process.runtime)
        if not first:
            return ()
        self.walks += 1
        again = self._words(pid, tid, memory, process, process.runtime)
        kept = agreed(first, again)
        self.torn += not kept
        return self._frames(pid, kept)

    def _ready(self, pid: int) -> _Process | None:
        return None if self._spent() else self._process(pid)

    def _spent(self) -> bool:
        return self._cost() > self._limit_ns

    def _process(self, pid: int) -> _Process:
        now = self._clock()
        known = self._processes.get(pid)
        if known is not None and now - known.checked_ns < _RECHECK_NS:
            return known
        try:
            identity = Path(f"/proc/{pid}/auxv").read_bytes()  # these addresses change with each exec
        except OSError:
            identity = b""
        if known is not None and known.settled and known.identity == identity:
            known.checked_ns = now
            return known
        runtime, settled = self._examine(pid)
        if len(self._processes) >= _MOST_PROCESSES:
            self._processes.pop(next(iter(self._processes)))
        found = self._processes[pid] = _Process(identity, runtime, settled, now)
        return found

    def _examine(self, pid: int) -> tuple[Runtime | None, bool]:
        """Return the interpreter of a process, and whether the answer is final."""
        self.refused.pop(pid, None)
        try:
            return self._find(pid, named_only=self._named_only), True
        except UnknownLayout as why:
            self.refused[pid] = str(why)
        except NotReady:
            return None, False
        except PermissionError:
            self.refused[pid] = "no permission to read its memory"
        except OSError:
            return None, False  # it ends, or executes another program
        return None, True

    def _words(self, pid: int, tid: int, memory: Memory, process: _Process, runtime: Runtime) -> list[int]:
        """Return the words of a thread's stack (see `stack`); none without one."""
        identify = partial(_identify, process)
        for attempt in range(2):
            if tid not in process.states or attempt:
                self._list(pid, memory, process, runtime)
            pages = _Pages(memory)
            try:
                for thread in process.states.get(tid, ()):
                    if word(pages, thread.state + runtime.offsets.thread_id) != thread.number:
                        raise OSError("another thread's state")
                    words, codes = stack(pages, runtime, thread.state, pid, identify)
                    if words:
                        self._keep(pid, pages, runtime, codes)
                        return words
            except OSError:
                process.listed_ns = 0
                continue
            break
        return []

    def _list(self, pid: int, memory: Memory, process: _Process, runtime: Runtime) -> None:
        """Read the list of thread states, at most once per second."""
        now = self._clock()
        if process.listed_ns and now - process.listed_ns < _RECHECK_NS:
            return
        process.listed_ns = now
        process.states = {}
        try:
            tasks = tasks_of(pid)
            for thread in threads(memory, runtime):
                tid = thread_number(memory, runtime, thread, tasks)
                if tid and thread.consistent:
                    process.states.setdefault(tid, []).append(thread)
        except (OSError, ValueError):
            pass  # the list changed while it was read, or the process ends: the threads found so far

    def _keep(self, pid: int, memory: Reader, runtime: Runtime, codes: dict[int, int]) -> None:
        """Keep names and line tables of new code objects."""
        for number, address in codes.items():
            if (pid, number) in self._codes:
                continue
            if len(self._codes) >= _MOST_CODES or self._line_bytes >= _MOST_LINES:
                return
            try:
                key, code = decode(code_record(memory, runtime, address, pid))
            except OSError:
                continue
            self._codes[key] = code
            self._line_bytes += len(code.lines)

    def _frames(self, pid: int, words: list[int]) -> Stack:
        key = (pid, tuple(words))
        found = self._stacks.get(key)
        if found is None:
            if len(self._stacks) >= _MOST_CODES:
                self._stacks.clear()
            found = self._stacks[key] = tuple(frames(words, pid, self._codes))
        return found


def _identify(process: _Process, memory: Reader, runtime: Runtime, code: int, tgid: int) -> int:
    """Return the id of a code object, computed once for each content of its head (without the reference count)."""
    head = memory.read(code, runtime.offsets.code_lines + 8)[8:]
    known = process.codes.get(code)
    if known is None or known[0] != head:
        if len(process.codes) >= _MOST_CODES:
            process.codes.clear()
        known = process.codes[code] = (head, code_id(memory, runtime, code, tgid))
    return known[1]


def agreed(first: list[int], again: list[int]) -> list[int]:
    """Return the outer frames of the first reading whose code objects the second reading has, too."""
    same = 0
    for one, other in zip(reversed(first), reversed(again), strict=False):
        if one >> lay.FRAME_CODE_SHIFT != other >> lay.FRAME_CODE_SHIFT:
            break
        same += 1
    return first[len(first) - same :]
