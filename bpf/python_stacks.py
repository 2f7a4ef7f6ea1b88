"""Read the Python stacks of all threads of a process at one instant, without stopping it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.python_code import UNKNOWN, Code, Frame, decode
from whystall.bpf.python_gil import InterpreterLock, interpreter_lock
from whystall.bpf.python_offsets import UnknownLayout
from whystall.bpf.python_walk import (
    Memory,
    Reader,
    Runtime,
    Thread,
    code_record,
    frames,
    thread_number,
    threads,
    word,
)

_ATTEMPTS = 3


class HeldLock(NamedTuple):
    """An interpreter lock and the thread id of its holder (-1: nobody)."""

    lock: InterpreterLock
    holder_tid: int


@dataclass
class PythonThreads:
    """What `read_threads` found. `stacks`: by thread id, innermost frame first. `left`: threads that were not read for
    lack of time; `unknown_lock`: why the interpreter lock is unknown."""

    stacks: dict[int, list[Frame]] = field(default_factory=dict)
    locks: list[HeldLock] = field(default_factory=list)
    left: int = 0
    unknown_lock: str = ""


def read_threads(
    memory: Memory, runtime: Runtime, tasks: dict[int, int], over: Callable[[], bool] = lambda: False
) -> PythonThreads:
    """Return stacks and interpreter locks of a process; `tasks`: as `tasks_of` returns them.

    A running thread changes its frames while they are read: its stack is kept if it has the same innermost frame
    before and after. `over`: whether the time is used up. Raises ``OSError``.
    """
    found = PythonThreads()
    listed = list(threads(memory, runtime))
    tids = {thread.state: thread_number(memory, runtime, thread, tasks) for thread in listed}
    try:
        found.locks = _locks(memory, runtime, listed, tids)
    except UnknownLayout as why:
        found.unknown_lock = str(why)
    codes: dict[int, Code | None] = {}
    for thread in listed:
        tid = tids[thread.state]
        # a thread may have a state in several interpreters: the newest with a stack is the active one
        if not tid or tid in found.stacks:
            continue
        if over():
            found.left += 1
            continue
        if stack := _stack(memory, runtime, thread.state, codes):
            found.stacks[tid] = stack
    return found


def _locks(memory: Reader, runtime: Runtime, listed: list[Thread], tids: Mapping[int, int]) -> list[HeldLock]:
    locks: dict[int, HeldLock] = {}
    for interpreter in dict.fromkeys(thread.interpreter for thread in listed):
        lock = interpreter_lock(memory, runtime, interpreter, tids.keys())
        if lock is None:
            raise UnknownLayout(f"CPython 3.{runtime.minor}: the place of the interpreter lock is unknown")
        locks[lock.address] = HeldLock(lock, tids.get(lock.holder, 0) or -1)
    return list(locks.values())


def _stack(memory: Reader, runtime: Runtime, state: int, codes: dict[int, Code | None]) -> list[Frame]:
    """Return the frames of a thread state; empty if they changed each time they were read."""
    top = state + runtime.offsets.thread_frame
    for _ in range(_ATTEMPTS):
        try:
            before = word(memory, top)
            stack = _frames(memory, runtime, state, codes)
            if word(memory, top) == before:
                return stack
        except OSError:
            continue
    return []


def _frames(memory: Reader, runtime: Runtime, state: int, codes: dict[int, Code | None]) -> list[Frame]:
    """Return the frames up to the first that is none. `codes`: the code objects read so far, by address."""
    found: list[Frame] = []
    for code, instruction, entry in frames(memory, runtime, state):
        if len(found) >= lay.STACK_DEPTH:
            break
        if not code:
            if found:
                found[-1] = found[-1]._replace(entry=True)
            continue
        if code not in codes:
            codes[code] = _code(memory, runtime, code)
        known = codes[code]
        if known is None:
            break
        line = known.line(instruction - 1) if instruction > 0 else known.first_line
        found.append(Frame(known.name, known.file, line, entry))
    return found


def _code(memory: Reader, runtime: Runtime, address: int) -> Code | None:
    """Return the code object at `address`; None if there is none."""
    try:
        record = code_record(memory, runtime, address, 0)
    except OSError:
        return None
    (_, number), code = decode(record)
    return code if number and code.name != UNKNOWN.name else None
