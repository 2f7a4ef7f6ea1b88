"""The Python processes of one window: found, told to the kernel side, and what those threads do that do not run.

A process may become a Python process (it executes one) or cease to be one, so all are looked at again and again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.capture import Stack
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import Map
from whystall.bpf.python_code import PythonSeen, decode
from whystall.bpf.python_find import NotReady, find, tasks_of
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
_SEED_BUDGET_S = 1.0  # for reading what blocked threads do, before the window
_MOST_PROCESSES = 4096


class Maps(NamedTuple):
    """The kernel side's tables."""

    processes: Map
    seeds: Map
    codes_emitted: Map


class _Known(NamedTuple):
    identity: bytes  # of the program it executes
    settled: bool  # whether looking again can tell nothing new


class PythonProcesses:
    """See the module."""

    def __init__(self, maps: Maps, *, named_only: bool) -> None:
        self.seen = PythonSeen()
        self.stacks: dict[int, Stack] = {}
        """Of threads that did not run, by the ids told to the kernel side."""
        self._maps = maps
        self._named_only = named_only
        self._known: dict[int, _Known] = {}
        self._runtimes: dict[int, Runtime] = {}
        self._line_bytes = 0
        self.codes_full = 0

    def look(self, pids: Iterable[int]) -> None:
        """Look at processes that are new, or execute another program than before."""
        for pid in pids:
            try:
                identity = Path(f"/proc/{pid}/auxv").read_bytes()  # has addresses that each exec chooses anew
            except OSError:
                self._known.pop(pid, None)
                continue
            known = self._known.get(pid)
            if known is not None and known.settled and known.identity == identity:
                continue
            self._known[pid] = _Known(identity, self._look_at(pid) if identity else True)

    def _look_at(self, pid: int) -> bool:
        """Whether all is known that will ever be."""
        self._runtimes.pop(pid, None)
        self.seen.refused.pop(pid, None)
        try:
            runtime = find(pid, named_only=self._named_only)
        except UnknownLayout as why:
            self._untell(pid)
            self.seen.refused[pid] = str(why)
            return True
        except NotReady:
            return False  # a child just after its fork, too: what it has of its parent stays
        except PermissionError:
            self.seen.refused[pid] = "its memory may not be read"
            return True
        except OSError:
            return False  # it ends, or executes something else
        if runtime is None:
            self._untell(pid)
            return True
        if len(self._runtimes) >= _MOST_PROCESSES:
            self.seen.refused[pid] = "too many Python processes"
            return True
        try:
            self._maps.processes.update(pid.to_bytes(4, "little"), runtime.for_kernel())
        except BpfError as error:
            self.seen.refused[pid] = error.message
            return True
        self._runtimes[pid] = runtime
        self.seen.processes[pid] = runtime.minor
        return True

    def _untell(self, pid: int) -> None:
        self._maps.processes.delete(pid.to_bytes(4, "little"))  # a child may have its parent's, from before its exec

    def seed(self) -> None:
        """Read what the threads do that do not run, so that one that blocks from before the window until its end has a
        Python stack. The kernel side takes it only if the thread has not run meanwhile.
        """
        deadline = time.monotonic() + _SEED_BUDGET_S
        for pid, runtime in list(self._runtimes.items()):
            try:
                with Memory(pid) as memory:
                    tasks = tasks_of(pid)
                    seeded: set[int] = set()
                    for thread in threads(memory, runtime):
                        if time.monotonic() > deadline:
                            return
                        # a thread may have a state in several interpreters: the newest in use is what it runs
                        if thread.number not in seeded and self._seed(memory, runtime, thread, pid, tasks):
                            seeded.add(thread.number)
            except (OSError, ValueError):
                continue  # it ends

    def _seed(self, memory: Memory, runtime: Runtime, thread: Thread, pid: int, tasks: dict[int, int]) -> bool:
        """Whether there is something that it does."""
        tid = thread_number(memory, runtime, thread, tasks)
        runs = _runs(pid, tid) if tid else 0
        if not runs:
            return False
        words, codes = stack(memory, runtime, thread.state, pid)
        for number, address in codes.items():
            if (pid, number) not in self.seen.codes:
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
        key, code = decode(record)
        if len(self.seen.codes) >= _MOST_CODES or self._line_bytes >= _MOST_LINES:
            self.codes_full += 1
            return
        self._line_bytes += len(code.lines)
        self.seen.codes[key] = code


def _runs(pid: int, tid: int) -> int:
    """How often a thread has got a CPU, by the scheduler's account; 0: not known."""
    try:
        return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes().split()[2])
    except (OSError, IndexError, ValueError):
        return 0


def every_process() -> list[int]:
    """All processes there are."""
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
