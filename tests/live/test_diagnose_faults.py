"""Faults made on purpose, each diagnosed while it lasts and compared with what the program itself logged."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cgroups import Cgroup
from running import SIMULATOR, Running, file_server
from slow_disk import SlowDisk

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.knowledge_base.models import Culprit, Diagnosis, Verdict

WINDOW_S = 6.0
MIB = 1 << 20


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="whystall-test-"))
    yield path
    shutil.rmtree(path)


def diagnose(program: Running, **options: Any) -> Diagnosis:
    params = DiagnoseParams(**{"pid": program.pid, "duration": WINDOW_S, **options})
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(params))


def logged_ms(program: Running, event: str = "fault") -> float:
    """The median of what the program says it suffered."""
    return 1e3 * statistics.median(line.get("latency_s", line.get("total_s")) for line in program.of(event))


def assert_confirmed(found: Diagnosis, cause: str) -> Culprit:
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, cause), found.model_dump_json(indent=1)
    assert found.culprit is not None
    return found.culprit


def test_direct_writes_without_a_sync_are_a_checkpoint_too() -> None:
    options = ["--step-ms", 20, "--direct", "--no-fsync"]
    with (
        SlowDisk(write_mib_s=60) as disk,
        Running(SIMULATOR, "--directory", disk.path, *options, wrap=disk.command) as program,
    ):
        program.until("checkpoint")
        culprit = assert_confirmed(diagnose(program), "sync_checkpoint_write")
        assert culprit.latency_ms == pytest.approx(logged_ms(program, "checkpoint"), rel=0.1)
        assert (culprit.syscall, culprit.series) == ("write", f"{disk.path}/chk_*.bin")


def test_little_synced_again_and_again_is_a_storm() -> None:
    with SlowDisk(write_mib_s=1) as disk:
        options = ["--directory", disk.path, "--size-kib", 4, "--interval", 0, "--count", 10**6]
        with Running("slow_writer.py", *options, wrap=disk.command) as program:
            program.until("fsync")
            culprit = assert_confirmed(diagnose(program), "fsync_storm")
            assert culprit.series == f"{disk.path}/data_*.bin"


@pytest.mark.beside
@pytest.mark.thorough
def test_reads_from_a_slow_server_take_what_they_took_and_no_more() -> None:
    with file_server("read=0.03") as (backing, mount):
        (backing / "data.bin").write_bytes(os.urandom(8 * MIB))
        with Running("trainer.py", "--fault", "read", "--path", mount / "data.bin", "--size-kib", 512) as program:
            program.until("fault")
            found = diagnose(program)
            culprit = assert_confirmed(found, "remote_file_system")
            step_ms, read_ms = logged_ms(program, "step"), logged_ms(program)
    assert (culprit.path, culprit.syscall) == (str(mount / "data.bin"), "pread64")
    assert culprit.latency_ms == pytest.approx(read_ms, rel=0.1)
    # computing between two reads is no waiting
    assert culprit.window_pct == pytest.approx(100 * read_ms / (read_ms + step_ms), rel=0.15)


def test_a_slow_loader_is_found_behind_the_queue_it_fills() -> None:
    with file_server("read=0.08") as (backing, mount):
        (backing / "data.bin").write_bytes(os.urandom(8 * MIB))
        with Running("trainer.py", "--fault", "loader", "--path", mount / "data.bin", "--size-kib", 512) as program:
            program.until("fault")
            found = diagnose(program)
    culprit = assert_confirmed(found, "remote_file_system")
    assert found.victim is not None
    assert (found.victim.tid, culprit.path) == (program.pid, str(mount / "data.bin"))
    assert culprit.tid != program.pid
    # all of the queue's waiting is the server's
    assert culprit.window_pct == pytest.approx(found.victim.lost_pct, rel=0.15)


@pytest.mark.beside
@pytest.mark.thorough
def test_names_that_a_server_is_slow_to_look_up() -> None:
    with file_server("lookup=0.03", "getattr=0.03") as (backing, mount):
        (backing / "sample.bin").write_bytes(b"x")
        with Running("trainer.py", "--fault", "stat", "--directory", mount) as program:
            program.until("fault")
            culprit = assert_confirmed(diagnose(program), "remote_file_system")
            # it looks the name up, then asks for its attributes
            assert culprit.latency_ms == pytest.approx(logged_ms(program) / 2, rel=0.1)
    assert culprit.path == str(mount / "sample.bin")


@pytest.mark.beside
@pytest.mark.thorough
def test_a_lock_is_followed_to_the_sync_its_holder_waits_for() -> None:
    with SlowDisk(write_mib_s=20) as disk:
        options = ["--fault", "lock-sync", "--size-kib", 4096, "--rest-s", 0.002, "--directory", disk.path]
        with Running("trainer.py", *options, wrap=disk.command) as program:
            program.until("fault")
            found = diagnose(program)
            culprit = assert_confirmed(found, "sync_checkpoint_write")
            assert culprit.latency_ms == pytest.approx(logged_ms(program, "hold"), rel=0.1)
    assert found.victim is not None
    assert found.victim.tid == program.pid != culprit.tid
    assert any(f.kind == "path.wait" for f in found.findings if f.id in found.chain)


def test_what_the_memory_limit_evicts_is_no_slow_disk() -> None:
    with Running("reclaimer.py", "--count", 10**6) as program:
        program.until("pass")
        assert_confirmed(diagnose(program), "page_cache_thrash")


@pytest.mark.beside
@pytest.mark.thorough
def test_a_hang_is_named_by_the_operation_that_does_not_return() -> None:
    with (
        file_server("fsync=14") as (_, mount),
        Running("trainer.py", "--fault", "sync", "--directory", mount, "--pool", 3) as program,
    ):
        program.until("step")
        found = diagnose(program, duration=8)
        program.process.kill()
    culprit = assert_confirmed(found, "stuck_file_operation")
    assert found.victim is not None
    assert (found.victim.tid, found.victim.chosen_by) == (program.pid, "main_thread")
    assert (culprit.path, culprit.syscall) == (str(mount / "journal.bin"), "fsync")


@pytest.mark.beside
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "answer"),
    [("pipe", (Verdict.INCONCLUSIVE, ["looks_for_work"])), ("server", (Verdict.IDLE, []))],
)
def test_waiting_for_input_is_neither_healthy_nor_a_fault(memory: Path, fault: str, answer: Any) -> None:
    with Running("trainer.py", "--fault", fault, "--step-ms", 1, "--directory", memory) as program:
        program.until("step")
        found = diagnose(program, duration=5)
        program.process.kill()
    assert (found.verdict, found.missing) == answer


def test_an_idle_pool_beside_a_busy_loop_is_healthy(memory: Path) -> None:
    with Running("trainer.py", "--pool", 64, "--directory", memory) as program:
        program.until("step")
        found = diagnose(program)
    assert found.cause in (None, "cpu_contention"), found.model_dump_json(indent=1)
    assert found.verdict is Verdict.HEALTHY or found.cause == "cpu_contention"


def test_of_several_processes_the_one_that_stalls() -> None:
    with SlowDisk(write_mib_s=20) as disk:
        options = ["--children", 2, "--fault", "sync", "--size-kib", 8192, "--directory", disk.path]
        with Running("trainer.py", *options, wrap=disk.command) as program:
            program.until("fault")
            found = diagnose(program, children=True)
            culprit = assert_confirmed(found, "sync_checkpoint_write")
            assert culprit.latency_ms == pytest.approx(logged_ms(program), rel=0.15)
    assert culprit.pid == program.start["pids"][-1]
    ruled_out = {a.cause for a in found.assessments if a.state.value == "ruled_out"}
    assert {"cgroup_cpu_throttling", "lock_wait", "slow_file_read"} <= ruled_out


def test_a_mild_quota_is_still_told_from_contention(memory: Path) -> None:
    with Cgroup("cpu") as group:
        group.limit_cpus(0.8)
        with Running(SIMULATOR, "--directory", memory, "--every", 10**5, wrap=group.command) as program:
            program.until("step")
            found = diagnose(program, duration=9)
    assert found.cause == "cgroup_cpu_throttling", found.model_dump_json(indent=1)


def test_more_threads_than_processors_compete_with_one_another(memory: Path) -> None:
    busy = 4 * (os.cpu_count() or 1)
    with Running("trainer.py", "--busy", busy, "--directory", memory) as program:
        program.until("step")
        assert_confirmed(diagnose(program), "thread_oversubscription")


@pytest.mark.beside
def test_a_lock_file_that_nobody_removes_is_named(memory: Path) -> None:
    (memory / "build.lock").touch()
    with Running("trainer.py", "--fault", "awaited", "--directory", memory) as program:
        program.until("step")
        found = diagnose(program)
        program.process.kill()
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "awaited_file"), found.model_dump_json(indent=1)
    assert found.culprit is not None
    assert found.culprit.path == str(memory / "build.lock")


@pytest.mark.beside
def test_small_messages_that_the_kernel_holds_back_are_no_slow_peer(memory: Path) -> None:
    with Running("trainer.py", "--fault", "messages", "--step-ms", 2, "--directory", memory) as program:
        program.until("fault")
        found = diagnose(program)
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "held_back_data"), found.model_dump_json(indent=1)
    assert found.culprit is not None
    assert found.culprit.latency_ms == pytest.approx(logged_ms(program), rel=0.15)
