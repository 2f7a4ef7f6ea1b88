"""The processes of a job that live and have ended: real ones, with a kernel log of our own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whystall.tools.collect.kernel_log import KernelLog, OomKill, oom_kills
from whystall.tools.collect.proc_job import JobProcesses, last_run_ns
from whystall.tools.recording.target import Target

PROGRAM = """
import os, subprocess, sys
def start(code, **env):
    return subprocess.Popen([sys.executable, "-Sc", code], env=os.environ | env, stdin=subprocess.DEVNULL)
lives = start("import time; time.sleep(60)", RANK="0", LOCAL_RANK="0", WORLD_SIZE="3", LOCAL_WORLD_SIZE="3")
start("raise SystemExit(3)", RANK="1")
start("import os; os.kill(os.getpid(), 9)", RANK="2")
print(lives.pid, flush=True)
sys.stdin.read()
lives.kill()
"""
SCHED = b"""python (4711, #threads: 1)
-------------------------------------------------------------------
se.exec_start                                :      56801343.672573
se.vruntime                                  :           165.376598
"""


def records(tmp_path: Path, pid: int) -> Path:
    """A kernel log in which the kernel killed `pid` just now, and another process before the job began."""
    log = tmp_path / "kmsg"
    text = "Out of memory: Killed process {} (python) total-vm:221368kB, anon-rss:32512kB, file-rss:0kB"
    now_us = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
    lines = [(now_us - 3600 * 1_000_000, 77), (now_us, pid)]
    log.write_text("".join(f"3,1,{at},-;{text.format(killed)}\n" for at, killed in lines))
    return log


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the collector finds of a launcher with a rank that lives and two that have ended."""
    launcher = subprocess.Popen([sys.executable, "-Sc", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    assert launcher.stdin is not None
    lives = int(launcher.stdout.readline())
    try:
        target = Target(everything=False, pid=lives, pids=[lives])
        time.sleep(0.5)
        log = records(tmp_path_factory.mktemp("log"), lives)
        reader = JobProcesses(target, log=lambda: OneByOne(log))
        reader.take_snapshot()
        reader.take_snapshot(last=True)
        yield lives, reader.read()
    finally:
        launcher.stdin.close()
        launcher.wait()
        launcher.stdout.close()


class OneByOne(KernelLog):
    """A file read as the device is: one record at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, new=False)
        self._lines = path.read_bytes().splitlines()

    def read(self, most: int = 0) -> list[OomKill]:
        return oom_kills(self._lines[:most])


def test_ended_processes_beside_the_target_are_read_with_their_status(capture: Any) -> None:
    lives, found = capture
    rows = found.tables["processes"]
    rows = rows.filter(rows["at_ns"] == rows["at_ns"].max())
    alive = rows.filter(rows["pid"] == lives).to_dicts()[0]
    assert (alive["rank"], alive["world_size"], alive["one_host"], alive["exit_code"]) == (0, 3, True, -1)
    ended = rows.filter(rows["state"] == "Z").sort("start_ticks", "pid").to_dicts()
    assert [os.waitstatus_to_exitcode(row["exit_code"]) for row in ended] == [3, -signal.SIGKILL]
    assert {row["ppid"] for row in ended} == {alive["ppid"]}
    assert {row["rank"] for row in ended} == {-1}
    assert found.proven


@pytest.mark.skipif(last_run_ns(Path("/proc/self/sched").read_bytes()) < 0, reason="this kernel has no /proc/PID/sched")
def test_how_long_they_have_not_run(capture: Any) -> None:
    lives, found = capture
    idle = dict(found.tables["idle"].rows())
    assert 0 < idle[lives] < 60e9
    assert idle.keys() <= set(found.tables["processes"]["pid"])


def test_kills_since_the_job_began(capture: Any) -> None:
    lives, found = capture
    kills = found.tables["oom_kills"].to_dicts()
    assert [row["pid"] for row in kills if row["pid"] > 0] == [lives]


def test_when_a_thread_ran_last() -> None:
    assert last_run_ns(SCHED) == 56_801_343_672_573
    assert last_run_ns(b"") == -1
    assert last_run_ns(b"se.exec_start : many\n") == -1
