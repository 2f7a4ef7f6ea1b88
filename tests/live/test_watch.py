"""`whystall watch` on a real job that stalls once: the first stall is explained, and there is no other ticket."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.agent_server.stores import Stores

_JOB = """
import fcntl, sys, time, zlib
block = bytes(range(256)) * 4096
def take_lock():
    with open(sys.argv[1], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
def train():
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        zlib.crc32(block)
while True:
    time.sleep(0.08)
    train()
    take_lock()
"""
_LEARN_S, _HELD_S, _PATIENCE_S = 10.0, 3.0, 90.0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _JOB, str(tmp_path / "step.lock")])
    yield process
    process.kill()
    process.wait()


def test_the_first_stall_of_a_job_is_explained(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    whystall = str(Path(sys.executable).with_name("whystall"))
    command = [whystall, "watch", f"--pid={job.pid}", f"--learn={_LEARN_S}", "--min-age=0", "--cpu-percent=10"]
    watcher = subprocess.Popen(command, env={**os.environ, "WHYSTALL_HOME": str(home)}, stderr=subprocess.PIPE)
    log = home / "watch" / "stalls.jsonl"
    try:
        time.sleep(_LEARN_S + 12)
        assert not log.exists(), "a healthy job has no stalls"
        with (tmp_path / "step.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            held = time.monotonic_ns()
            time.sleep(_HELD_S)
        end = time.monotonic() + _PATIENCE_S
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.5)
    finally:
        watcher.send_signal(signal.SIGTERM)
        _, errors = watcher.communicate(timeout=30)
    (entry,) = (json.loads(line) for line in log.read_text().splitlines())
    assert entry["stall"]["kind"] == "gap"
    assert abs(entry["stall"]["start_ns"] - held) < 1_000_000_000
    assert entry["noticed_ns"] < held + int(_HELD_S * 1e9) + 2_000_000_000
    assert entry["answer"]["cause"] == "file_lock_held", errors
    with_ticket = Stores(home / "knowledge.db").tickets.get(entry["answer"]["ticket"])
    assert with_ticket.diagnosis is not None
    assert with_ticket.diagnosis.culprit is not None
    assert str(with_ticket.diagnosis.culprit.path).endswith("step.lock")
    assert any("before it was noticed" in one.text for one in with_ticket.human.comments)
    status = json.loads((home / "watch" / "status.json").read_text())
    assert status["running"] is False
    assert status["counts"]["tickets"] == 1
    assert [cause for _, _, cause, _ in status["stalls"]] == ["file_lock_held"]
    assert with_ticket.labels["job_name"] == status["stalls"][0][0]
    metrics = (home / "watch" / "metrics.prom").read_text()
    assert "whystall_watch_running 0.0" in metrics, "its gauges hold no longer"
    assert "whystall_watch_tickets_total 1.0" in metrics
    assert "whystall_info{" in metrics
