"""Two recordings of one real job compared by their critical paths: before and while a neighbour takes its lock, and
twice without one."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean
from typing import Any

import anyio
import pytest
from scripted import Child, child

from whystall.agent_server.app import App
from whystall.agent_server.inputs.record_params import RecordParams
from whystall.agent_server.presentation.texts import result_text
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.result import ToolResult
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="observing the kernel needs root")

SECONDS = 8
# A loader thread decodes under a lock of a file; the job logs when each step began and ended.
JOB = """
import fcntl, queue
path = sys.argv[1]
batches, free = queue.Queue(), queue.Queue()
def take_lock():
    with open(path, "w") as file: fcntl.flock(file, fcntl.LOCK_EX)
def load():
    while True:
        free.get()
        take_lock()
        time.sleep(0.015)
        batches.put(0)
def next_batch(): return batches.get()
def compute(): time.sleep(0.012)
threading.Thread(target=load, daemon=True).start()
go()
while True:
    begin = time.monotonic_ns()
    free.put(0)
    next_batch()
    compute()
    log(what="step", start=begin, end=time.monotonic_ns())
"""
NEIGHBOUR = """
import fcntl
go()
while True:
    with open(sys.argv[1], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.06)
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def recorded(job: Child, out: Path) -> float:
    """Record the job into `out`, and return the mean of its steps meanwhile, ms, by its own clock."""
    params = RecordParams(pid=job.pid, duration=SECONDS, samples=True)
    anyio.run(lambda: App().record(params, out))
    manifest = Recording.open(out, COLLECTORS).manifest
    begun, ended = manifest.start_ns, manifest.start_ns + manifest.window_ns
    took: list[float] = []
    at = 0
    while at < ended:
        line = job.line()
        at = line["end"]
        if line["start"] >= begun:
            took.append((line["end"] - line["start"]) / 1e6)
    return fmean(took)


def compared(before: Path, after: Path) -> ToolResult[Any]:
    result = anyio.run(lambda: App().run_tool("critical_path", {"before": str(before)}, source=after))
    print(result_text(result, "en"))
    return result


def test_a_neighbour_that_takes_the_lock_is_the_change_and_without_it_there_is_none(tmp_path: Path) -> None:
    lock = str(tmp_path / "data.lock")
    with child(JOB, lock) as job, child(NEIGHBOUR, lock) as neighbour:
        job.go()
        quiet = recorded(job, tmp_path / "a1")
        recorded(job, tmp_path / "a2")
        neighbour.go()
        held = recorded(job, tmp_path / "b")
    result = compared(tmp_path / "a1", tmp_path / "b")
    found = result.data.compared
    assert found is not None, result.coverage.not_seen
    assert (found.unit, found.tid, found.step.verdict) == ("step", job.pid, "grew")
    assert found.step.change_ms == pytest.approx(held - quiet, rel=0.25)
    assert found.step.low_ms < held - quiet < found.step.high_ms
    first = found.rows[0]
    assert (first.verdict in ("grew", "appeared"), first.what) == (True, "queue")
    assert first.line.startswith("next_batch (")
    assert f"({neighbour.pid})" in first.root
    assert lock in first.chain
    assert first.q_value < 0.05
    same = compared(tmp_path / "a1", tmp_path / "a2")
    assert same.data.compared is not None, same.coverage.not_seen
    rows = same.data.compared.rows
    own = {row.what: row.verdict for row in rows if "cpu" not in (row.what, row.root_what) and row.what != "rest"}
    # what is left is of other programs, which take more or less of the CPUs of this host in one of the recordings
    assert own == dict.fromkeys(own, "unchanged")
    assert own.keys() >= {"queue", "sleep"}
