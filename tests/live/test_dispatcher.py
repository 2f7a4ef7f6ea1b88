"""The dispatcher and its disturbers do what their logs say: checked against the kernel's own counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dispatcher_log import Log
from running import HERE, Running

CPU = max(os.sched_getaffinity(0))
SECONDS = 2.0


class Case:
    """A dispatcher beside one disturber: its log while disturbed, and what the kernel counted for its thread."""

    def __init__(self, kind: str, *options: object) -> None:
        with Running("dispatcher.py", "--duration", 60, "--cpu", CPU) as program:
            program.until("step")
            tid = program.start["dispatch_tid"]
            with Running("disturbers.py", kind, "--victim", tid, "--cpu", CPU, *options) as disturber:
                self.begun = disturber.until("disturbing")
                waited = waited_s(program.pid, tid)
                time.sleep(SECONDS)
                self.waited_s = waited_s(program.pid, tid) - waited
                (self.did,) = (line for line in disturber.stop() if line["event"] == "did")
            program.stop()
        self.log = Log.of(program.events).between(self.begun["mono_ns"], self.did["mono_ns"])
        self.late_s = sum(wake.late_ns for wake in self.log.wakes) / 1e9
        self.seconds = (self.did["mono_ns"] - self.begun["mono_ns"]) / 1e9


def waited_s(pid: int, tid: int) -> float:
    """How long a thread was ready without a CPU, as the scheduler accounts it."""
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[1]) / 1e9


def test_wakes_are_on_the_grid_of_deadlines_and_none_is_early() -> None:
    log = Case("none").log
    assert len(log.wakes) > 100
    for wake, later in pairwise(log.wakes):
        assert wake.intended_ns <= wake.woken_ns <= wake.done_ns <= later.woken_ns
        assert later.intended_ns - wake.intended_ns == (1 + wake.missed) * 2_000_000
    assert {wake.cpu for wake in log.wakes} == {CPU}


def test_what_a_neighbour_takes_the_dispatcher_waits_for() -> None:
    case = Case("neighbour")
    assert case.begun["comm"] == "greedy-neighbor"
    assert case.did["cpu_s"] > 0.05 * case.seconds
    # it also waits while it works; and it is late for what little the timer itself takes
    assert case.late_s < 1.3 * case.waited_s
    assert case.late_s > 0.3 * case.waited_s
    assert case.late_s > 0.1 * case.seconds


def test_migrations_are_as_many_as_were_made() -> None:
    case = Case("migrations")
    changes = sum(wake.cpu != later.cpu for wake, later in pairwise(case.log.wakes))
    assert case.did["moves"] > 20
    assert 10 < changes <= case.did["moves"]


def test_what_a_quota_takes_the_dispatcher_is_late() -> None:
    case = Case("quota")
    assert case.did["nr_throttled"] >= 3
    assert max(wake.late_ns for wake in case.log.wakes) > 20e6


def test_softirqs_run_on_the_dispatchers_cpu() -> None:
    case = Case("softirq")
    # On an idle machine the ticks that account softirqs fall just before the bursts: they tell where, not how much.
    assert case.did["softirq_s"][CPU] == max(case.did["softirq_s"]) > 0
    assert len(case.log.late(0.5)) > 20


def test_a_disturber_leaves_nothing_behind() -> None:
    with Running("dispatcher.py", "--duration", 60, "--cpu", CPU) as program:
        tid = program.start["dispatch_tid"]

        def placement() -> tuple[set[int], str]:
            return os.sched_getaffinity(tid), Path(f"/proc/{tid}/cgroup").read_text()

        program.until("step")
        before = placement()
        for kind in ("migrations", "quota"):
            with Running("disturbers.py", kind, "--victim", tid, "--cpu", CPU) as disturber:
                disturber.until("disturbing")
                assert kind == "migrations" or placement() != before
                disturber.stop()
            assert placement() == before
        program.stop()


def test_the_profile_is_what_the_device_did(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    before = time.time_ns()
    with Running("dispatcher.py", "--duration", 1, "--cpu", CPU, "--profile", path) as program:
        (end,) = (line for line in program.wait() if line["event"] == "end")
    after = time.time_ns()
    log = Log.of(program.events)
    document = json.loads(path.read_text())
    events: list[dict[str, Any]] = document["traceEvents"]
    launches = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == len(launches) == end["kernels"] == 4 * len(log.wakes)
    for kernel in kernels:
        launch = launches[kernel["args"]["correlation"]]
        assert launch["ts"] + launch["dur"] < kernel["ts"]
        assert launch["tid"] == program.start["dispatch_tid"]
    gaps = [later["ts"] - (one["ts"] + one["dur"]) for one, later in pairwise(kernels)]
    idle_us = [(end - start) / 1e3 for start, end in log.idle]
    assert [gap for gap in gaps if gap > 0.01] == pytest.approx([gap for gap in idle_us if gap > 0.01], abs=0.01)
    names = [e["name"] for e in events if e.get("cat") == "user_annotation"]
    assert names == [f"ProfilerStep#{n}" for n in range(len(program.of("step")))]
    # its clock is the epoch's
    for kernel in kernels:
        assert before < document["baseTimeNanoseconds"] + kernel["ts"] * 1000 < after


def test_a_person_can_try_it() -> None:
    command = [sys.executable, str(HERE / "dispatcher.py"), "--disturb", "neighbour", "--duration", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "late_p99" in done.stdout
