"""Two engines at the same time beside one injected slow write: file, process and latency are the same, and the truth's.

The programs of the ``bcc`` engine are compiled on the kernel that runs, against its own headers; where there are none,
as on a host whose distribution packs none, nothing can be compared.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from running import Running, file_server

from whystall.tools.collect.bcc import headers
from whystall.tools.collect.bcc.own_program import OwnProgram
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.options import SwitchOptions, SyscallOptions
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    from kernels.conftest import Matrix

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or headers.problem() is not None, reason="root and the running kernel's headers are needed"
)

SLOW_S = 0.4
WRITES = 3
TOLERANCE_NS = 20_000_000
"""Both hook the same instants; what lies between is their own code, twenty times slower under emulation."""
READY_S = 240.0
WANTED = {
    "syscalls": SyscallOptions(min_ns=100_000_000),
    "switches": SwitchOptions(min_ns=100_000_000),
    "run_queue": Options(),
    "interrupts": Options(),
}


@pytest.fixture(scope="module")
def writing() -> Iterator[Running]:
    """A program that waits to write slowly."""
    with (
        file_server(f"write={SLOW_S}") as (_, slow),
        Running(Path(__file__).with_name("slow_writer.py"), "--path", slow / "shard.bin", wait=True) as program,
    ):
        yield program


@pytest.fixture(scope="module")
def captures(writing: Running) -> tuple[dict[str, Capture], dict[str, Capture]]:
    """What both engines saw of the same writes: ebpf, bcc."""
    target = Target(everything=False, pid=writing.pid, pids=[writing.pid])
    ebpf, bcc = EbpfEngine(), OwnProgram()
    try:
        bcc.load(WANTED, target)
        ebpf.load(WANTED, target)
        bcc.wait_loaded(time.monotonic() + READY_S)
        bcc.start()
        ebpf.start()
        writing.go()
        while len(writing.of("write")) < WRITES:
            time.sleep(0.05)
            ebpf.poll()
            bcc.poll()
        ebpf.stop()
        bcc.stop()
        seen = ebpf.read(), bcc.read()
        writing.stop()
        return seen
    finally:
        ebpf.close()
        bcc.close()


def slow_writes(capture: Capture, truth: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ended calls of a capture, with the path of their file, that lie within what the program logged."""
    files = {row["file"]: row for row in capture.tables["files"].iter_rows(named=True)}
    rows = [row for row in capture.tables["calls"].iter_rows(named=True) if row["syscall"] == "pwrite64"]
    ended = [{**row, "path": files[row["file"]]["path"]} for row in rows if not row["in_flight"]]
    return [
        row
        for row in sorted(ended, key=lambda row: row["start_ns"])
        if any(line["start_mono_ns"] <= row["start_ns"] and row["end_ns"] <= line["end_mono_ns"] for line in truth)
    ]


def test_both_tell_the_same_slow_write(
    writing: Running, captures: tuple[dict[str, Capture], dict[str, Capture]], matrix: Matrix
) -> None:
    ebpf, bcc = captures
    for capture in (ebpf["syscalls"], bcc["syscalls"]):
        assert (capture.proven, capture.lost) == (True, 0)
    truth = writing.of("write")[:WRITES]  # of a later one the two may see different parts: they end one after the other
    theirs, ours = slow_writes(ebpf["syscalls"], truth), slow_writes(bcc["syscalls"], truth)
    assert len(theirs) == len(ours) == WRITES
    same = ("path", "pid", "tid", "comm", "syscall", "fd", "asked", "returned", "offset", "direct")
    assert [[row[name] for name in same] for row in theirs] == [[row[name] for name in same] for row in ours]
    assert {(row["path"], row["pid"]) for row in ours} == {(truth[0]["path"], writing.pid)}
    apart = []
    for one, other in zip(theirs, ours, strict=True):
        latency, second = (row["end_ns"] - row["start_ns"] for row in (one, other))
        assert second >= SLOW_S * 1e9
        apart.append(abs(latency - second))
        waited, said = (row["sleep_ns"] + row["blocked_ns"] for row in (one, other))
        assert said >= 0.9 * SLOW_S * 1e9
        assert abs(waited - said) <= 0.1 * SLOW_S * 1e9
    assert statistics.median(apart) <= TOLERANCE_NS  # between two hooks a guest's CPU may itself be taken away
    matrix.saw("root", "fileslower", {"syscalls": "bcc"}, [code for code, _ in bcc["syscalls"].not_seen])


