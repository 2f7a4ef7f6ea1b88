"""The main job, end to end: a training loop that really stalls, diagnosed while it runs."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from running import SIMULATOR, Running
from slow_disk import SlowDisk

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.verdict import STALL_PCT
from whystall.agent_server.inputs.record_params import RecordParams
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict

SYNC = "sync_checkpoint_write"
WINDOW_S = 8.0
STEPS = ("--step-ms", 40)
"""Short steps: a checkpoint a second, of which the window sees as many as an engineer would wait for."""


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of this test's own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WHYSTALL_HOME", str(home))
    return home


@pytest.fixture
def slow_disk() -> Iterator[SlowDisk]:
    """A disk that takes most of a second for one checkpoint."""
    with SlowDisk(write_mib_s=60) as disk:
        yield disk


@pytest.fixture
def fast_directory() -> Iterator[Path]:
    """PastIncidents: a checkpoint costs its copy only."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="whystall-test-"))
    yield path
    shutil.rmtree(path)


def diagnose(program: Running, **options: Any) -> Diagnosis:
    params = DiagnoseParams(pid=program.pid, duration=WINDOW_S, **options)
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(params))


def test_the_checkpoint_that_stalls_is_named_with_its_latency_and_period(slow_disk: SlowDisk) -> None:
    with Running(SIMULATOR, "--directory", slow_disk.path, *STEPS, wrap=slow_disk.command) as program:
        program.until("checkpoint")
        found = diagnose(program, ticket=True, symptom="training stalls every few steps")
        program.stop()
    logged = program.of("checkpoint")
    latency = statistics.median(line["total_s"] for line in logged) * 1e3
    starts = [line["start_mono_ns"] for line in logged]
    period = statistics.median(b - a for a, b in itertools.pairwise(starts)) / 1e9
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, SYNC), found.model_dump_json(indent=1)
    assert found.culprit is not None
    assert found.culprit.pid == program.pid
    assert found.culprit.path in {line["path"] for line in logged}
    assert found.culprit.series == f"{slow_disk.path}/chk_*.bin"
    assert found.culprit.latency_ms == pytest.approx(latency, rel=0.1)
    assert found.culprit.period_s == pytest.approx(period, rel=0.1)
    assert found.culprit.kernel_path
    told = re.fullmatch(r"[\w.]+ \(slow_ai_simulator\.py:(\d+)\)", found.culprit.code or "")
    assert told, found.culprit.code
    assert "fsync" in Path(SIMULATOR).read_text().splitlines()[int(told[1]) - 1], "the line that waits is named"
    assert found.matches
    assert found.ticket is not None
    ruled_out = {a.cause for a in found.assessments if a.state is CauseState.RULED_OUT}
    assert {"cgroup_cpu_throttling", "lock_wait"} <= ruled_out
    # copying the checkpoint into the page cache takes CPU time in the kernel, more where memory must be cleared first
    kernel = next(a for a in found.assessments if a.cause == "kernel_cpu_in_syscall")
    assert kernel.state is CauseState.RULED_OUT or kernel.window_pct < 10


def assert_nothing_of_its_own(found: Diagnosis, program: Running) -> None:
    """Healthy. Where others keep this machine busy and the steps are slow by the program's own log, that may be said,
    and nothing else.
    """
    computed = [line["compute_s"] for line in program.of("step")]
    held_up_pct = 100 * (1 - min(computed) * len(computed) / sum(computed))
    if held_up_pct >= STALL_PCT and found.verdict is not Verdict.HEALTHY:
        assert found.cause in (None, "cpu_contention"), found.model_dump_json(indent=1)
    else:
        assert found.verdict is Verdict.HEALTHY, found.model_dump_json(indent=1)
        assert (found.cause, found.ticket) == (None, None)


def test_a_slow_write_in_the_background_stalls_nobody(slow_disk: SlowDisk) -> None:
    with Running(SIMULATOR, "--directory", slow_disk.path, *STEPS, "--background", wrap=slow_disk.command) as program:
        program.until("checkpoint")
        found = diagnose(program, ticket=True)
        program.stop()
    assert_nothing_of_its_own(found, program)


