"""Threads inside ``with lock``, found in the memory of this very process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time

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
    again = threading.Lock()

    def hold() -> None:
        with released:
            pass
        by_call.acquire()
        with plain, nested:
            inside.set()
            done.wait()

    def enter(lock: threading.Lock, times: int) -> None:
        with contextlib.suppress(RuntimeError), lock:  # released twice
            if times > 1:
                enter(lock, times - 1)

    calls = ((hold, ()), (enter, (plain, 1)), (enter, (again, 2)))
    started = [threading.Thread(target=function, args=arguments) for function, arguments in calls]
    for thread in started:
        thread.start()
        inside.wait()
    time.sleep(0.05)
    holder, waiter, itself = [thread.native_id for thread in started]
    try:
        runtime = find(os.getpid())
        assert runtime is not None
        words = [semaphore(lock) for lock in (plain, nested, released, by_call)]
        with Memory(os.getpid()) as memory:
            threads = PythonThreads(memory, runtime, tasks_of(os.getpid()))
            waiting = dict(enumerate(words)) | {waiter: words[0], itself: semaphore(again)}
            owners = {words[0]: holder, words[1]: holder, semaphore(again): itself}
            assert threads.lock_owners(waiting, lambda: False) == owners
            assert threads.lock_owners(waiting, lambda: True) == {}
    finally:
        again.release()
        done.set()
        for thread in started:
            thread.join()
