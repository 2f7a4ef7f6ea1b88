"""Two spans of the watch compared by their critical paths: what a program logged of itself is found, with its root."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from scripted import child

from whystall.agent_server.presentation.history_lines import history_text
from whystall.agent_server.watch.history import HistoryParams, history
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.collect.slice_history import JobName
from whystall.tools.recording.target import Target

MS = 1_000_000
PHASE_S = 10
# A loader thread decodes under a lock of a file; in the second phase, another process holds it most of the time.
PROGRAM = f"""
import fcntl, os, queue
path = os.environ["LOCK"]
batches, free = queue.Queue(), queue.Queue()
def take_lock():
    with open(path, "w") as file: fcntl.flock(file, fcntl.LOCK_EX)
def load():
    while True:
        free.get()
        take_lock()
        time.sleep(0.015)
        batches.put(0)
def hold_locks():
    while True:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.06)
        time.sleep(0.01)
def next_batch(): return batches.get()
def compute(): time.sleep(0.012)
def phase(what, holder=0):
    start, waited, steps = time.time(), 0.0, 0
    while time.time() < start + {PHASE_S}:
        free.put(0)
        begin = time.monotonic()
        next_batch()
        waited += time.monotonic() - begin
        compute()
        steps += 1
    end = time.time()
    each = dict(waited_ms=1e3 * waited / steps, step_ms=1e3 * (end - start) / steps)
    log(what=what, holder=holder, start=start, end=end, **each)
threading.Thread(target=load, daemon=True).start()
go()
phase("free")
holder = os.fork()
if not holder: hold_locks()
phase("held", holder)
os.kill(holder, 9)
log(what="end")
sys.stdin.readline()
"""


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(round(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.usefixtures("small_history")
def test_steps_that_wait_for_a_loader_that_waits_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "data.lock"
    monkeypatch.setenv("LOCK", str(lock))
    directory = tmp_path / "watch"
    with child(PROGRAM) as subject:
        target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
        recorder = ContinuousRecorder(target, Limits(slice_ns=250 * MS, cpu_share=0.5, job_share=1.0), directory)
        recorder.start()
        try:
            recorder.retarget(frozenset({subject.pid}), {subject.pid: JobName("process:1", "phases")})
            subject.go()
            until = time.monotonic() + 2 * PHASE_S + 2
            while time.monotonic() < until:
                time.sleep(0.1)
                recorder.poll()
            log = {line["what"]: line for line in subject.until("end")}
        finally:
            recorder.close()
    free, held = log["free"], log["held"]
    spans = [(moment(one["start"] + 1), moment(one["end"] - 1)) for one in (free, held)]
    (since, until_), (late, end) = spans
    params = HistoryParams(since=late, until=end, baseline_since=since, baseline_until=until_, pid=subject.pid)
    result = history(params, directory).result
    print(history_text(result, "en"))
    found = result.data.path
    assert found is not None, result.coverage.not_seen
    assert (found.unit, found.tid) == ("step", subject.pid)
    assert found.step is not None
    assert found.step.verdict == "grew"
    assert found.step.change_ms == pytest.approx(held["step_ms"] - free["step_ms"], rel=0.2)
    first = found.rows[0]
    assert (first.verdict in ("grew", "appeared"), first.what) == (True, "queue")
    assert first.line.startswith("next_batch (")
    # who holds the lock sleeps meanwhile; the loader between both waits for the lock
    assert (first.root_what, first.root_line.partition(" (")[0]) == ("sleep", "hold_locks")
    assert f"({held['holder']})" in first.root
    assert "file_lock" in first.chain
    assert "take_lock (" in first.chain
    assert str(lock) in first.chain
    waited = sum(row.change_ms for row in found.rows if row.what == "queue")
    assert waited == pytest.approx(held["waited_ms"] - free["waited_ms"], rel=0.2)
    assert not [row for row in found.rows if row.what == "sleep" and row.verdict == "grew"]
    assert "step.change" in {finding.kind for finding in result.findings}
