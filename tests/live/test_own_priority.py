"""A real-time program that takes the CPU of our own process: the kernel's own record of our policy decides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PRIORITY = 10
STARVED = """
import os, sys, threading, time
from whystall.tools.collect.own_priority import raised_when_starved

def policies():
    return [(os.sched_getscheduler(int(tid)), os.sched_getparam(int(tid)).sched_priority)
            for tid in os.listdir("/proc/self/task")]

with raised_when_starved():
    print("at first", *policies(), sep=";", flush=True)
    until = time.monotonic() + int(sys.argv[1])
    while os.sched_getscheduler(0) == os.SCHED_OTHER and time.monotonic() < until:
        pass
    print("meanwhile", (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority), sep=";", flush=True)
    late = threading.Thread(target=time.sleep, args=(1,))
    late.start()
print("at last", *policies(), sep=";", flush=True)
late.join()
"""
# Control groups of version 1 below the root have no real-time budget by default.
_PROCS = Path("/sys/fs/cgroup/cpu/cgroup.procs")
IN_ROOT_CGROUP = ["sh", "-c", f'echo $$ > {_PROCS}; exec "$@"', "sh"] if _PROCS.exists() else []
ORDINARY = str((os.SCHED_OTHER, 0))


@pytest.fixture
def cpu() -> Iterator[int]:
    """One CPU with a program of real-time priority; there is another for the rest."""
    if len(allowed := sorted(os.sched_getaffinity(0))) < 2:
        pytest.skip("needs two CPUs")
    command = ["chrt", "--fifo", str(PRIORITY), "taskset", "-c", str(allowed[-1])]
    command += [sys.executable, "-c", "while 1: pass"]
    with subprocess.Popen([*IN_ROOT_CGROUP, *command]) as hog:
        yield allowed[-1]
        hog.kill()


def _run(seconds: int, prefix: list[str]) -> dict[str, list[str]]:
    command = [*IN_ROOT_CGROUP, *prefix, sys.executable, "-c", STARVED, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split(";"))}


def test_a_starved_process_goes_before_the_real_time_program_and_back(cpu: int) -> None:
    seen = _run(40, ["taskset", "-c", str(cpu)])
    assert set(seen["at first"]) == {ORDINARY}
    assert seen["meanwhile"] == [str((os.SCHED_RR, PRIORITY + 1))]
    assert len(seen["at last"]) == 2, "the main thread, and one that started meanwhile"
    assert set(seen["at last"]) == {ORDINARY}


def test_a_process_with_a_cpu_of_its_own_stays_ordinary(cpu: int) -> None:
    seen = _run(3, [])
    assert set(seen["at first"]) == set(seen["at last"]) == set(seen["meanwhile"]) == {ORDINARY}


def test_ordinary_load_is_not_preempted_although_a_program_has_real_time_priority() -> None:
    last = max(os.sched_getaffinity(0))
    idle = ["chrt", "--fifo", str(PRIORITY), "sleep", "60"]
    busy = ["taskset", "-c", str(last), sys.executable, "-c", "while 1: pass"]
    programs = [subprocess.Popen([*IN_ROOT_CGROUP, *one]) for one in (idle, *[busy] * 9)]
    try:
        seen = _run(4, ["taskset", "-c", str(last)])
    finally:
        for one in programs:
            one.kill()
            one.wait()
    assert set(seen["at first"]) == set(seen["at last"]) == set(seen["meanwhile"]) == {ORDINARY}
