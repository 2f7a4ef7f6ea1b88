"""Read the Python stacks of all threads of a process at one instant, without stopping it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.python_code import UNKNOWN, Code, Frame, decode
from whystall.bpf.python_gil import InterpreterLock, interpreter_lock
from whystall.bpf.python_locks import with_lock_owners
from whystall.bpf.python_offsets import UnknownLayout
from whystall.bpf.python_walk import (
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
_Raw = tuple[int, int, bool]


class HeldLock(NamedTuple):
    """An interpreter lock and the thread id of its holder (-1: nobody)."""

    lock: InterpreterLock
    holder_tid: int


class PythonThreads:
    """The Python threads of a process as they were when this was made. `unknown_lock`: why its interpreter lock is
    unknown, empty if it is known."""

    def __init__(self, memory: Reader, runtime: Runtime, tasks: dict[int, int]) -> None:
        """`tasks`: as `tasks_of` returns them. Raises ``OSError``."""
        self._memory = memory
        self._runtime = runtime
        self._codes: dict[int, Code | None] = {}
        self._stacks: dict[tuple[_Raw, ...], list[Frame]] = {}
        self._states: dict[int, list[int]] = {}
        listed = list(threads(memory, runtime))
        tids = {thread.state: thread_number(memory, runtime, thread, tasks) for thread in listed}
        for state, tid in tids.items():
            self._states.setdefault(tid, []).append(state)
        self.locks: list[HeldLock] = []
        self.unknown_lock = ""
        try:
            self.locks = _locks(memory, runtime, listed, tids)
        except UnknownLayout as why:
            self.unknown_lock = str(why)

    def lock_owners(self, words: Collection[int], over: Callable[[], bool]) -> dict[int, int]:
        """Return the thread inside ``with lock`` by futex word, for those of `words` that belong to Python's locks.
        `over`: whether the time is used up.
        """
        known = [(tid, state) for tid, states in self._states.items() if tid for state in states]
        return with_lock_owners(self._memory, self._runtime, known, words, self._name, over)

    def stack(self, tid: int) -> list[Frame]:
        """Return the frames of a thread, innermost first; empty if it has none, or if they could not be read.

        A running thread changes its frames while they are read: they count if the innermost frame is the same before
        and after.
        """
        # a thread may have a state in several interpreters: the newest with a stack is the active one
        for state in self._states.get(tid, ()):
            if stack := self._stack(state):
                return stack
        return []

    def _stack(self, state: int) -> list[Frame]:
        top = state + self._runtime.offsets.thread_frame
        for _ in range(_ATTEMPTS):
            try:
                before = word(self._memory, top)
                raw = tuple(frames(self._memory, self._runtime, state))
                if word(self._memory, top) != before:
                    continue
            except OSError:
                continue
            if raw not in self._stacks:
                self._stacks[raw] = self._decoded(raw)
            return self._stacks[raw]
        return []

    def _decoded(self, raw: tuple[_Raw, ...]) -> list[Frame]:
        """Return the frames up to the first that is none."""
        found: list[Frame] = []
        for code, instruction, entry in raw:
            if len(found) >= lay.STACK_DEPTH:
                break
            if not code:
                if found:
                    found[-1] = found[-1]._replace(entry=True)
                continue
            known = self._known(code)
            if known is None:
                break
            line = known.line(instruction - 1) if instruction > 0 else known.first_line
            found.append(Frame(known.name, known.file, line, entry))
        return found

    def _known(self, code: int) -> Code | None:
        if code not in self._codes:
            self._codes[code] = _code(self._memory, self._runtime, code)
        return self._codes[code]

    def _name(self, code: int) -> str:
        return (self._known(code) or UNKNOWN).name


def _locks(memory: Reader, runtime: Runtime, listed: list[Thread], tids: Mapping[int, int]) -> list[HeldLock]:
    locks: dict[int, HeldLock] = {}
    for interpreter in dict.fromkeys(thread.interpreter for thread in listed):
        lock = interpreter_lock(memory, runtime, interpreter, tids.keys())
        if lock is None:
            raise UnknownLayout(f"CPython 3.{runtime.minor}: the place of the interpreter lock is unknown")
        locks[lock.address] = HeldLock(lock, tids.get(lock.holder, 0) or -1)
    return list(locks.values())


def _code(memory: Reader, runtime: Runtime, address: int) -> Code | None:
    """Return the code object at `address`; None if there is none."""
    try:
        record = code_record(memory, runtime, address, 0)
    except OSError:
        return None
    (_, number), code = decode(record)
    return code if number and code.name != UNKNOWN.name else None