def test_both_tell_where_it_waits(writing: Running, captures: tuple[dict[str, Capture], dict[str, Capture]]) -> None:
    found = []
    for capture in (engine["switches"] for engine in captures):
        assert (capture.proven, capture.lost) == (True, 0)
        stacks = {row["stack"]: row["frames"] for row in capture.tables["stacks"].iter_rows(named=True)}
        files = {row["file"]: row["path"] for row in capture.tables["files"].iter_rows(named=True)}
        rows = capture.tables["segments"].to_dicts()
        writes = [row for row in rows if row["syscall"] == "pwrite64" and not row["open"]]
        assert {files[row["file"]] for row in writes} == {writing.of("write")[0]["path"]}
        assert all("fuse_simple_request" in " ".join(stacks[row["kstack"]]) for row in writes)
        (waits,) = [row for row in rows if row["tid"] == writing.start["waits"]]
        assert (waits["syscall"], waits["open"], waits["seeded"], waits["pid"]) == ("read", True, True, writing.pid)
        assert any("pipe_read" in frame for frame in stacks[waits["kstack"]])
        found.append(
            [(row["tid"], row["state"], row["syscall"]) for row in sorted(writes, key=lambda r: r["start_ns"])]
        )
    assert found[0][-len(found[1]) :] == found[1][-len(found[0]) :]


def test_both_count_waits_and_interrupts(captures: tuple[dict[str, Capture], dict[str, Capture]]) -> None:
    ebpf, bcc = captures
    for name in ("run_queue", "interrupts"):
        assert bcc[name].proven
        assert ebpf[name].proven
    softirqs = [
        {row["name"] for row in engine["interrupts"].tables["totals"].iter_rows(named=True) if row["kind"] == "softirq"}
        for engine in captures
    ]
    assert "TIMER" in softirqs[0] & softirqs[1]
    counts = [engine["run_queue"].tables["totals"]["count"].sum() for engine in captures]
    assert min(counts) >= WRITES
    assert counts[1] >= counts[0] - 2  # it starts earlier and stops later


def test_all_that_the_own_program_serves_loads_at_once_for_the_whole_host(writing: Running, tmp_path: Path) -> None:
    """This kernel's verifier takes every program of ours, with no process to look for."""
    program = OwnProgram()
    try:
        program.load({name: Options() for name in sorted(program.serves)}, Target(everything=True))
        program.wait_loaded(time.monotonic() + READY_S)
        program.start()
        (tmp_path / "touched").write_bytes(bytes(8192))
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            time.sleep(0.05)
            program.poll()
        program.stop()
        captures = program.read()
    finally:
        program.close()
    assert set(captures) == set(program.serves)
    assert {name: capture.proven for name, capture in captures.items()} == dict.fromkeys(captures, True)


def test_without_btf_the_answer_comes_from_bcc(tmp_path: Path, matrix: Matrix) -> None:
    """As a user would see it: type information hidden, nothing said about engines."""
    if shutil.which("unshare") is None:
        pytest.fail("unshare(1) is needed")
    with (
        file_server(f"write={SLOW_S}") as (_, slow),
        Running(Path(__file__).with_name("slow_writer.py"), "--path", slow / "shard.bin") as program,
    ):
        words = ["run", "fileslower", "--pid", str(program.pid), "--duration", "3", "--json"]
        hidden = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
        argv = ["unshare", "-m", "sh", "-c", hidden, "sh", sys.executable, "-m", "whystall.agent_server"]
        done = subprocess.run(
            argv + words,
            env={**os.environ, "WHYSTALL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (calls,) = [one for one in result["coverage"]["collectors"] if one["name"] == "syscalls"]
    assert (calls["engine"], calls["proven"], calls["lost"]) == ("bcc", True, 0)
    assert "BTF" in calls["why"]
    events = [event for event in result["data"]["events"] if not event["in_flight"]]
    assert {(event["pid"], event["path"]) for event in events} == {(program.pid, str(slow / "shard.bin"))}
    assert all(event["latency_ms"] >= SLOW_S * 1e3 for event in events[:1])
    matrix.saw("root", "fileslower", {"syscalls": "bcc"}, [spot["code"] for spot in result["coverage"]["not_seen"]])
