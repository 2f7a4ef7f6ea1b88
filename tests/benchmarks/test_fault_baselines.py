"""The baselines of the benchmark of faults: their rules on small tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.faults.adapters import largest_finding, most_common, pyspy_top
from benchmarks.faults.adapters.pyspy_look import Frame, Look, ThreadSample, stat
from benchmarks.faults.answer import Answer
from benchmarks.faults.judgement import judgement
from whystall.knowledge_base.causes import load_causes

TABLE = yaml.safe_load(largest_finding._TABLE.read_text(encoding="utf-8"))


def test_the_most_common_cause_is_counted() -> None:
    found = most_common.most_common([{"cause": "b"}, {"cause": "a"}, {"cause": "b"}, {"cause": None}])
    assert found == ["b", "a"]
    answer = Answer.model_validate(most_common.answer(most_common.most_common(most_common.incidents())))
    assert set(answer.causes) <= set(load_causes())
    assert (answer.verdict, len(answer.causes)) == ("likely", 3)


def test_causes_of_the_tables_exist() -> None:
    rules = pyspy_top.rules()
    named = {entry[key] for entry in rules["causes"].values() for key in ("cause", "stuck") if key in entry}
    assert named | {entry["cause"] for entry in TABLE} <= set(load_causes())
    assert {entry["measure"] for entry in rules["threads"]} <= {*judgement().measures, *pyspy_top._IDLE}


def finding(kind: str, pct: float, polarity: str = "abnormal", **words: str) -> dict[str, Any]:
    return {
        "id": f"F{pct}",
        "kind": kind,
        "polarity": polarity,
        "metrics": {"window_pct": pct},
        "attributes": words,
        "subject": {},
    }


def test_the_largest_finding_is_the_answer() -> None:
    rows = [
        finding("path.wait", 60.0, wait="lock", root_wait="running", code="take (a.py:3)"),
        finding("path.running", 99.0, "normal", mode="user"),
        finding("process.io_wait", 20.0),
    ]
    found = largest_finding.answer(rows, TABLE)
    assert (found["verdict"], found["causes"]) == ("likely", ["lock_held_computing"])
    assert found["scope"]["code"] == ["take (a.py:3)"]
    assert found["evidence"][0]["measure"] == "lock_wait"
    assert largest_finding.answer(rows[1:2], TABLE) == {"verdict": "healthy"}


def sample(tid: int, state: str, wchan: str = "", source: str = "x = f(y)", **more: Any) -> ThreadSample:
    frames = more.pop("frames", (Frame("step", "/job/train.py", 7, source),))
    return ThreadSample(1, tid, state, wchan, frames, **more)


@pytest.mark.parametrize(
    ("one", "measure"),
    [
        (sample(1, "T"), "stopped"),
        (sample(1, "D", "__refrigerator"), "frozen"),
        (sample(1, "R"), "own_cpu"),
        (sample(1, "S", "futex_do_wait", "with self.lock:"), "lock_wait"),
        (sample(1, "S", "futex_wait_queue", "batch = self._ready.get()"), "handover_wait"),
        (sample(1, "S", "futex_do_wait"), "futex"),
        (sample(1, "S", "hrtimer_nanosleep", "time.sleep(delay)"), "sleep"),
        (sample(1, "S", "pipe_write", "print(text)"), "output_wait"),
        (sample(1, "D", "folio_wait_bit_common", "total += table[row]"), "page_fault"),
        (sample(1, "D", "request_wait_answer", "data = file.read(4096)"), "file_read"),
        (sample(1, "D", "jbd2_log_wait_commit", "os.fsync(file.fileno())"), "file_sync"),
        (sample(1, "S", "do_wait", "subprocess.run(command)"), "child_wait"),
        (sample(1, "S", "wait_woken", frames=(Frame("readinto", "/lib/python3/socket.py", 7),)), "socket_wait"),
        (sample(1, "S", "ep_poll", frames=(Frame("select", "/lib/python3/selectors.py", 7),)), "events"),
    ],
)
def test_what_a_thread_does(one: ThreadSample, measure: str) -> None:
    assert pyspy_top.measure(one) == measure


def test_a_thread_that_waits_for_nothing_waits_for_the_interpreter() -> None:
    one = sample(1, "S", "futex_do_wait")
    assert pyspy_top.measure(one, [one, sample(2, "R", gil=True)]) == "interpreter_lock_wait"


def seen(dumps: Iterable[list[ThreadSample]], **more: Any) -> Look:
    return Look(1, dumps=list(dumps), cpus=2, allowed=2, **more)


LOCKED = sample(1, "S", "futex_do_wait", "with self.lock:")


@pytest.mark.parametrize(
    ("look", "cause"),
    [
        (seen([[LOCKED, sample(2, "R")]] * 20, user_pct={2: 90.0}), "lock_held_computing"),
        (
            seen([[LOCKED, sample(2, "S", "hrtimer_nanosleep", "time.sleep(1)")]] * 20, user_pct={1: 5.0}),
            "lock_held_blocked",
        ),
        (seen([[LOCKED, sample(2, "S", "futex_do_wait", "with self.other_lock:")]] * 20), "deadlock"),
        (seen([[sample(1, "R")]] * 20, user_pct={1: 95.0}, ready={1: 1.0}), "own_hot_code"),
        (seen([[sample(1, "R")]] * 20, user_pct={1: 30.0}, ready={1: 1.0}, others={9: 150.0}), "cpu_contention"),
        (seen([[sample(1, "R")]] * 20, user_pct={1: 30.0}, ready={1: 1.0}, idle_pct=70.0), "cgroup_cpu_throttling"),
        (
            seen([[sample(1, "R")]] * 20, user_pct={1: 80.0}, rss_mib=[100.0 + 2 * n for n in range(20)]),
            "memory_growth",
        ),
        (seen([[sample(1, "S", "wait_woken", "reply = peer.recv(9)")]] * 20, stopped=[5]), "stopped_process"),
        (seen([[sample(1, "S", "wait_woken", "reply = peer.recv(9)")]] * 20, user_pct={1: 9.0}), "slow_peer"),
    ],
)
def test_the_reading_of_dumps_and_top(look: Look, cause: str) -> None:
    answer = Answer.model_validate(pyspy_top.answer(look))
    assert (answer.verdict, answer.causes[0]) == ("likely", cause)
    assert answer.scope["code"][0].startswith("step (train.py:7)")
    assert answer.evidence
    assert answer.advice


def test_a_process_without_work_is_idle() -> None:
    assert pyspy_top.answer(seen([[sample(1, "S", "ep_poll")]] * 20))["verdict"] == "idle"


def test_the_state_of_a_process() -> None:
    found = stat(Path("/proc/self"))
    assert found is not None
    assert found.rss_mib > 1
    assert found.policy == os.sched_getscheduler(0)
