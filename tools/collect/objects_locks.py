"""Derive the kind and the owner of a lock from the memory around its futex word, for locks that store their owner.

Layouts of glibc (nptl: struct __pthread_mutex_s, struct __pthread_rwlock_arch_t, _IO_lock_t; the same on x86_64 and
aarch64), and of futex(2) for priority inheritance and robust locks. Semaphores, conditions, barriers and Python's
``threading.Lock`` store no owner. A number counts as an owner only if it is the id of a thread of the process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import NamedTuple

from whystall.bpf.python_walk import Reader

_COMMAND, _PRIVATE = 0x7F, 0x80
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_LOCKS = (6, 13)  # FUTEX_LOCK_PI, FUTEX_LOCK_PI2
_TID, _WAITERS = 0x3FFFFFFF, 0x80000000
_CONTENDED = 2  # of a mutex: locked, with waiters
_RW_HELD = 3  # PTHREAD_RWLOCK_FUTEX_USED | 1: a writer holds it
# struct __pthread_rwlock_arch_t: __readers, __writers, __wrphase_futex, __writers_futex, two words of padding,
# __cur_writer; __readers counts from bit 3 on.
_RW_WRITE_PHASE, _RW_ANNOUNCED, _RW_SHIFT, _RW_USED = 1, 2, 3, 2
_WRITE_PHASE, _WRITERS_FUTEX = 8, 12
_CLEAR_IN_READ_PHASE = (16, 20, 24)
_RWLOCK_BYTES = 28
_PTHREAD_TID = {"x86_64": 720, "aarch64": 208}
"""Offset of the thread id in struct pthread."""


class Lock(NamedTuple):
    """`owner`: thread id on the host, -1 if unknown. `foreign_owner`: the number of an owner that is no thread of this
    process, 0: none. With `shared` it may belong to another process that shares the memory; else no thread can release
    the lock: its owner ended, or was a thread of the parent when this process was forked. `readers`: how often a
    read-write lock is held for reading, -1: it is not, or not known."""

    kind: str = ""
    owner: int = -1
    foreign_owner: int = 0
    shared: bool = False
    readers: int = -1


NONE = Lock()


def lock_at(memory: Reader, address: int, operation: int, expected: int, tasks: Mapping[int, int]) -> Lock:
    """Return the lock on whose futex word at `address` a thread waits, by the arguments of its system call.

    `tasks`: host thread ids by the ids in the process's own namespace. Unreadable memory: an unknown lock.
    """
    command, private = operation & _COMMAND, bool(operation & _PRIVATE)
    raw = _read(memory, address)
    if command not in _WAITS + _LOCKS or len(raw) < 4:
        return NONE
    value = _word(raw, 0)
    if command in _LOCKS:
        return _owned("mutex", value & _TID, tasks, private)
    if value != expected & 0xFFFFFFFF:
        return NONE  # already released, the thread is about to wake
    if not private and value > _RW_HELD and value in tasks:
        return Lock("join", tasks[value])  # the kernel clears the word when the thread ends
    if value & _WAITERS:  # robust mutexes keep their owner in the word
        return _owned("mutex", value & _TID, tasks, private) if value & _TID else NONE
    if private and (readers := _readers(memory, address, len(tasks))):
        return Lock("rwlock", readers=readers)
    if value == _CONTENDED:
        return _mutex_or_stream(memory, raw, tasks, private)
    if value == _RW_HELD:
        for offset in (16, 12):  # a reader's word, a writer's word, to __cur_writer
            if _word(raw, offset) in tasks:
                return Lock("rwlock", tasks[_word(raw, offset)])
    return NONE


def _readers(memory: Reader, address: int, threads: int) -> int:
    """Return by how many of at most `threads` readers a lock is held for whose release a writer waits; 0: by none, or
    the word is not of such a lock.

    A writer has announced itself (PTHREAD_RWLOCK_WRLOCKED in __readers) and waits on __wrphase_futex until the last
    reader leaves; further writers wait on __writers_futex, the word after it (nptl/pthread_rwlock_common.c).
    """
    for base in (address - _WRITE_PHASE, address - _WRITERS_FUTEX):
        try:
            raw = memory.read(base, _RWLOCK_BYTES)
        except (OSError, OverflowError):
            continue
        held, phase, futex = (_word(raw, offset) for offset in (0, _WRITE_PHASE, _WRITERS_FUTEX))
        clear = not any(_word(raw, offset) for offset in _CLEAR_IN_READ_PHASE)
        announced = held & (_RW_WRITE_PHASE | _RW_ANNOUNCED) == _RW_ANNOUNCED
        if announced and clear and phase in (0, _RW_USED) and futex <= _RW_HELD and 0 < held >> _RW_SHIFT < threads:
            return held >> _RW_SHIFT
    return 0


def _mutex_or_stream(memory: Reader, raw: bytes, tasks: Mapping[int, int], private: bool) -> Lock:
    owner, pointer = _word(raw, 8), int.from_bytes(raw[8:16], "little")
    if owner in tasks:
        return Lock("mutex", tasks[owner])
    offset = _PTHREAD_TID.get(os.uname().machine)
    if offset is not None and pointer >> 32 and (thread := _read(memory, pointer + offset)):
        owner = _word(thread, 0)
        return Lock("stdio", tasks[owner]) if owner in tasks else NONE
    return Lock("mutex", -1, owner, not private) if owner > 1 and _is_mutex(raw) else NONE


def _is_mutex(raw: bytes) -> bool:
    """Return whether `raw` can be a held mutex, and not a lock without an owner, by its number of users and its
    type."""
    count, users, kind = (_word(raw, offset) for offset in (4, 12, 16))
    recursive = kind & 3 == 1
    return len(raw) >= 20 and 0 < users < 1 << 16 and kind < 1 << 10 and bool(count) == recursive


def _owned(kind: str, tid: int, tasks: Mapping[int, int], private: bool) -> Lock:
    if tid in tasks:
        return Lock(kind, tasks[tid])
    return Lock(kind) if private else Lock(kind, -1, tid, True)


def _read(memory: Reader, address: int) -> bytes:
    """Return up to 24 bytes from `address`; fewer if the memory ends."""
    for size in (24, 16, 4):
        try:
            return memory.read(address, size)
        except (OSError, OverflowError):
            continue
    return b""


def _word(raw: bytes, offset: int) -> int:
    return struct.unpack_from("<I", raw, offset)[0] if len(raw) >= offset + 4 else 0
