"""Threads inside ``with lock``, found in the memory of this very process."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import pytest

from whystall.bpf.python_find import find, tasks_of
from whystall.bpf.python_stacks import PythonThreads
from whystall.bpf.python_walk import Memory

pytestmark = pytest.mark.skipif(not (3, 11) <= sys.version_info < (3, 14), reason="locks are laid out otherwise")


def semaphore(lock: object) -> int:
    return ctypes.c_uint64.from_address(id(lock) + 16).value


def test_the_thread_inside_with_is_the_owner() -> None:
    plain, nested, released, by_call = threading.Lock(), threading.RLock(), threading.Lock(), threading.Lock()
    inside, done = threading.Event(), threading.Event()
    tids: list[int] = []

    def hold() -> None:
        with released:
            pass
        by_call.acquire()
        tids.append(threading.get_native_id())
        with plain, nested:
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        runtime = find(os.getpid())
        assert runtime is not None
        words = [semaphore(lock) for lock in (plain, nested, released, by_call)]
        with Memory(os.getpid()) as memory:
            threads = PythonThreads(memory, runtime, tasks_of(os.getpid()))
            assert threads.lock_owners(words, lambda: False) == {words[0]: tids[0], words[1]: tids[0]}
            assert threads.lock_owners(words, lambda: True) == {}
    finally:
        done.set()
        thread.join()
