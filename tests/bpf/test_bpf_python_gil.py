"""The interpreter lock and the stacks of all threads, read from our own process, and from memory that is no lock."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from dataclasses import replace

import pytest

from whystall.bpf.python_find import find, tasks_of
from whystall.bpf.python_gil import interpreter_lock
from whystall.bpf.python_offsets import UnknownLayout, offsets_of
from whystall.bpf.python_stacks import PythonThreads
from whystall.bpf.python_walk import Memory, Runtime, thread_number, threads

LOCK = 0x5000
STATE = 0x9000


class OwnMemory:
    """Our own memory, read without releasing the interpreter lock."""

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)


class Lock:
    """Memory that holds nothing but an interpreter lock at `LOCK`."""

    def __init__(self, interval: int = 5000, holder: int = STATE, locked: int = 1) -> None:
        self.bytes = struct.pack("<QQi4xQ", interval, holder, locked, 3)

    def read(self, address: int, size: int) -> bytes:
        at = address - LOCK
        if at < 0 or at + size > len(self.bytes):
            raise OSError("unmapped")
        return self.bytes[at : at + size]


def runtime() -> Runtime:
    o = replace(offsets_of(11), runtime_gil=0x1000)
    return Runtime(11, LOCK - 0x1000, o)


def test_the_reading_thread_holds_the_lock_of_its_own_interpreter() -> None:
    memory, found = OwnMemory(), find(os.getpid())
    assert found is not None
    listed = list(threads(memory, found))
    lock = interpreter_lock(memory, found, listed[-1].interpreter, {thread.state for thread in listed})
    assert lock is not None
    (holder,) = [thread for thread in listed if thread.state == lock.holder]
    assert thread_number(memory, found, holder, tasks_of(os.getpid())) == threading.get_native_id()
    assert len(lock.words) == 10
    assert all(lock.address < word < lock.address + 256 for word in lock.words)


def test_the_stack_of_every_thread() -> None:
    ready, done = threading.Event(), threading.Event()
    tids: list[int] = []

    def waits() -> None:
        tids.append(threading.get_native_id())
        ready.set()
        done.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    ready.wait()
    try:
        found = find(os.getpid())
        assert found is not None
        with Memory(os.getpid()) as memory:
            read = PythonThreads(memory, found, tasks_of(os.getpid()))
            stack = read.stack(tids[0])
            assert read.stack(1) == []
    finally:
        done.set()
        thread.join()
    line = waits.__code__.co_firstlineno + 3
    (own,) = [frame for frame in stack if frame.file == __file__]
    assert own.name.endswith("waits" if sys.version_info < (3, 11) else ".<locals>.waits")
    assert own.line == line
    assert not read.unknown_lock
    assert len(read.locks) == 1


def test_a_lock_that_nobody_holds() -> None:
    assert interpreter_lock(Lock(locked=0, holder=0x123), runtime(), 0, {STATE}) is not None
    found = interpreter_lock(Lock(), runtime(), 0, {STATE})
    assert found is not None
    assert found.holder == STATE


@pytest.mark.parametrize("lock", [Lock(interval=0), Lock(holder=0x123), Lock(locked=7), Lock(interval=1 << 60)])
def test_what_is_no_lock_is_refused(lock: Lock) -> None:
    with pytest.raises(UnknownLayout):
        interpreter_lock(lock, runtime(), 0, {STATE})


def test_an_unknown_layout_is_not_read() -> None:
    assert interpreter_lock(Lock(), Runtime(11, LOCK, replace(offsets_of(11), runtime_gil=0)), 0, ()) is None
