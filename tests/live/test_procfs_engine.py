"""The procfs engine against programs that log what they did: it may miss, but not claim more than was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
from running import HERE, Running
from slow_disk import SlowDisk

from whystall.tools.collect.options import SampleOptions, SwitchOptions
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import observe

MS = 1_000_000
NOBODY = 65534
# Two periods of 20 ms are lost by design; on a busy machine samples come late.
LOST_MS = 150


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory that `nobody` can write too: pytest's own is closed to others."""
    path = Path(tempfile.mkdtemp(prefix="whystall-test-"))
    os.chown(path, NOBODY, NOBODY)
    monkeypatch.setenv("WHYSTALL_HOME", str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    with SlowDisk(write_mib_s=20, size_mib=128) as made:
        os.chown(made.path, NOBODY, NOBODY)
        yield made


def watch(pid: int | None, duration: float = 2.0, *collectors: str) -> Recording:
    """Observe with the procfs engine alone."""
    needs = [Need(name) for name in collectors or ("syscalls", "switches")]
    target = resolve(TargetParams(pid=pid))
    return anyio.run(lambda: observe(needs, target, duration, [ProcfsEngine]))


def rows(recording: Recording, table: str) -> list[dict[str, Any]]:
    return recording.table(table).rows(named=True)


def paths(recording: Recording) -> dict[int, str]:
    return {r["file"]: r["path"] for r in rows(recording, "syscalls.files")}


def codes(recording: Recording, collector: str = "syscalls") -> dict[str, str]:
    return {spot.code: spot.detail for spot in recording.manifest.collectors[collector].not_seen}


def test_a_thread_blocked_all_along_is_an_open_call_with_its_descriptor() -> None:
    with Running("sleeper.py", "--count", 100, "--sleep-s", 0.5) as program:
        time.sleep(0.3)  # until its threads have reached what they wait in
        recording = watch(program.pid)
        tids = program.start["tids"]
        descriptors = {int(f.name): os.readlink(f) for f in Path(f"/proc/{program.pid}/fd").iterdir()}
        fd = min(n for n, link in descriptors.items() if n > 2 and link.startswith("pipe:"))
    calls = {r["tid"]: r for r in rows(recording, "syscalls.calls") if r["in_flight"]}
    pipe, lock = calls[tids["pipe"]], calls[tids["lock"]]
    assert (pipe["syscall"], pipe["fd"], pipe["file"], pipe["asked"]) == ("read", fd, -1, 1)
    assert lock["syscall"] == "futex"
    for call in (pipe, lock):
        assert call["end_ns"] - call["start_ns"] >= 0.95 * recording.manifest.window_ns
        assert call["sleep_ns"] >= 0.95 * (call["end_ns"] - call["start_ns"])
    waits = {r["tid"]: r for r in rows(recording, "switches.segments") if r["open"]}
    assert (waits[tids["pipe"]]["state"], waits[tids["pipe"]]["seeded"]) == ("S", True)
    assert waits[tids["lock"]]["lock"] > 0
    stacks = {r["stack"]: r["frames"] for r in rows(recording, "switches.stacks")}
    assert any("pipe_read" in frame for frame in stacks[waits[tids["pipe"]]["kstack"]])
    assert "sampled" in codes(recording)
    assert recording.manifest.collectors["syscalls"].proven


def claimed_within(recording: Recording, logged: list[dict[str, Any]], call: dict[str, Any]) -> dict[str, Any]:
    """The logged act that contains a claimed call; the claim may lack at most `LOST_MS` of it."""
    start, end = (call[name] + recording.manifest.start_ns for name in ("start_ns", "end_ns"))
    slack = MS  # the program reads its clock around the system call, we read ours before we look
    for act in logged:
        if act["start_mono_ns"] - slack <= start and end <= act["end_mono_ns"] + slack:
            return act
    raise AssertionError(f"claimed what never happened: {call}")


def test_slow_syncs_are_named_by_path_and_never_longer_than_they_were(disk: SlowDisk) -> None:
    arguments = ["--directory", disk.path, "--count", 6, "--size-kib", 6 * 1024, "--interval", 0.2]
    with Running("slow_writer.py", *arguments, wait=True, wrap=disk.command) as program:
        program.go()
        recording = watch(program.pid, 2.5)
        program.wait()
    files = paths(recording)
    syncs = [r for r in rows(recording, "syscalls.calls") if r["syscall"] == "fsync" and not r["in_flight"]]
    assert len(syncs) >= 3
    for call in syncs:
        act = claimed_within(recording, program.of("fsync"), call)
        assert files[call["file"]] == act["path"]
        whole = call["start_ns"] > 0  # one that began before the window is cut
        assert not whole or call["end_ns"] - call["start_ns"] >= act["latency_s"] * 1e9 - LOST_MS * MS
        assert call["blocked_ns"] > 0.5 * (call["end_ns"] - call["start_ns"])
    blocked = [r for r in rows(recording, "switches.segments") if r["state"] == "D"]
    assert {r["syscall"] for r in blocked} <= {"fsync", "write", "openat"}


def test_a_loop_of_quick_syncs_is_not_one_slow_sync(disk: SlowDisk) -> None:
    disk.limit(write_mib_s=None)
    arguments = ["--directory", disk.path, "--count", 4000, "--size-kib", 4, "--interval", 0, "--one-file"]
    with Running("slow_writer.py", *arguments, wait=True) as program:
        program.go()
        recording = watch(program.pid, 1.5)
        program.stop()
    acts = program.of("fsync") + program.of("write")
    assert len(acts) > 50
    for call in rows(recording, "syscalls.calls"):
        claimed_within(recording, acts, call)


# Preloads everything, then becomes nobody for good. Without PR_SET_DUMPABLE such a process's /proc stays root's.
_DROP = f"""
import argparse, ctypes, os, sys
argparse.ArgumentParser(description="").parse_args([])
sys.path.insert(0, {str(HERE)!r})
def drop():
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
"""
_WRITER = _DROP + "import slow_writer\ndrop()\nslow_writer.main()\n"
_OBSERVER = (
    _DROP
    + """
import anyio, json, time
from whystall.tools.collect.options import SampleOptions, SwitchOptions
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.collector import Need
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import observe
needs = [Need("syscalls"), Need("switches"), Need("proc")]
def watch(pid, seconds):
    return anyio.run(lambda: observe(needs, resolve(TargetParams(pid=pid)), seconds, [ProcfsEngine]))
os.environ["WHYSTALL_HOME"], home = sys.argv[3], os.environ["WHYSTALL_HOME"]
watch(os.getpid(), 0.1)
os.environ["WHYSTALL_HOME"] = home
drop()
print("ready", flush=True)
sys.stdin.readline()
recording = watch(int(sys.argv[1]), float(sys.argv[2]))
tables = {name: frame.to_dicts() for name, frame in recording.tables().items() if not name.startswith("proc.")}
print(json.dumps({"uid": os.geteuid(), "manifest": recording.manifest.model_dump(), "tables": tables}))
"""
)


def watch_as_nobody(pid: int, seconds: float, root_home: Path, ready: Any = lambda: None) -> dict[str, Any]:
    """What an unprivileged observer sees; `ready` is called when it is about to look."""
    argv = [sys.executable, "-c", _OBSERVER, str(pid), str(seconds), str(root_home)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as observer:
        assert observer.stdin is not None
        assert observer.stdout is not None
        assert observer.stdout.readline() == "ready\n"
        ready()
        out, _ = observer.communicate("\n", timeout=60)
    assert observer.returncode == 0
    seen: dict[str, Any] = json.loads(out)
    assert seen["uid"] == NOBODY
    return seen


def test_nobody_sees_nobodys_slow_sync_by_path(disk: SlowDisk, tmp_path: Path) -> None:
    script = tmp_path / "writer.py"
    script.write_text(_WRITER)
    arguments = ["--directory", disk.path, "--count", 6, "--size-kib", 6 * 1024, "--interval", 0.2]
    with Running(script, *arguments, wait=True, wrap=disk.command) as program:
        assert Path(f"/proc/{program.pid}").stat().st_uid == NOBODY
        seen = watch_as_nobody(program.pid, 2.5, tmp_path, program.go)
        program.wait()
    names = {r["file"]: r["path"] for r in seen["tables"]["syscalls.files"]}
    syncs = [r for r in seen["tables"]["syscalls.calls"] if r["syscall"] == "fsync"]
    assert len(syncs) >= 3
    assert {names[r["file"]] for r in syncs} <= {act["path"] for act in program.of("fsync")}
    assert seen["manifest"]["collectors"]["syscalls"]["proven"]
    for name in ("syscalls", "switches"):
        spots = seen["manifest"]["collectors"][name]["not_seen"]
        assert {spot["code"]: spot["detail"] for spot in spots}.keys() == {"sampled"}


def test_nobody_cannot_name_roots_calls_and_says_so(tmp_path: Path) -> None:
    with Running("sleeper.py", "--count", 100, "--sleep-s", 0.5) as program:
        seen = watch_as_nobody(program.pid, 1.0, tmp_path)
    assert seen["tables"]["syscalls.calls"] == []
    waits = seen["tables"]["switches.segments"]
    assert {r["tid"] for r in waits} == set(program.start["tids"].values())  # states are for everyone to see
    waiting = [r for r in waits if r["state"] != "R"]
    assert {(r["state"], r["syscall"], r["file"]) for r in waiting} == {("S", "", -1)}
    for name in ("syscalls", "switches"):
        spots = seen["manifest"]["collectors"][name]["not_seen"]
        assert {"code": "not_permitted", "detail": "syscall of 1 processes"} in spots


def test_without_a_target_only_uninterruptible_threads_are_followed(disk: SlowDisk) -> None:
    arguments = ["--directory", disk.path, "--count", 20, "--size-kib", 16 * 1024, "--interval", 0.05]
    with Running("slow_writer.py", *arguments, wrap=disk.command) as program:
        recording = watch(None, 3.0)
        program.stop()
    calls = [r for r in rows(recording, "syscalls.calls") if r["pid"] == program.pid]
    assert calls
    files = paths(recording)
    for call in calls:
        act = claimed_within(recording, program.of("fsync") + program.of("write"), call)
        assert files[call["file"]] == act["path"]
    assert {r["state"] for r in rows(recording, "switches.segments")} <= {"D"}


def test_block_totals_count_the_requests_that_were_made(disk: SlowDisk) -> None:
    arguments = ["--path", disk.path / "x", "--reads", 40, "--writes", 10, "--size", 4096]
    with Running("io_counter.py", *arguments, wait=True) as program:
        begin = threading.Timer(0.3, program.go)
        begin.start()
        recording = watch(None, 2.0, "block")
        program.wait()
        begin.join()
    totals = {r["operation"]: r for r in rows(recording, "block.totals") if r["device"] == Path(disk.device).name}
    assert (totals["read"]["count"], totals["read"]["bytes"]) == (40, 40 * 4096)
    assert totals["write"]["count"] >= 10  # and the journal's
    assert rows(recording, "block.latency") == []
    assert codes(recording, "block").keys() == {"sampled"}


_LINES = """
import threading, time
def compute():
    while True:
        sum(n * n for n in range(20_000))  # computes here
def doze():
    while True:
        time.sleep(0.25)  # sleeps here
threading.Thread(target=compute, daemon=True).start()
threading.Thread(target=doze, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


def test_the_lines_where_threads_compute_and_sleep_are_read_from_memory(tmp_path: Path) -> None:
    script = tmp_path / "lines.py"
    script.write_text(_LINES)
    lines = {text: number for number, line in enumerate(_LINES.splitlines(), 1) for text in line.split("  # ")[1:]}
    needs = [Need("switches", SwitchOptions(python=True)), Need("samples", SampleOptions(python=True))]
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        target = resolve(TargetParams(pid=program.pid))
        recording = anyio.run(lambda: observe(needs, target, 2.0, [ProcfsEngine]))
        program.kill()
    window = recording.manifest.window_ns
    stacks = {row["stack"]: row["frames"] for row in rows(recording, "switches.stacks")}
    asleep: dict[str, int] = {}
    for wait in rows(recording, "switches.segments"):
        if wait["ustack"] >= 0 and wait["syscall"] == "clock_nanosleep" and 0 <= wait["asked_ns"] <= 250 * MS:
            frame = stacks[wait["ustack"]][0]
            asleep[frame] = asleep.get(frame, 0) + wait["end_ns"] - wait["start_ns"]
    assert asleep.get(f"doze (lines.py:{lines['sleeps here']})", 0) >= 0.7 * window
    samples = recording.table("samples.samples").join(recording.table("samples.stacks"), on="stack")
    samples = samples.join(recording.table("samples.frames"), on="frame")
    of_line = samples.filter(pl.col("line") == lines["computes here"])["weight"].sum()
    assert of_line >= 0.9 * samples["weight"].sum() > 0
    assert {"sampled"} <= codes(recording, "samples").keys()
