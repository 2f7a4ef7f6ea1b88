"""The simulator's log adds up, and its variants stall whom they say."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import SIMULATOR, Event, Running

pytestmark = pytest.mark.thorough

MIB = 1 << 20
STEP = {"event", "step", "t_mono_ns", "compute_s", "random_s", "stall_s", "total_s"}
CHECKPOINT = {
    "event", "step", "path", "bytes", "open_s", "write_s", "fsync_s", "unlink_s", "total_s",
    "start_mono_ns", "end_mono_ns", "thread", "tid",
}  # fmt: skip


def simulate(directory: Path, *options: object) -> dict[str, list[Event]]:
    """Run to the end; the log's lines by event."""
    with Running(SIMULATOR, "--directory", directory, "--step-ms", 20, *options) as program:
        program.wait()
        names = {line["event"] for line in program.events}
        return {name: program.of(name) for name in names}


def test_log_has_every_step_and_checkpoint_and_adds_up(tmp_path: Path) -> None:
    log = simulate(tmp_path, "--steps", 12, "--every", 4, "--size-mib", 3)
    assert [set(line) for line in log["step"]] == [STEP] * 12
    assert [set(line) for line in log["checkpoint"]] == [CHECKPOINT] * 3
    assert [line["step"] for line in log["checkpoint"]] == [4, 8, 12]
    assert {line["bytes"] for line in log["checkpoint"]} == {3 * MIB}
    steps = {line["step"]: line for line in log["step"]}
    for line in steps.values():
        parts = line["compute_s"] + line["random_s"] + line["stall_s"]
        assert 0 <= line["total_s"] - parts < 0.01
        assert (line["stall_s"] > 0) == (line["step"] % 4 == 0)
    for line in log["checkpoint"]:
        span = (line["end_mono_ns"] - line["start_mono_ns"]) / 1e9
        assert line["total_s"] == pytest.approx(span, abs=1e-6)
        assert line["open_s"] + line["write_s"] + line["fsync_s"] <= line["total_s"] + 1e-5
        step = steps[line["step"]]
        assert line["total_s"] + line["unlink_s"] <= step["stall_s"] + 1e-5
        begins = step["t_mono_ns"]
        assert begins < line["start_mono_ns"] < line["end_mono_ns"] < begins + (step["total_s"] + 0.01) * 1e9
        assert line["thread"] == "main"
        assert line["tid"] == log["start"][0]["tid"]
    (end,) = log["end"]
    assert (end["steps"], end["checkpoints"], end["reason"]) == (12, 3, "steps")
    assert end["stall_s"] == pytest.approx(sum(line["stall_s"] for line in log["step"]), abs=1e-4)


def test_keeps_the_newest_checkpoints_whole_and_different(tmp_path: Path) -> None:
    simulate(tmp_path, "--steps", 5, "--every", 1, "--size-mib", 1, "--keep", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chk_4.bin", "chk_5.bin"]
    fourth, fifth = ((tmp_path / f"chk_{step}.bin").read_bytes() for step in (4, 5))
    assert len(fourth) == len(fifth) == MIB
    assert fourth != fifth


def test_direct_writes_pass_the_page_cache(tmp_path: Path) -> None:
    with Running(SIMULATOR, "--directory", tmp_path, "--direct", "--every", 1, "--size-mib", 1) as program:
        program.until("checkpoint", 3)
        written = Path(f"/proc/{program.pid}/io").read_text()
        events = program.stop()
    assert len([line for line in events if line["event"] == "checkpoint"]) >= 3
    assert int(written.split("write_bytes: ")[1].split()[0]) >= 3 * MIB


def test_background_checkpoint_is_written_by_another_thread(tmp_path: Path) -> None:
    log = simulate(tmp_path, "--background", "--every", 5, "--size-mib", 8, "--steps", 15)
    assert [line["thread"] for line in log["checkpoint"]] == ["background"] * 3
    assert log["start"][0]["tid"] not in {line["tid"] for line in log["checkpoint"]}
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [8 * MIB] * 2


def test_random_in_line_costs_the_step_kernel_cpu_time_before_the_write(tmp_path: Path) -> None:
    began = time.process_time()
    os.urandom(5 * 40 * MIB)
    alone = time.process_time() - began  # of the CPU: where others are busy, the same lasts longer and costs no more
    before = os.times().children_system
    log = simulate(tmp_path, "--random-in-line", "--no-fsync", "--every", 1, "--size-mib", 40, "--steps", 5)
    system = os.times().children_system - before
    assert statistics.median(line["random_s"] for line in log["step"]) > 0.01
    assert system > 0.5 * alone
    for line, checkpoint in zip(log["step"], log["checkpoint"], strict=True):
        assert checkpoint["start_mono_ns"] >= line["t_mono_ns"] + (line["compute_s"] + line["random_s"]) * 1e9 - 2000


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_after_the_step(tmp_path: Path, signum: signal.Signals) -> None:
    with Running(SIMULATOR, "--directory", tmp_path, "--every", 2, "--size-mib", 1) as program:
        program.until("step", 3)
        program.process.send_signal(signum)
        events = program.wait()
    assert events[-1]["event"] == "end"
    assert events[-1]["reason"] == signum.name
    assert events[-1]["steps"] == len([line for line in events if line["event"] == "step"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--directory", "/nonexistent"], "/nonexistent"),
        (["--directory", "/proc/self/status"], "Not a directory"),
        (["--directory", "/proc"], "/proc"),
        (["--every", "0"], "--every"),
        (["--size-mib", "-1"], "--size-mib"),
        (["--size-mib", "much"], "--size-mib"),
        (["--keep", "0"], "--keep"),
        (["--log", "/nonexistent/log"], "/nonexistent/log"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_one_line_and_status_2(options: list[str], word: str) -> None:
    done = subprocess.run([sys.executable, str(SIMULATOR), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert word in done.stderr


def test_full_disk_is_one_line_and_status_1(tmp_path: Path) -> None:
    argv = [sys.executable, str(SIMULATOR), "--directory", str(tmp_path), "--every", "1", "--size-mib", "2"]
    limited = ["/bin/sh", "-c", 'ulimit -f 1024; exec "$@"', "sh", *argv]  # blocks of 512 bytes: less than 2 MiB
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "checkpoint failed" in done.stderr
