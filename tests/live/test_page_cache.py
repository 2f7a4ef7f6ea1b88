"""The tool page_cache against programs that log what they did: who is named, with how much, and who is left alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cgroups import Cgroup
from dirty_disk import dirty_disk
from running import Running

from whystall.agent_server.app import App
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import ToolResult
from whystall.tools.contract.text import path_pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="tracing, cgroups and mounting need root")

MIB = 1 << 20
CLOSE = 0.02


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def mounted(ext4: Callable[[int], Path]) -> Path:
    """A file system of our own."""
    return ext4(1024)


@pytest.fixture
def disk(mounted: Path) -> Iterator[Path]:
    """A directory there, whose files go when the test is over."""
    with tempfile.TemporaryDirectory(dir=mounted) as place:
        yield Path(place)


def cold(path: Path, mib: int) -> Path:
    """A file of that size of which nothing is in the cache."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(b"x" * MIB)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@contextmanager
def limited(mib: int) -> Iterator[Cgroup]:
    """A memory cgroup with that limit, which outlives the program in it."""
    with Cgroup("memory") as group:
        group.limit_memory(mib * MIB)
        yield group


def reader(group: Cgroup, *steps: object) -> Running:
    """A program inside that uses files as `steps` say, when it is told to."""
    return Running("cache_reader.py", *steps, "--linger-s", 0.3, wait=True, wrap=group.command)


def look(program: Running, duration: float = 30, **arguments: Any) -> ToolResult[Any]:
    """Run the tool on `program`, which begins its work when the window is open; until it ends, if that is earlier."""

    async def observed() -> ToolResult[Any]:
        begun = False

        def progress(done: float, total: float, message: str) -> None:
            nonlocal begun
            if not begun:
                begun = True
                program.go()

        wanted = {"pid": program.pid, "duration": duration, "top": 50, **arguments}
        return await App().run_tool("page_cache", wanted, progress=progress)

    return anyio.run(observed)


def told(result: ToolResult[Any], kind: str, polarity: Polarity = Polarity.ABNORMAL) -> list[Finding]:
    return [f for f in result.findings if f.kind == kind and f.polarity is polarity]


def row(result: ToolResult[Any], pid: int, path: Path) -> Any:
    (found,) = [r for r in result.data.files if (r.pid, r.path) == (pid, str(path))]
    return found


def test_every_way_of_using_a_file_is_counted_and_nobody_is_accused(disk: Path) -> None:
    size = 16
    files = {name: cold(disk / f"{name}.bin", size) for name in ("once", "thrice", "mapped", "direct")}
    steps = [
        f"read:{files['once']}:256",
        f"read:{files['thrice']}:256:3",
        f"map:{files['mapped']}:2",
        f"direct:{files['direct']}:1024",
        f"write:{disk / 'written.bin'}:256:{size}",
    ]
    with limited(400) as group, reader(group, *steps) as program:
        result = look(program)
        program.wait()
    acts = {line["path"]: line for way in ("read", "map", "direct", "write") for line in program.of(way)}
    assert len(acts) == len(steps)  # the window held them all
    once, thrice, mapped = (row(result, program.pid, files[name]) for name in ("once", "thrice", "mapped"))
    direct, written = row(result, program.pid, files["direct"]), row(result, program.pid, disk / "written.bin")
    for seen in (once, thrice, mapped):
        assert seen.added_bytes == pytest.approx(size * MIB, rel=CLOSE)
        assert seen.added_bytes == pytest.approx(acts[seen.path]["device_bytes"], rel=CLOSE)
    for seen in (once, thrice):
        assert seen.accessed_bytes == pytest.approx(acts[seen.path]["bytes"], rel=CLOSE)
    assert once.hit_pct == pytest.approx(0, abs=2)
    assert thrice.hit_pct == pytest.approx(100 * 2 / 3, abs=2)
    assert once.one_pass_pct == pytest.approx(100, abs=2)
    assert thrice.one_pass_pct == pytest.approx(0, abs=2)
    assert (direct.direct_bytes, direct.added_bytes) == (acts[str(files["direct"])]["bytes"], 0)
    assert written.dirtied_bytes == pytest.approx(size * MIB, rel=CLOSE)
    assert written.written_back_bytes == pytest.approx(size * MIB, rel=CLOSE)  # it was synced
    assert (mapped.operations, written.operations, direct.operations) == ("mapped", "write", "direct")
    assert not [f for f in result.findings if f.polarity is Polarity.ABNORMAL and f.kind.startswith("cache.")]
    (limit,) = [c for c in result.data.cgroups if c.cgroup == group.name]
    assert limit.limit_bytes == 400 * MIB
    small = told(result, "cache.limit_small", Polarity.NORMAL)
    assert [f.subject.cgroup for f in small] == [group.name]


