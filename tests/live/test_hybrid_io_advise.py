"""hybrid_io_advise against programs that log what they did: sizes, bytes and shares as logged, and the advice that
follows from them; what is tried is tried on the file system where the files are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from running import Running

from whystall.agent_server.app import App
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.result import ToolResult

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="tracing, cgroups and mounting need root")

KIB, MIB = 1 << 10, 1 << 20
CLOSE = 0.02


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def disk(ext4: Callable[[int], Path]) -> Path:
    """A file system of our own."""
    return ext4(1024)


def cold(path: Path, mib: int) -> Path:
    """A file of that size of which nothing is in the cache."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def advice(program: Running, duration: float, **arguments: Any) -> ToolResult[Any]:
    """The tool's answer about `program`, which begins its work when the window is open."""
    begun = False

    def progress(done: float, total: float, message: str) -> None:
        nonlocal begun
        if not begun:
            begun = True
            program.go()

    wanted = {"duration": duration, "top": 50, **({} if "cgroup" in arguments else {"pid": program.pid}), **arguments}
    return anyio.run(lambda: App().run_tool("hybrid_io_advise", wanted, progress=progress))


def row(result: ToolResult[Any], path: Path | str, operation: str = "read") -> Any:
    (found,) = [r for r in result.data.rows if (r.path, r.operation) == (str(path), operation)]
    return found


def test_what_is_known_of_each_file_is_what_the_program_did(disk: Path) -> None:
    size = 32
    once, thrice, direct = (cold(disk / f"{name}.bin", size) for name in ("once", "thrice", "direct"))
    written = disk / "written.bin"
    steps = [f"read:{once}:256", f"read:{thrice}:64:3", f"direct:{direct}:1024", f"write:{written}:256:{size}"]
    with Running("cache_reader.py", *steps, "--linger-s", 1, wait=True) as program:
        result = advice(program, duration=30)  # or until it ends
        program.wait()
    logged = {line["path"]: line["bytes"] for way in ("read", "direct", "write") for line in program.of(way)}
    rows = {path: row(result, path) for path in (once, thrice, direct)} | {written: row(result, written, "write")}
    for path, found in rows.items():
        assert found.bytes == pytest.approx(logged[str(path)], rel=CLOSE)
        assert found.pid == program.pid
        assert not found.change
        assert found.basis == "rule"
    assert [found.request_bytes for found in rows.values()] == [256 * KIB, 64 * KIB, MIB, 256 * KIB]
    assert rows[once].reread_pct == pytest.approx(0, abs=2)
    assert rows[thrice].reread_pct == pytest.approx(100 * 2 / 3, abs=2)
    # who reads once and takes no room from others is left alone, though others of this host may drive reclaim
    assert rows[once].reason in ("no_pressure", "no_harm")
    assert (rows[thrice].advice, rows[thrice].reason) == ("buffered", "reread")
    assert (rows[direct].advice, rows[direct].reason) == ("direct", "already_direct")
    assert rows[written].advice == "buffered"
    mine = [f for f in result.findings if f.subject.pid == program.pid]
    assert len(mine) == 4
    assert all(f.polarity is Polarity.NORMAL and "ratio" not in f.metrics for f in mine)


def test_a_stream_beside_a_hot_file_is_advised_by_what_was_tried_there(disk: Path) -> None:
    # with a pause, so that it does not come round within the window
    options = ("--directory", disk, "--streamer", "other", "--request-kib", 4096, "--stream-pause-ms", 2)
    with Running("cache_job.py", *options) as program:
        program.until("step", 3)
        result = advice(program, duration=4, calibrate=True, cgroup=program.start["cgroup"])
        program.stop()
    stream = row(result, f"{program.start['shards_in']}/shard_*.bin")
    assert stream.pid == program.start["streamer_pid"]
    assert stream.request_bytes == 4 * MIB
    assert stream.reread_pct == pytest.approx(0, abs=2)
    assert stream.one_pass_pct == pytest.approx(100, abs=2)
    hot = row(result, program.start["hot"])
    assert hot.advice == "buffered"
    assert hot.reason in ("reread", "evicted_before_reread")
    assert hot.reread_pct > 50
    # tried where the files are, with what was done there
    status = os.stat(disk)
    here = [t for t in result.data.trials if t.dev == f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"]
    assert {t.filesystem for t in here} == {"ext4"}
    assert "read" in {t.operation for t in here}
    assert not list(disk.rglob(".whystall*"))
    (found,) = [f for f in result.findings if f.subject.path == stream.path]
    if stream.reason in ("faster_here", "less_cpu_here"):
        tried = max(
            (t for t in here if t.way == "direct" and t.request_bytes <= 4 * MIB), key=lambda t: t.request_bytes
        )
        assert stream.advice == "direct"
        assert (stream.basis, stream.ratio) == ("tried", tried.ratio)
        assert found.metrics["low_ratio"] <= found.metrics["ratio"] <= found.metrics["high_ratio"]
        assert [r.command for r in result.data.remedies if r.who.startswith(f"{stream.comm} (")] == [
            f"whystall hybrid-run --read-direct {stream.direct_bytes} -- COMMAND"
        ]
    else:  # noise, or a disk that is slower so: then nothing is claimed of direct I/O, only what giving back costs
        assert stream.advice in ("dontneed", "buffered")
        given_back = {t.ratio for t in here if t.way == "dontneed"}
        assert "ratio" not in found.metrics or (stream.advice == "dontneed" and stream.ratio in given_back)
    if stream.change:
        assert stream.spared_bytes_rate is None or stream.spared_bytes_rate > 0


def test_diagnose_tells_what_was_tried_beside_what_it_found(disk: Path, tmp_path: Path) -> None:
    from whystall.agent_server.diagnosis.params import DiagnoseParams

    with Running("cache_job.py", "--directory", disk, "--streamer", "self", "--stream-mib", 256) as program:
        program.until("step", 2)
        with App(tmp_path / "kb.db").closing() as app:
            found = anyio.run(
                lambda: app.diagnose(DiagnoseParams(pid=program.pid, duration=5, calibrate=True, symptom="slow steps"))
            )
        program.stop()
    looked = {tool for step in found.steps for tool in step.tools}
    if "page_cache" in looked:
        assert found.steps[-1].tools == ["hybrid_io_advise"]
        told = [f for f in found.findings if f.kind == "io.advice" and f.subject.pid == program.pid]
        assert told
        assert not {f.id for f in told} & set(found.chain)
    else:
        spots = {spot.code for coverage in found.coverage for spot in coverage.not_seen}
        assert "not_calibrated" in spots
