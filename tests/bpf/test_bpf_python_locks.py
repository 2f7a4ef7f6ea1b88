"""Threads inside ``with lock``, found in the memory of our own process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from types import FunctionType

import pytest

from whystall.bpf.python_find import find, tasks_of
from whystall.bpf.python_locks import protected_depth
from whystall.bpf.python_stacks import PythonThreads
from whystall.bpf.python_walk import Memory

pytestmark = pytest.mark.skipif(not (3, 11) <= sys.version_info < (3, 14), reason="locks are laid out otherwise")


def semaphore(lock: object) -> int:
    return ctypes.c_uint64.from_address(id(lock) + 16).value


def depths(source: str) -> list[int]:
    """The depth that the table of exceptions states, per instruction of a function."""
    namespace: dict[str, object] = {}
    exec(source, namespace)
    function = namespace["f"]
    assert isinstance(function, FunctionType)
    code = function.__code__
    return [protected_depth(code.co_exceptiontable, at) for at in range(len(code.co_code) // 2)]


def test_the_depth_of_the_stack_is_that_of_the_innermost_block() -> None:
    assert set(depths("def f(): return g(1, 2)")) == {0}
    nested = depths("def f(a, b):\n with a:\n  with b:\n   g(" + "h(), " * 200 + ")\n  g()")
    assert [nested[0], nested[-1]] == [0, 0]
    assert (nested.index(1) < nested.index(2), nested.count(2) > 200) == (True, True)
    loop = depths("def f(a):\n for x in a:\n  try:\n   g()\n  except E:\n   pass")
    assert 1 in loop  # the iterator


def test_the_thread_inside_with_is_the_owner() -> None:
    plain, nested, released, by_call = threading.Lock(), threading.RLock(), threading.Lock(), threading.Lock()
    inside, done = threading.Event(), threading.Event()
    again = threading.Lock()
    given_up = threading.Lock()
    condition = threading.Condition(given_up)

    def hold() -> None:
        with released:
            pass
        by_call.acquire()
        with plain, nested:
            inside.set()
            done.wait()

    def give_up() -> None:
        with given_up:
            condition.wait()

    def enter(lock: threading.Lock, times: int) -> None:
        with contextlib.suppress(RuntimeError), lock:  # released twice
            if times > 1:
                enter(lock, times - 1)

    calls = ((hold, ()), (enter, (plain, 1)), (enter, (again, 2)), (enter, (by_call, 1)), (give_up, ()))
    started = [threading.Thread(target=function, args=arguments) for function, arguments in calls]
    for thread in started:
        thread.start()
        inside.wait()
    time.sleep(0.05)
    holder, _, itself, _, _ = [thread.native_id for thread in started]
    try:
        runtime = find(os.getpid())
        assert runtime is not None
        words = [semaphore(lock) for lock in (plain, nested, released, by_call, given_up)]
        with Memory(os.getpid()) as memory:
            threads = PythonThreads(memory, runtime, tasks_of(os.getpid()))
            words.append(semaphore(again))
            owners = {words[0]: holder, words[1]: holder, semaphore(again): itself}
            assert threads.lock_owners(words, lambda: False) == owners
            assert threads.lock_owners(words, lambda: True) == {}
    finally:
        again.release()
        done.set()
        by_call.release()
        with given_up:
            condition.notify()
        for thread in started:
            thread.join()
