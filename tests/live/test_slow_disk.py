"""The slow disk is as slow as asked, from the writer's own log, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import SIMULATOR, Running
from slow_disk import PREFIX, SlowDisk, SlowDiskError, mounts

COMMAND = SIMULATOR.with_name("slow_disk.py")
MIB = 1 << 20


def traces(pid: int) -> list[str]:
    """Mounts, cgroups, loop devices, images and directories of slow disks made by one process."""
    name = f"{PREFIX}-{pid}-"
    found = [str(mount.path) for mount in mounts() if name in mount.path.name]
    found += [str(m.path / p) for m in mounts() if m.kind.startswith("cgroup") for p in m.path.glob(f"{name}*")]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        found += [text for text in [backing.read_text().strip()] if name in text]
    for place in (Path("/dev/shm"), Path("/tmp")):
        found += [str(path) for path in place.glob(f"{name}*")]
    return found


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    with SlowDisk(write_mib_s=20, size_mib=128) as made:
        yield made
    assert traces(os.getpid()) == []


@pytest.mark.parametrize("direct", [False, True])
def test_writes_are_throttled_to_the_rate_that_was_asked(disk: SlowDisk, direct: bool) -> None:
    options = ["--size-mib", 10, "--every", 2, "--steps", 8, "--step-ms", 20]
    with Running(
        SIMULATOR, "--directory", disk.path, *options, *(["--direct"] if direct else []), wrap=disk.command
    ) as program:
        program.wait()
        checkpoints = program.of("checkpoint")
    assert len(checkpoints) == 4
    waited = "write_s" if direct else "fsync_s"  # a buffered write fills the page cache, and fsync waits
    typical = statistics.median(line[waited] for line in checkpoints)
    assert typical == pytest.approx(0.5, rel=0.25)
    assert statistics.median(line["total_s"] for line in checkpoints) < 1.6 * typical


def test_reads_are_throttled_too(disk: SlowDisk) -> None:
    disk.limit(write_mib_s=None, read_mib_s=10)
    arguments = ["--path", disk.path / "data", "--reads", 5, "--writes", 5, "--size", MIB]
    with Running("io_counter.py", *arguments, wrap=disk.command) as program:
        program.wait()
        reads, writes = program.of("read"), program.of("write")
    assert sum(line["latency_s"] for line in reads) == pytest.approx(0.5, rel=0.4)
    assert sum(line["latency_s"] for line in writes) < 0.25


def test_a_running_process_can_be_enrolled_and_released_from_the_limit(disk: SlowDisk) -> None:
    options = ["--size-mib", 4, "--every", 1, "--step-ms", 50]
    with Running(SIMULATOR, "--directory", disk.path, *options) as program:
        program.until("checkpoint", 2)
        disk.enroll(program.pid)
        program.until("checkpoint", 2)  # the first may have begun before
        slow = program.until("checkpoint")["total_s"]
        disk.limit(write_mib_s=None)
        program.until("checkpoint", 2)
        fast = program.until("checkpoint")["total_s"]
        program.stop()
    assert slow == pytest.approx(0.2, rel=0.5)
    assert fast < slow / 2


def test_background_checkpoint_on_a_slow_disk_stalls_no_step(disk: SlowDisk) -> None:
    options = ["--background", "--every", 5, "--size-mib", 10, "--steps", 60, "--step-ms", 20]
    with Running(SIMULATOR, "--directory", disk.path, *options, wrap=disk.command) as program:
        program.wait()
        steps, (slow, *_), (end,) = program.of("step"), program.of("checkpoint"), program.of("end")
        skipped = program.of("skipped")
    assert slow["total_s"] > 0.4
    assert max(line["stall_s"] for line in steps) < slow["total_s"] / 5
    during = [s for s in steps if slow["start_mono_ns"] < s["t_mono_ns"] < slow["end_mono_ns"]]
    assert len(during) >= 5
    # A checkpoint that was due meanwhile was left out, not queued up.
    assert end["skipped"] == len(skipped) > 0
    assert end["checkpoints"] + end["skipped"] == 12


def test_an_exception_removes_everything_and_ends_who_still_writes() -> None:
    def fail_while_writing() -> None:
        nonlocal writer
        with SlowDisk(write_mib_s=5, size_mib=64) as disk:
            writer = subprocess.Popen(
                disk.command(["dd", "if=/dev/zero", f"of={disk.path}/x", "bs=1M", "count=40", "conv=fsync"])
            )
            time.sleep(0.5)
            raise RuntimeError("boom")

    writer: subprocess.Popen[bytes] | None = None
    with pytest.raises(RuntimeError, match="boom"):
        fail_while_writing()
    assert writer is not None
    assert writer.wait(5) == -signal.SIGTERM
    assert traces(os.getpid()) == []


def test_its_own_process_may_be_enrolled() -> None:
    with SlowDisk(write_mib_s=5, size_mib=64) as disk:
        disk.enroll(os.getpid())
    assert traces(os.getpid()) == []


def test_sigterm_removes_everything() -> None:
    with simulator_on_slow_disk() as (maker, path):
        assert path in map(str, (mount.path for mount in mounts()))
        maker.terminate()
        assert maker.wait(30) == 128 + signal.SIGTERM
        assert traces(maker.pid) == []


def test_the_next_start_removes_what_a_killed_maker_left_but_nothing_of_a_living_one() -> None:
    with simulator_on_slow_disk() as (maker, path), SlowDisk(write_mib_s=None, size_mib=32) as living:
        maker.kill()
        maker.wait()
        assert path in traces(maker.pid)
        deadline = time.monotonic() + 20
        while traces(maker.pid) and time.monotonic() < deadline:  # another start may hold the lock of the reaper
            with SlowDisk(write_mib_s=None, size_mib=32):
                pass
        assert traces(maker.pid) == []
        (living.path / "file").write_text("still there")


def test_bad_requests_are_one_line() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(COMMAND), *words], capture_output=True, text=True, check=False)

    assert run("--size-mib", "64", "--", "false").returncode == 1
    for words in (["--size-mib", "1", "--", "true"], ["--directory", "/nonexistent", "--", "true"], []):
        done = run(*words)
        assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    with pytest.raises(SlowDiskError, match="with block"):
        _ = SlowDisk(write_mib_s=1).path


class simulator_on_slow_disk:
    """The command, running the simulator; yields its process and the slow directory."""

    def __enter__(self) -> tuple[subprocess.Popen[str], str]:
        inner = [sys.executable, str(SIMULATOR), "--directory", "{dir}", "--size-mib", "4"]
        argv = [sys.executable, str(COMMAND), "--write-mib-s", "5", "--size-mib", "64", "--", *inner]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if '"checkpoint"' in line:
                return self.process, line.split('"path":"')[1].split("/chk_")[0]
        raise AssertionError("no checkpoint")

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
