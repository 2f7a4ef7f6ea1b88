"""`whystall watch` with a receiver of profiles: the busy line of a real program arrives, as CPU and as waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pprof_receiver import Receiver

_JOB = """\
import time
block = bytes(range(256)) * 4096
def burn():
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        sum(block)
def idle_place():
    time.sleep(0.1)
while True:
    burn()
    idle_place()
"""
_EVERY_S, _PATIENCE_S = 10, 90


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    path = tmp_path / "busy_program.py"
    path.write_text(_JOB)
    process = subprocess.Popen([sys.executable, str(path)])
    yield process
    process.kill()
    process.wait()


class Watched:
    """`whystall watch` of a job, with a receiver of profiles."""

    def __init__(self, job: int, receiver: Receiver, place: Path, kind: str) -> None:
        home = place / "home"
        home.mkdir()
        settings = place / "whystall.toml"
        settings.write_text(
            f'[profiles]\nurl = "{receiver.url}"\nkind = "{kind}"\nevery_s = {_EVERY_S}\n'
            'timeout_s = 1.0\nlabels = {cluster = "a"}\ntoken = {env = "PUSH_TOKEN"}\n'
        )
        settings.chmod(0o600)
        self.directory = home / "watch"
        whystall = str(Path(sys.executable).with_name("whystall"))
        own = {"WHYSTALL_HOME": str(home), "WHYSTALL_CONFIG": str(settings), "PUSH_TOKEN": "s3cret"}
        self.process = subprocess.Popen(
            [whystall, "watch", f"--pid={job}", "--min-age=0", "--cpu-percent=10", "--no-tickets"],
            env={**os.environ, **own},
            stderr=subprocess.PIPE,
        )

    def status(self) -> dict[str, Any]:
        path = self.directory / "status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def until(self, name: str) -> None:
        """Watch until the count `name` of the profiles is not 0, then end the watcher."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and self.process.poll() is None:
            if self.status().get("profiles", {}).get(name):
                break
            time.sleep(0.5)
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=30)
        assert self.status()["profiles"][name], (errors, self.status()["profiles"])


@pytest.mark.parametrize("kind", ["pyroscope", "parca"])
def test_the_busy_line_of_a_program_arrives(
    kind: str, job: subprocess.Popen[bytes], receiver: Receiver, tmp_path: Path
) -> None:
    began = time.time_ns()
    watched = Watched(job.pid, receiver, tmp_path, kind)
    watched.until("spans_sent")
    by_name = {one.labels["__name__"]: one for one in reversed(receiver.stored)}
    assert set(by_name) == {"process_cpu", "off_cpu"}
    assert receiver.headers[0]["Authorization"] == "Bearer s3cret"
    cpu, off = by_name["process_cpu"], by_name["off_cpu"]
    assert cpu.labels["cluster"] == "a"
    assert cpu.labels["job_name"] == watched.status()["jobs"][0]["name"]
    assert [cpu.texts(one) for one in cpu.profile.sample_type] == [("cpu", "nanoseconds")]
    assert cpu.texts(cpu.profile.period_type) == ("cpu", "nanoseconds")
    assert began < cpu.profile.time_nanos < time.time_ns()
    length = cpu.profile.duration_nanos
    assert 0 < length <= _EVERY_S * 1_000_000_000
    assert not any(sample.label for sample in cpu.profile.sample), "names of threads would become series"
    busy = cpu.weight_through(("burn", "busy_program.py", 6))
    assert 0.8 * sum(sample.value[0] for sample in cpu.profile.sample) < busy < 1.05 * length
    assert 0 < off.weight_through(("idle_place", "busy_program.py", 8)) < 1.05 * length
    status = watched.status()
    assert status["profiles"]["spans_lost"] == 0, status["profiles"]
    assert 'whystall_watch_profile_spans_total{outcome="sent"}' in (watched.directory / "metrics.prom").read_text()


def test_a_receiver_that_hangs_loses_spans_and_does_not_hold_up_the_watcher(
    job: subprocess.Popen[bytes], receiver: Receiver, tmp_path: Path
) -> None:
    receiver.released.clear()
    watched = Watched(job.pid, receiver, tmp_path, "pyroscope")
    watched.until("spans_lost")
    status = watched.status()
    assert status["profiles"]["spans_sent"] == 0
    # the second on a machine so busy that the request was never made
    assert any(why in status["profiles"]["error"] for why in ("timeout: no answer", "it took longer"))
    assert receiver.requests <= status["profiles"]["spans_lost"] + 1, "at most one is in flight"
    assert status["counts"].get("unobserved", 0) == 0, "no tick was late"
