"""Whom a PID filter means, on this host's own /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from whystall.tools.collect.ftrace.options import RecordOptions
from whystall.tools.collect.ftrace.pids import followed, lives, threads_of
from whystall.tools.contract.errors import ErrorCode, ToolError

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def parent() -> Iterator[tuple[int, int]]:
    """A process and its child."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    words = [process.stdout.readline().strip() for _ in range(2)]
    yield process.pid, int("".join(words))
    process.communicate("\n")


def test_nobody_named_means_everybody() -> None:
    assert followed(RecordOptions()).threads == ()


def test_all_threads_of_a_process_and_only_one_of_a_thread() -> None:
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), stop.wait()))
    thread.start()
    ready.wait()
    own = os.getpid()
    whole = followed(RecordOptions(pids=(own,)))
    assert {own, thread.native_id} <= set(whole.threads) == set(threads_of([own]))
    assert whole.processes == (own,)
    assert thread.native_id is not None
    alone = followed(RecordOptions(pids=(thread.native_id,)))
    assert (alone.threads, alone.processes) == ((thread.native_id,), ())
    stop.set()
    thread.join()


def test_children_are_followed_when_asked(parent: tuple[int, int]) -> None:
    pid, child = parent
    assert followed(RecordOptions(pids=(pid,))).threads == (pid,)
    assert set(followed(RecordOptions(pids=(pid,), children=True)).threads) == {pid, child}


def test_who_is_gone_is_nobody() -> None:
    done = subprocess.Popen(["true"])
    os.waitid(os.P_PID, done.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(done.pid)  # a zombie
    with pytest.raises(ToolError) as caught:
        followed(RecordOptions(pids=(done.pid,)))
    assert caught.value.code is ErrorCode.NO_SUCH_PROCESS
    done.wait()
    assert not lives(done.pid)
    assert lives(os.getpid())


def test_a_container_that_is_not_there_is_nobody() -> None:
    own = os.getpid()
    for options in (
        RecordOptions(pids=(4194304,), in_namespace=True),
        RecordOptions(pids=(4194304,), in_namespace=True, namespace_of=own),
        RecordOptions(pids=(1,), in_namespace=True, namespace_of=4194304),
        RecordOptions(pids=(own,), in_namespace=True, namespace_of=own),  # no container: the host's own namespace
    ):
        with pytest.raises(ToolError) as caught:
            followed(options)
        assert caught.value.code is ErrorCode.NO_SUCH_PROCESS
