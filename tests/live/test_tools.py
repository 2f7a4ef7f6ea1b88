"""Each tool against a workload that logs what it suffered: truth is the workload's clock, not our reading."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from running import Running, file_server
from slow_disk import SlowDisk

from whystall.agent_server.app import App
from whystall.tools.contract.result import Status, ToolResult


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of this test's own, so that nothing of the host's is read or written."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WHYSTALL_HOME", str(home))
    return home


@pytest.fixture
def slow_files() -> Iterator[Path]:
    """A directory whose fsync takes 200 ms, read 60 ms, getattr 30 ms longer than it should."""
    with file_server("fsync=0.2", "read=0.06", "getattr=0.03") as (_, mount):
        yield mount


def look(tool: str, program: Running, duration: float, **arguments: Any) -> ToolResult[Any]:
    """Run `tool` on `program`, which waits before its work until the window is open."""

    async def observed() -> ToolResult[Any]:
        results: list[ToolResult[Any]] = []
        begun = False

        def progress(done: float, total: float, message: str) -> None:
            nonlocal begun
            if not begun:
                begun = True
                program.go()

        arguments_ = {"pid": program.pid, "duration": duration, **arguments}
        results.append(await App().run_tool(tool, arguments_, progress=progress))
        return results[0]

    return anyio.run(observed)


def test_fileslower_names_the_file_and_the_time_of_every_slow_fsync(slow_files: Path) -> None:
    with Running("slow_writer.py", "--directory", slow_files, "--count", 4, "--interval", 0.2, wait=True) as program:
        result = look("fileslower", program, 20, min_ms=100)
        program.wait()
    logged = {line["path"]: line["latency_s"] * 1e3 for line in program.of("fsync")}
    seen = {e.path: e.latency_ms for e in result.data.events if e.operation == "fsync"}
    assert seen.keys() == logged.keys()
    for path, latency in logged.items():
        assert seen[path] == pytest.approx(latency, rel=0.1)
    finding = next(f for f in result.findings if f.kind == "file.slow_sync")
    assert finding.subject.path == str(slow_files / "data_*.bin")
    assert finding.metrics["episode_bytes"] == pytest.approx(1 << 20)


def test_fileslower_sees_slow_metadata_by_name(slow_files: Path) -> None:
    with Running("metadata.py", "--directory", slow_files, "--count", 3, wait=True) as program:
        result = look("fileslower", program, 20, min_ms=20, top=50)
        program.wait()
    stats = {line["path"] for line in program.of("stat") if line["latency_s"] >= 0.025}
    assert stats
    assert stats <= {e.path for e in result.data.events}
    assert any(f.kind == "file.slow_metadata" and f.polarity.value == "abnormal" for f in result.findings)


def test_fileslower_names_the_file_behind_a_slow_msync() -> None:
    with (
        file_server("fsync=0.15", direct_io=False) as (_, mount),
        Running("mapped_writer.py", "--directory", mount, "--count", 20, wait=True) as program,
    ):
        result = look("fileslower", program, 2, min_ms=100)
        program.stop()
    logged = program.of("msync")
    seen = [e for e in result.data.events if e.operation == "msync" and not e.in_flight]
    assert len(logged) > len(seen) >= 5
    assert {e.path for e in seen} == {line["path"] for line in logged} == {str(mount / "mapped.bin")}
    assert statistics.median(e.latency_ms for e in seen) == pytest.approx(
        statistics.median(line["latency_s"] for line in logged) * 1e3, rel=0.1
    )


def test_a_slow_msync_is_told_though_its_process_is_gone() -> None:
    with (
        file_server("fsync=0.15", direct_io=False) as (_, mount),
        Running("mapped_writer.py", "--directory", mount, "--count", 3, wait=True) as program,
    ):
        result = look("fileslower", program, 10, min_ms=100)
        program.wait()
    seen = [e for e in result.data.events if e.operation == "msync"]
    assert [e.path for e in seen] == ["[mapped file]"] * len(program.of("msync"))
    assert "path_incomplete" in {spot.code for spot in result.coverage.not_seen}


def test_fileslower_tells_what_is_still_in_flight() -> None:
    with (
        file_server("fsync=6") as (_, mount),
        Running("slow_writer.py", "--directory", mount, "--count", 1, wait=True) as program,
    ):
        result = look("fileslower", program, 3)
        program.wait()
    (stuck,) = result.data.in_flight
    (logged,) = program.of("fsync")
    assert (stuck.operation, stuck.path) == ("fsync", logged["path"])
    assert stuck.latency_ms == pytest.approx(3000, rel=0.15)


def test_fileslower_is_quiet_and_says_so_on_a_fast_file(tmp_path: Path) -> None:
    options = ["--directory", tmp_path, "--count", 20, "--size-kib", 4, "--sync", "none"]
    with Running("slow_writer.py", *options, wait=True) as program:
        result = look("fileslower", program, 20, min_ms=500)
        program.wait()
    assert result.data.events == []
    assert {f.polarity.value for f in result.findings} == {"normal"}
    assert all(c.proven and c.engine == "ebpf" and c.seen >= 20 for c in result.coverage.collectors)


def test_offcputime_measures_known_sleeps_and_names_threads_that_never_ran() -> None:
    with Running("sleeper.py", "--count", 6, "--sleep-s", 0.4, wait=True) as program:
        result = look("offcputime", program, 20, top=50)
        program.wait()
    logged = sum(line["latency_s"] for line in program.of("sleep")) * 1e3
    slept = sum(
        r.total_ms for r in result.data.rows if r.syscall in ("clock_nanosleep", "nanosleep") and r.tid == program.pid
    )
    assert slept == pytest.approx(logged, rel=0.05)
    tids = program.start["tids"]
    waiting = {row.tid: row for row in reversed(result.data.rows)}  # the longest wait of each thread
    assert waiting[tids["pipe"]].syscall == "read"
    assert waiting[tids["lock"]].syscall == "futex"


def test_offcputime_reports_threads_blocked_for_the_whole_window() -> None:
    with Running("sleeper.py", "--count", 40, "--sleep-s", 0.2, wait=True) as program:
        result = look("offcputime", program, 3, top=50)
    blocked = {o.tid: o for o in result.data.open if o.whole_window}
    tids = program.start["tids"]
    for thread, call in (("pipe", "read"), ("lock", "futex")):
        assert blocked[tids[thread]].syscall == call
        assert blocked[tids[thread]].waiting_ms == pytest.approx(3000, rel=0.1)
        assert blocked[tids[thread]].kernel_stack


def test_offcputime_finds_the_lock_and_who_holds_it() -> None:
    with Running("lock_fight.py", "--count", 8, "--hold-s", 0.2, "--waiter-hold-s", 0.01, wait=True) as program:
        result = look("offcputime", program, 20, waker=True, top=50)
        program.wait()
    waits = [line for line in program.of("wait") if line["role"] == "waiter"]
    lock = [f for f in result.findings if f.kind == "offcpu.lock_wait" and f.polarity.value == "abnormal"]
    assert lock
    longest = max(f.metrics["max_ms"] for f in lock)
    # a waiter that comes too late on a busy machine waits once more: two waits in the kernel, one in its log
    assert 190 <= longest <= max(w["latency_s"] for w in waits) * 1e3
    assert any(w.waker_pid == program.pid and w.waker_tid != w.tid for w in result.data.wakers)


def test_biolatency_counts_every_request_of_a_disk() -> None:
    with SlowDisk(write_mib_s=400, read_mib_s=400, size_mib=64) as disk:
        options = ["--path", disk.path / "x", "--reads", 120, "--writes", 80, "--size", 65536]
        with Running("io_counter.py", *options, wait=True) as program:
            result = look("biolatency", program, 20)
            program.wait()
        name = os.path.basename(disk.device)
    rows = {r.operation: r for r in result.data.rows if r.device == name}
    assert rows["read"].count == pytest.approx(120, abs=5)  # the file system may read a block of its own
    writes = sum(r.count for op, r in rows.items() if "write" in op)
    assert writes >= 80
    logged = statistics.median(line["latency_s"] for line in program.of("read")) * 1e3
    assert rows["read"].p50_ms + rows["read"].queue_p50_ms <= logged
    assert sum(b.count for b in rows["read"].device_histogram) == rows["read"].count


def test_a_proven_collector_may_say_no_data() -> None:
    with subprocess.Popen(["sleep", "30"]) as idle:
        result = anyio.run(App().run_tool, "fileslower", {"pid": idle.pid, "duration": 1.0})
        idle.kill()
    assert result.status is Status.NO_DATA
    assert [(c.proven, c.lost, c.seen) for c in result.coverage.collectors] == [(True, 0, 1)]  # the sleep itself
