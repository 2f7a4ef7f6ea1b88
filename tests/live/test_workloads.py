"""The ground-truth programs do what their logs say: checked against the kernel's own counters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cgroups import Cgroup
from running import HERE, Running

# A program with commands of its own, such as a server and its clients, is no workload that waits to be started.
PROGRAMS = sorted(
    path.name
    for path in HERE.glob("*.py")
    if "argparse.ArgumentParser(" in (text := path.read_text()) and "add_subparsers" not in text
)


def threads(pid: int) -> dict[int, str]:
    """What each thread waits in: its system call number, or "running"."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        found[int(task.name)] = (task / "syscall").read_text().split()[0]
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_explains_itself(program: str) -> None:
    done = subprocess.run([sys.executable, str(HERE / program), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--wait" in done.stdout


def test_a_writer_waits_to_be_told_and_writes_what_it_logs(tmp_path: Path) -> None:
    options = ["--directory", tmp_path, "--count", 3, "--size-kib", 64, "--interval", 0]
    with Running("slow_writer.py", *options, wait=True) as program:
        assert list(tmp_path.iterdir()) == []
        program.go()
        program.wait()
    written = {Path(line["path"]): line["bytes"] for line in program.of("write")}
    assert written == {path: path.stat().st_size for path in tmp_path.iterdir()}
    assert len(written) == len(program.of("fsync")) == 3


def test_the_sleepers_threads_stay_blocked_all_along() -> None:
    with Running("sleeper.py", "--count", 2, "--sleep-s", 0.3) as program:
        tids = program.start["tids"]
        first = threads(program.pid)
        program.until("sleep")
        second = threads(program.pid)
        program.wait()
    assert first[tids["lock"]] == second[tids["lock"]] != "running"
    assert first[tids["pipe"]] == second[tids["pipe"]] != "running"
    assert first[tids["lock"]] != first[tids["pipe"]]
    assert all(line["latency_s"] >= 0.3 for line in program.of("sleep"))


def test_the_io_counters_direct_io_reaches_the_device(tmp_path: Path) -> None:
    size = 64 * 1024
    options = ["--path", tmp_path / "x", "--reads", 20, "--writes", 10, "--size", size]
    with Running("io_counter.py", *options, wait=True) as program:
        before = accounting(program.pid)
        program.go()
        program.until("read", 20)
        after = accounting(program.pid)
        program.wait()
    assert after["read_bytes"] - before["read_bytes"] == 20 * size
    assert after["write_bytes"] - before["write_bytes"] == 10 * size


def accounting(pid: int) -> dict[str, int]:
    """/proc/PID/io."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {key: int(value) for key, value in (line.split(": ") for line in lines)}


def test_metadata_calls_are_logged_in_order(tmp_path: Path) -> None:
    with Running("metadata.py", "--directory", tmp_path, "--count", 2, "--interval", 0) as program:
        events = [line["event"] for line in program.wait()]
    assert events == ["start", *["open", "stat", "truncate", "rename", "unlink"] * 2, "end"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["threads", "flock"])
def test_the_waiter_waits_while_the_holder_holds(mode: str) -> None:
    with Running("lock_fight.py", "--mode", mode, "--count", 3, "--hold-s", 0.1) as program:
        program.wait()
    holds = [(line["start_mono_ns"], line["end_mono_ns"]) for line in program.of("hold") if line["role"] == "holder"]
    waits = [line for line in program.of("wait") if line["role"] == "waiter" and line["latency_s"] > 0.05]
    assert len(holds) == 3
    assert len(waits) >= 2
    for line in waits:
        assert any(start < line["end_mono_ns"] and line["start_mono_ns"] < end for start, end in holds)


def test_a_quota_limits_the_spinners_cpu_time() -> None:
    with Cgroup("cpu") as group:
        group.limit_cpus(0.25)
        with Running("spinner.py", "--processes", 1, "--duration", 2, wrap=group.command) as program:
            program.wait()
        (child,) = program.of("child")
        assert child["user_s"] + child["system_s"] < 0.35 * 2
        assert group.stat("cpu.stat")["nr_throttled"] > 5
        path = group.path
    assert not path.exists()


def test_the_reclaimer_reads_the_same_pages_again() -> None:
    with Running("reclaimer.py", "--count", 3, "--directory", "/var/tmp") as program:
        program.wait()
    (end,) = program.of("end")
    assert end["limit_hits"] > 0
    assert end["refaults"] > 2 * 0.5 * program.start["file_mib"] * 256
    assert not Path(program.start["cgroup_path"]).exists()


def test_fuse_passes_data_through_and_delays_what_it_was_told(tmp_path: Path) -> None:
    backing, mount = tmp_path / "backing", tmp_path / "mount"
    backing.mkdir()
    mount.mkdir()
    delays = ["--delay", "fsync=0.2", "--delay", "write=0.05"]
    with Running("slow_fuse.py", "--backing", backing, "--mount", mount, *delays) as served:
        with Running("slow_writer.py", "--directory", mount, "--count", 2, "--size-kib", 1024) as writer:
            writer.wait()
        (mount / "data_0.bin").rename(mount / "renamed")
        (mount / "data_1.bin").unlink()
        assert (mount / "renamed").read_bytes() == (backing / "renamed").read_bytes()
        assert os.listdir(backing) == ["renamed"]
        with pytest.raises(FileNotFoundError):
            (mount / "data_1.bin").stat()
        served.stop()
    assert not os.path.ismount(mount)
    requests = [line for line in served.of("request") if line["op"] == "fsync"]
    for request, suffered in zip(requests, writer.of("fsync"), strict=True):
        assert request["latency_s"] >= 0.2
        assert suffered["start_mono_ns"] < request["start_mono_ns"] < request["end_mono_ns"] < suffered["end_mono_ns"]
    assert all(line["latency_s"] >= 0.05 for line in writer.of("write"))
