"""Read the interpreter lock (GIL) of a CPython process: the words on which threads wait for it, and its holder.

``struct _gil_runtime_state`` (Include/internal/pycore_gil.h, the same from 3.10 to 3.14 in builds with the lock)::

    unsigned long interval;         microseconds that a waiting thread leaves to the holder
    PyThreadState *last_holder;
    int locked;                     -1: not created
    unsigned long switch_number;
    pthread_cond_t cond;            where threads wait for the lock
    pthread_mutex_t mutex;
    pthread_cond_t switch_cond;     where the last holder waits for the next one to take it
    pthread_mutex_t switch_mutex;

The last 16 bytes of a condition of glibc contain the words on which its waiters sleep; which of them depends on the
version of glibc (2.41 moved them), and nobody sleeps on the others.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from typing import NamedTuple

from whystall.bpf.python_offsets import UnknownLayout
from whystall.bpf.python_walk import Reader, Runtime, threads, word

_CONDITION_BYTES = 48
_MUTEX_BYTES = {"x86_64": 40, "aarch64": 48}
# sys.setswitchinterval takes seconds as a float; a longer one than this is no interval.
_LONGEST_INTERVAL_US = 3_600_000_000
_ATTEMPTS = 3


class InterpreterLock(NamedTuple):
    """An interpreter lock: its address, the words its waiters sleep on, the thread state that holds it (0: none)."""

    address: int
    words: tuple[int, ...]
    holder: int


def interpreter_lock(
    memory: Reader, runtime: Runtime, interpreter: int, states: Collection[int]
) -> InterpreterLock | None:
    """Return the lock of `interpreter`; None if this version's place of it is unknown. `states`: all thread states.

    Raises `UnknownLayout` if there is no lock, ``OSError``.
    """
    o = runtime.offsets
    if o.runtime_gil:
        address = runtime.address + o.runtime_gil
    elif o.interpreter_gil:
        address = word(memory, interpreter + o.interpreter_gil)
    else:
        return None
    for _ in range(_ATTEMPTS):  # the lock may change hands between reads
        raw = memory.read(address, o.gil_locked + 4)
        interval = int.from_bytes(raw[:8], "little")
        holder = int.from_bytes(raw[o.gil_holder : o.gil_holder + 8], "little")
        (locked,) = struct.unpack_from("<i", raw, o.gil_locked)
        # the last holder may have ended, but a holder is alive
        if 0 < interval <= _LONGEST_INTERVAL_US and (locked == 0 or (locked == 1 and holder in states)):
            return InterpreterLock(address, _words(address + o.gil_locked), holder if locked else 0)
    raise UnknownLayout(f"CPython 3.{runtime.minor}, with another interpreter lock")


def collector_words(memory: Reader, runtime: Runtime) -> tuple[int, int]:
    """Return two addresses: of an int that is 1 while the garbage collector runs, and of the thread state that holds
    the interpreter lock or held it last, which is then the one that collects.

    Zeros where there are several interpreters, or the places in this version are unknown. Raises `UnknownLayout` if
    what is there is something else, ``OSError``.
    """
    o = runtime.offsets
    interpreter = word(memory, runtime.address + o.interpreters_head)
    if not o.interpreter_collecting or not interpreter or word(memory, interpreter + o.interpreter_next):
        return 0, 0
    lock = interpreter_lock(memory, runtime, interpreter, [one.state for one in threads(memory, runtime)])
    collecting = interpreter + o.interpreter_collecting
    if lock is None or int.from_bytes(memory.read(collecting, 4), "little") not in (0, 1):
        return 0, 0
    return collecting, lock.address + o.gil_holder


def _words(locked: int) -> tuple[int, ...]:
    """Return the words that waiters sleep on, given the address of the member `locked`."""
    mutex_bytes = _MUTEX_BYTES.get(os.uname().machine)
    if mutex_bytes is None:
        return ()
    condition = locked + 16  # after padding and switch_number
    mutex = condition + _CONDITION_BYTES
    switch_condition = mutex + mutex_bytes
    words = [mutex, switch_condition + _CONDITION_BYTES]
    for start in (condition, switch_condition):
        words += range(start + _CONDITION_BYTES - 16, start + _CONDITION_BYTES, 4)
    return tuple(sorted(words))