def test_a_stream_under_a_limit_is_named_and_so_is_whom_it_pushes_out(disk: Path) -> None:
    limit, hot_mib, shard = 112, 56, 96
    hot = cold(disk / "hot.bin", hot_mib)
    shards = [cold(disk / f"shard_{number}.bin", shard) for number in range(5)]
    steps = [f"read:{path}:1024" for path in shards]
    with limited(limit) as group, reader(group, *steps, "--hot", hot) as program:
        program.until("hot", 3)
        result = look(program)
        program.wait()
    streams = told(result, "cache.streaming")
    assert [(f.subject.path, f.subject.pid) for f in streams] == [(str(disk / "shard_*.bin"), program.pid)]
    assert streams[0].metrics["added_bytes"] == pytest.approx(sum(a["bytes"] for a in program.of("read")), rel=CLOSE)
    assert streams[0].metrics["one_pass_pct"] >= 98
    assert streams[0].attributes["files"] == "5"
    assert result.data.verdicts[0] == "streaming"
    assert not told(result, "cache.limit_small")
    # The window's span on the workload's clock is not known to it; turns wholly beside the stream are.
    first, last = program.of("read")[0]["start_mono_ns"], program.of("read")[-1]["end_mono_ns"]
    turns = [t for t in program.of("hot") if t["start_mono_ns"] >= first and t["end_mono_ns"] <= last]
    reread = sum(t["device_bytes"] for t in turns)
    victim = row(result, program.start["hot_pid"], hot)
    assert victim.added_bytes >= (1 - CLOSE) * reread
    pushed = [f for f in told(result, "cache.thrash") if f.subject.pid == program.start["hot_pid"]]
    if reread >= 3 * hot_mib * MIB:  # else the kernel protected it, as it tries to, and nobody was pushed out
        assert [f.attributes["reason"] for f in pushed] == ["pushed_out"]
        assert streams[0].attributes["reason"] == "others_refault"


def test_a_stream_with_room_is_no_fault(disk: Path) -> None:
    stream = cold(disk / "roomy.bin", 128)
    with limited(500) as group, reader(group, f"read:{stream}:1024") as program:
        result = look(program)
        program.wait()
    (found,) = told(result, "cache.streaming", Polarity.NORMAL)
    assert found.attributes["reason"] in ("free_memory", "no_harm")  # others of this host may reclaim
    assert found.metrics["added_bytes"] == pytest.approx(128 * MIB, rel=CLOSE)
    assert result.data.verdicts == ["healthy"], result.findings


def test_a_set_larger_than_its_limit_thrashes_and_the_limit_is_named(disk: Path) -> None:
    limit, size = 96, 160
    data = cold(disk / "set.bin", size)
    with limited(limit) as group, reader(group, f"read:{data}:256:6") as program:
        result = look(program)
        program.wait()
    (act,) = program.of("read")
    (found,) = told(result, "cache.thrash")
    assert (found.subject.path, found.subject.pid) == (str(data), program.pid)
    assert found.attributes["reason"] == "too_large_cgroup"
    assert found.metrics["added_bytes"] == pytest.approx(act["device_bytes"], rel=CLOSE)
    again = act["device_bytes"] - size * MIB  # the first time it was nowhere
    assert found.metrics["refault_pct"] == pytest.approx(100 * again / act["device_bytes"], abs=2)
    (small,) = told(result, "cache.limit_small")
    assert small.subject.cgroup == group.name
    assert small.metrics["limit_bytes"] == limit * MIB
    assert small.metrics["usage_bytes"] >= 0.9 * limit * MIB
    assert not told(result, "cache.streaming")
    assert {"thrash", "limit_small"} <= set(result.data.verdicts)


def test_writers_of_one_file_wait_for_its_lock_and_those_of_their_own_do_not(disk: Path) -> None:
    place = disk / "ranks"
    place.mkdir()
    with Running("shared_file_writers.py", "--directory", place, "--count", 150, wait=True) as program:
        result = look(program, duration=2)
        program.stop()
    (found,) = told(result, "file.lock_contention")
    assert (found.subject.path, found.subject.pid) == (str(place / "checkpoint.bin"), program.pid)
    assert 2 <= found.metrics["threads"] <= 4
    longest = max(line["latency_s"] for line in program.of("write"))
    assert found.metrics["max_ms"] <= 1.1 * longest * 1e3  # no wait is longer than the call it is a part of
    assert "lock_contention" in result.data.verdicts
    with Running("shared_file_writers.py", "--directory", place, "--own-files", wait=True) as program:
        result = look(program, duration=1)
        program.stop()
    assert not told(result, "file.lock_contention")
    assert told(result, "file.lock_contention", Polarity.NORMAL)


def test_a_throttled_writer_is_named_with_its_file() -> None:
    with ExitStack() as stack:
        try:
            slow = stack.enter_context(dirty_disk(write_mib_s=12, dirty_mib=8))
        except OSError as error:
            pytest.skip(f"this kernel cannot bound a device's dirty memory: {error}")
        checkpoints = path_pattern(str(slow.path / "ckpt_000.bin"))
        options = ("--size-mib", 24, "--steps-between", 1, "--step-ms", 20)
        program = stack.enter_context(Running("checkpoint_writer.py", "--directory", slow.path, *options, wait=True))
        result = look(program, duration=3)
        program.stop()
    (found,) = told(result, "writeback.throttled")
    assert found.subject.tid == program.pid
    assert path_pattern(found.attributes["example"]) == checkpoints
    assert found.metrics["total_ms"] <= sum(line["latency_s"] for line in program.of("checkpoint")) * 1.1e3
    assert "dirty_throttling" in result.data.verdicts
