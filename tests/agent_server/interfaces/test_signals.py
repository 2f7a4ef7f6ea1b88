"""Signals while something runs, while nothing runs yet, and twice."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import asyncio, sys, time
from whystall.agent_server.interfaces.signals import Interrupted, signals

async def work(mode):
    try:
        print("ready", flush=True)
        if mode == "busy":
            while True:
                pass
        await asyncio.sleep(60)
    finally:
        print("unwinding", flush=True)
        if mode == "stuck":
            time.sleep(60)
        await asyncio.sleep(0.1)
        print("unwound", flush=True)

signals.install()
try:
    if sys.argv[1] == "before":
        print("ready", flush=True)
        time.sleep(60)
    signals.run(work(sys.argv[1]))
except Interrupted as interrupted:
    print("interrupted", interrupted.signum, flush=True)
    sys.exit(interrupted.status)
"""


def _start(mode: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_running_work_is_cancelled_and_unwound(signum: int, status: int) -> None:
    child = _start("work")
    child.send_signal(signum)
    out, errors = child.communicate(timeout=20)
    assert out == f"unwinding\nunwound\ninterrupted {int(signum)}\n"
    assert errors == ""
    assert child.returncode == status


def test_before_anything_runs_there_is_nothing_to_unwind() -> None:
    child = _start("before")
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=20) == ("interrupted 15\n", "")
    assert child.returncode == 143


@pytest.mark.parametrize("mode", ["stuck", "busy"])
def test_a_second_signal_ends_the_process_at_once(mode: str) -> None:
    child = _start(mode)
    child.send_signal(signal.SIGINT)
    if mode == "stuck":
        assert child.stdout is not None
        assert child.stdout.readline() == "unwinding\n"
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)  # the first is waiting for the loop, which is busy
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130


def test_a_signal_in_a_callback_that_ignores_exceptions_is_not_lost() -> None:
    program = """
import signal, time, weakref
from whystall.agent_server.interfaces.signals import Interrupted, signals

class Thing: pass

signals.install()
thing = Thing()
known = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del thing
    time.sleep(60)
except Interrupted as interrupted:
    print("interrupted", interrupted.signum)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert (done.stdout, done.stderr) == (f"interrupted {signal.SIGINT.value}\n", "")
