"""The history of the watch: a phase that a program logged itself is found, with the file and who held it."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from scripted import child

from whystall.agent_server.presentation.history_lines import history_text
from whystall.agent_server.watch.history import HistoryParams, history
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.collect.slice_history import JobName
from whystall.tools.contract.text import path_pattern
from whystall.tools.history.summary import ns_of
from whystall.tools.recording.target import Target

MS = 1_000_000
PHASE_S = 6
# Steps that sleep; in the middle phase each also takes a lock of a file, which a child holds half of the time.
PROGRAM = f"""
import fcntl, os
path = os.environ["LOCK"]
def load_batch(): time.sleep(0.02)
def take_lock():
    with open(path, "w") as file: fcntl.flock(file, fcntl.LOCK_EX)
def hold_locks():
    until = time.monotonic() + {PHASE_S}
    while time.monotonic() < until:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.1)
        time.sleep(0.02)
    os._exit(0)
def steps(locked):
    until = time.monotonic() + {PHASE_S}
    while time.monotonic() < until:
        load_batch()
        if locked: take_lock()
go()
steps(False)
log(what="locked", at=time.time())
holder = os.fork()
if not holder: hold_locks()
steps(True)
os.waitpid(holder, 0)
log(what="free", at=time.time())
steps(False)
log(what="end", at=time.time())
sys.stdin.readline()
"""


# A step that decodes for a fixed time, and in the second phase computes for longer: all on the CPU.
BUSY = f"""
def decode(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
def phase(what, seconds):
    start, steps = time.time(), 0
    while time.time() < start + {2 * PHASE_S}:
        decode(0.02)
        compute(seconds)
        time.sleep(0.03)
        steps += 1
    log(what=what, start=start, end=time.time(), steps=steps)
go()
phase("few", 0.01)
phase("more", 0.09)
log(what="end")
sys.stdin.readline()
"""


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(round(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def marks_of(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {line["what"]: line["at"] for line in lines if line["what"] in ("locked", "free", "end")}


@pytest.mark.usefixtures("small_history")
def test_a_phase_that_waits_for_a_lock_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "step.lock"
    monkeypatch.setenv("LOCK", str(lock))
    directory = tmp_path / "watch"
    with child(PROGRAM) as subject:
        target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
        recorder = ContinuousRecorder(target, Limits(slice_ns=250 * MS, cpu_share=0.5, job_share=1.0), directory)
        recorder.start()
        try:
            recorder.retarget(frozenset({subject.pid}), {subject.pid: JobName("process:1", "phases")})
            subject.go()
            until = time.monotonic() + 3 * PHASE_S + 2
            while time.monotonic() < until:
                time.sleep(0.1)
                recorder.poll()
            marks = marks_of(subject.until("end"))
        finally:
            recorder.close()
    judged = history(HistoryParams(since="1m", job="phases", pid=subject.pid), directory)
    data = judged.result.data
    change = next(one for one in data.changes if one.line.startswith("take_lock ("))
    assert (change.call, change.object, change.main) == ("flock", path_pattern(str(lock)), True)
    assert change.direction in ("appeared", "grew")
    assert change.ended_by.startswith("process ")
    # the time of the phase by the program's own log
    assert ns_of(change.since) == pytest.approx(marks["locked"] * 1e9, abs=2e9)
    assert ns_of(change.until) == pytest.approx(marks["free"] * 1e9, abs=2e9)
    assert change.low < change.after - change.before < change.high
    assert not [one for one in data.changes if one.direction == "grew" and one.line.startswith("load_batch")]
    (row,) = [row for row in data.rows if row.line.startswith("load_batch")]
    assert row.waited_s == pytest.approx(2 * PHASE_S, rel=0.4)
    assert judged.result.findings[0].kind == "wait.change"
    assert judged.result.coverage.collectors[0].proven


@pytest.mark.usefixtures("small_history")
def test_more_work_on_the_cpu_is_found_by_its_line(tmp_path: Path) -> None:
    directory = tmp_path / "watch"
    with child(BUSY) as subject:
        target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
        recorder = ContinuousRecorder(target, Limits(slice_ns=250 * MS, cpu_share=0.5), directory)
        recorder.start()
        try:
            recorder.retarget(frozenset({subject.pid}), {subject.pid: JobName("process:1", "phases")})
            subject.go()
            until = time.monotonic() + 4 * PHASE_S + 2
            while time.monotonic() < until:
                time.sleep(0.1)
                recorder.poll()
            log = {line["what"]: line for line in subject.until("end")}
        finally:
            recorder.close()
    few, more = log["few"], log["more"]
    spans = [[moment(one["start"] + 1), moment(one["end"] - 1)] for one in (few, more)]
    (since, until_), (late, end) = spans
    params = HistoryParams(since=late, until=end, baseline_since=since, baseline_until=until_, pid=subject.pid)
    result = history(params, directory).result
    print(history_text(result, "en"))
    ran = {one.line: one for one in result.data.changes if one.state == "running"}
    assert ran, result.data.running
    # CPU time per second of each loop, by the program's own log
    rate = {one["what"]: one["steps"] / (one["end"] - one["start"]) for one in (few, more)}
    worked = sum(one.after - one.before for one in ran.values() if one.line.startswith("compute ("))
    assert worked == pytest.approx(0.09 * rate["more"] - 0.01 * rate["few"], abs=0.15)
    assert not [one for one in ran.values() if one.direction != "shrank" and one.line.startswith("decode (")]
    assert result.data.ran_s == pytest.approx(0.11 * rate["more"] * sum(result.data.recorded_s), rel=0.3)
    assert "running.change" in {finding.kind for finding in result.findings}
