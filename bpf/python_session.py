"""Find the Python processes of a window, register them with the BPF programs, and read the stacks of waiting threads.

A process may become a Python process by exec, or cease to be one, so all are examined repeatedly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.capture import Stack
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import Map
from whystall.bpf.python_code import PythonResult, decode
from whystall.bpf.python_find import NotReady, find, tasks_of
from whystall.bpf.python_gil import collector_words
from whystall.bpf.python_offsets import UnknownLayout
from whystall.bpf.python_walk import (
    Memory,
    Runtime,
    Thread,
    code_record,
    stack,
    stack_id,
    thread_number,
    threads,
)

_MOST_CODES = 100_000
_MOST_LINES = 64 << 20  # bytes of line tables
_SEED_BUDGET_S = 1.0  # for reading the stacks of blocked threads, before the window
_MOST_PROCESSES = 4096


class Maps(NamedTuple):
    """Maps of the BPF programs."""

    processes: Map
    seeds: Map
    codes_emitted: Map


class _Known(NamedTuple):
    identity: bytes  # changes with each exec
    settled: bool  # whether examining it again is useless


class PythonProcesses:
    """See the module."""

    def __init__(self, maps: Maps, *, named_only: bool, keep: Callable[[bytes], object] | None = None) -> None:
        """`keep`: receives the records of code objects instead of `result`."""
        self._keep = keep
        self.result = PythonResult()
        self.stacks: dict[int, Stack] = {}
        """Stacks of waiting threads, by the ids in the map of seeds."""
        self._maps = maps
        self._named_only = named_only
        self._known: dict[int, _Known] = {}
        self._runtimes: dict[int, Runtime] = {}
        self._line_bytes = 0
        self.codes_full = 0

    def update(self, pids: Iterable[int]) -> None:
        """Examine processes that are new, or that executed another program."""
        for pid in pids:
            try:
                identity = Path(f"/proc/{pid}/auxv").read_bytes()  # has addresses that change with each exec
            except OSError:
                self._known.pop(pid, None)
                continue
            known = self._known.get(pid)
            if known is not None and known.settled and known.identity == identity:
                continue
            self._known[pid] = _Known(identity, self._examine(pid) if identity else True)

    def _examine(self, pid: int) -> bool:
        """Examine process `pid`; return whether the outcome is final."""
        self._runtimes.pop(pid, None)
        self.result.refused.pop(pid, None)
        try:
            runtime = find(pid, named_only=self._named_only)
        except UnknownLayout as why:
            self._unregister(pid)
            self.result.refused[pid] = str(why)
            return True
        except NotReady:
            return False  # also a child just after its fork: it keeps the entry of its parent
        except PermissionError:
            self.result.refused[pid] = "no permission to read its memory"
            return True
        except OSError:
            return False  # it ends, or executes another program
        if runtime is None:
            self._unregister(pid)
            return True
        if len(self._runtimes) >= _MOST_PROCESSES:
            self.result.refused[pid] = "too many Python processes"
            return True
        try:
            self._maps.processes.update(pid.to_bytes(4, "little"), runtime.for_kernel(*_collector_words(pid, runtime)))
        except BpfError as error:
            self.result.refused[pid] = error.message
            return True
        self._runtimes[pid] = runtime
        self.result.processes[pid] = runtime.minor
        return True

    def _unregister(self, pid: int) -> None:
        self._maps.processes.delete(
            pid.to_bytes(4, "little")
        )  # a child may have its parent's entry, from before its exec

    def forget(self, pids: Iterable[int]) -> None:
        """Remove processes that have ended."""
        for pid in pids:
            self._known.pop(pid, None)
            self._runtimes.pop(pid, None)
            self.result.processes.pop(pid, None)
            self.result.refused.pop(pid, None)
            self._unregister(pid)

    def seed(self, pids: Collection[int] | None = None, budget_s: float = _SEED_BUDGET_S) -> None:
        """Read the stacks of waiting threads of `pids` (None: of all processes), for those that block during the whole
        window.

        The BPF programs use them only if the thread has not run meanwhile.
        """
        deadline = time.monotonic() + budget_s
        for pid, runtime in list(self._runtimes.items()):
            if pids is not None and pid not in pids:
                continue
            try:
                with Memory(pid) as memory:
                    tasks = tasks_of(pid)
                    seeded: set[int] = set()
                    for thread in threads(memory, runtime):
                        if time.monotonic() > deadline:
                            return
                        # a thread may have a state in several interpreters: the newest with a stack is the active one
                        if thread.number not in seeded and self._seed(memory, runtime, thread, pid, tasks):
                            seeded.add(thread.number)
            except (OSError, ValueError):
                continue  # it ends

    def _seed(self, memory: Memory, runtime: Runtime, thread: Thread, pid: int, tasks: dict[int, int]) -> bool:
        """Register the stack of a thread; return whether it has one."""
        tid = thread_number(memory, runtime, thread, tasks)
        runs = _runs(pid, tid) if tid else 0
        if not runs:
            return False
        words, codes = stack(memory, runtime, thread.state, pid)
        for number, address in codes.items():
            if (pid, number) not in self.result.codes:
                try:
                    self.take(code_record(memory, runtime, address, pid))
                except OSError:
                    return True
                self._maps.codes_emitted.update(number.to_bytes(8, "little"), b"\1")
        if words and _runs(pid, tid) == runs:
            number = stack_id(words)
            self.stacks[number] = Stack(lay.STACK_PYTHON, tuple(words))
            self._maps.seeds.update(tid.to_bytes(4, "little"), bytes(lay.PythonSeed(runs=runs, stack=number)))
        return bool(words)

    def take(self, record: bytes) -> None:
        """Keep a code record."""
        if self._keep is not None:
            self._keep(record)
            return
        key, code = decode(record)
        if len(self.result.codes) >= _MOST_CODES or self._line_bytes >= _MOST_LINES:
            self.codes_full += 1
            return
        self._line_bytes += len(code.lines)
        self.result.codes[key] = code


def _collector_words(pid: int, runtime: Runtime) -> tuple[int, int]:
    """Return the addresses of the state of the garbage collector and of its thread; zeros if unknown."""
    try:
        with Memory(pid) as memory:
            return collector_words(memory, runtime)
    except (OSError, UnknownLayout):
        return 0, 0


def _runs(pid: int, tid: int) -> int:
    """Return how often a thread has got a CPU (schedstat, third field); 0: unknown."""
    try:
        return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes().split()[2])
    except (OSError, IndexError, ValueError):
        return 0


def every_process() -> list[int]:
    """Return all processes but this one."""
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