def test_drawing_random_bytes_is_kernel_cpu_time_and_not_the_disk(fast_directory: Path) -> None:
    with Running(SIMULATOR, "--directory", fast_directory, *STEPS, "--random-in-line") as program:
        program.until("checkpoint")
        found = diagnose(program)
        program.stop()
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "kernel_cpu_in_syscall"), found.model_dump_json(indent=1)
    assert found.culprit is not None
    assert found.culprit.syscall == "getrandom"


def test_a_neighbour_on_the_same_cpu_is_contention(fast_directory: Path) -> None:
    def pinned(argv: list[str]) -> list[str]:
        return ["taskset", "-c", "0", *argv]

    with (
        Running("spinner.py", "--duration", 60, wrap=pinned),
        Running(SIMULATOR, "--directory", fast_directory, "--every", 1000, wrap=pinned) as program,
    ):
        program.until("step")
        found = diagnose(program)
    # the other CPU has nothing to do, unless another program uses it
    assert found.cause in ("wrong_affinity", "cpu_contention"), found.model_dump_json(indent=1)
    assert found.verdict in (Verdict.CONFIRMED, Verdict.LIKELY)


def test_an_undisturbed_loop_is_healthy(fast_directory: Path) -> None:
    with Running(SIMULATOR, "--directory", fast_directory, "--every", 1000) as program:
        program.until("step")
        found = diagnose(program, ticket=True)
    assert_nothing_of_its_own(found, program)


def test_the_procfs_engine_names_the_file_but_never_confirms(slow_disk: SlowDisk) -> None:
    with Running(SIMULATOR, "--directory", slow_disk.path, *STEPS, wrap=slow_disk.command) as program:
        program.until("checkpoint")
        found = diagnose(program, engine="procfs")
    assert (found.verdict, found.cause) == (Verdict.LIKELY, SYNC), found.model_dump_json(indent=1)
    assert found.culprit is not None
    assert found.culprit.path is not None
    assert found.culprit.path.startswith(f"{slow_disk.path}/chk_")
    assert "sampled" in found.missing


# The interpreter and its packages may be unreadable without privilege, as they are below /root: what is loaded late is
# loaded by a first run, before privilege is given up.
_JUDGE = """
import os, sys
from pathlib import Path
import anyio
from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
loading, home, recording = sys.argv[1:]
def judged(home):
    os.environ["WHYSTALL_HOME"] = home
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(DiagnoseParams(), source=Path(recording))).model_dump_json()
judged(loading)
os.setgid(65534)
os.setuid(65534)
print(judged(home))
"""


def test_a_recording_judged_without_privilege_gives_the_same_findings(slow_disk: SlowDisk) -> None:
    place = Path(tempfile.mkdtemp(prefix="whystall-test-"))
    place.chmod(0o755)
    try:
        with Running(SIMULATOR, "--directory", slow_disk.path, *STEPS, wrap=slow_disk.command) as program:
            program.until("checkpoint")
            with App().closing() as app:
                anyio.run(lambda: app.record(RecordParams(pid=program.pid, duration=6), place / "rec"))
        with App().closing() as app:
            here = anyio.run(lambda: app.diagnose(DiagnoseParams(), source=place / "rec"))
        for path in (place / "rec").rglob("*"):
            path.chmod(0o644)
        (place / "rec").chmod(0o755)
        home = place / "home"
        home.mkdir()
        os.chown(home, 65534, 65534)
        argv = [sys.executable, "-c", _JUDGE, str(place / "loading"), str(home), str(place / "rec")]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(place)
    there = json.loads(done.stdout)
    mine = json.loads(here.model_dump_json())
    assert there["findings"] == mine["findings"]
    assert (there["verdict"], there["cause"]) == (mine["verdict"], mine["cause"]) == ("confirmed", SYNC)
