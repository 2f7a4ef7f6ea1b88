"""Which processes are looked at, of a launcher and when nobody was named."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from recordings import PID, Scene

from whystall.agent_server.diagnosis.target_choice import choose_process, with_children
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.target import resolve


def test_who_waits_longest_for_disks_goes_before_who_computes_most() -> None:
    busy = Scene().process(10, "busy", cpu=90)
    assert choose_process(busy.process(11, "waits", io=40).process(12, "less", io=20).build()) == 11
    assert choose_process(Scene().process(10, "busy", cpu=90).process(11, "less", cpu=30).build()) == 10


def test_an_idle_host_has_no_suspect() -> None:
    assert choose_process(Scene().process(10, "idle", cpu=2, io=3).build()) is None


def test_neither_kernel_threads_nor_whystall_itself_are_suspects() -> None:
    scene = Scene().process(2, "kthreadd", cpu=50).process(30, "kworker/0:1", cpu=90, ppid=2)
    assert choose_process(scene.process(os.getpid(), "whystall", cpu=95).build()) is None


def test_a_thread_that_waits_for_a_file_is_held_up_though_nothing_counts_it() -> None:
    scene = Scene().process(10, "busy", cpu=90).process(PID, "python", cpu=5)
    assert choose_process(scene.wait(1, 5000, "fsync", "/d/x", state="D").build()) == PID


def test_a_thread_that_waits_for_work_is_not_held_up() -> None:
    scene = Scene().process(10, "busy", cpu=90).process(PID, "python", cpu=5)
    assert choose_process(scene.wait(1, 5000, "epoll_wait").build()) == 10


@pytest.mark.parametrize(
    ("command", "follows"),
    [("sleep 60; true", True), ("exec sleep 60", False), ("sleep 60 & while :; do :; done", False)],
)
def test_the_children_of_a_process_that_leaves_the_work_to_them_are_observed(command: str, follows: bool) -> None:
    with subprocess.Popen(["bash", "-c", command], start_new_session=True) as process:
        try:
            time.sleep(0.3)
            target = with_children(resolve(TargetParams(pid=process.pid)))
            assert (target.follow, len(target.pids)) == (follows, 1 + follows)
            assert target.pid == process.pid
        finally:
            os.killpg(process.pid, 9)
