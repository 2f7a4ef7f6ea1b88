"""Calls of communication libraries, observed in running ranks that log what they do, and in jobs on gloo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
import warm_command
from kernel_sessions import programs_of, wait_until_gone
from running import HERE, Running

from whystall.tools.collect.collective_engine import CollectiveEngine
from whystall.tools.ranks.collective_live.tool import Params, judge
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

WHYSTALL = str(Path(sys.executable).with_name("whystall"))
STEPS = 24
LATE_MS = 8.0
RANKS = 4
PAUSE_S = 0.03

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="uprobes need root")


class Rank:
    """A process of `enqueuing.py`."""

    def __init__(self, rank: int, library: Path) -> None:
        late = LATE_MS if rank == 1 else 0.0
        command = [sys.executable, HERE / "enqueuing.py", library, str(late)]
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.read()

    def write(self, word: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word)
        self.process.stdin.flush()

    def read(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.read(1)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    library = tmp_path / "libnccl.so.2"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "enqueuing.c"], check=True)
    with ExitStack() as stack:
        made = [Rank(rank, library) for rank in range(2)]
        for one in made:
            stack.enter_context(one.process)
            stack.callback(one.process.kill)
        yield made


def observed(pids: list[int], work: Any, seconds: float = 20) -> Recording:
    """What the collector records while `work` runs, which is called once."""
    done = []

    def stop() -> bool:
        if not done:
            work()
            done.append(True)
        return True

    target = Target(everything=False, pid=pids[0], pids=pids)
    return anyio.run(lambda: observe([Need("collectives")], target, seconds, [CollectiveEngine], stop=stop))


def test_calls_that_return_when_enqueued(ranks: list[Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))

    def work() -> None:
        for _ in range(STEPS):
            for one in ranks:
                one.write(b"s")
            for one in ranks:
                one.read()
        ranks[0].write(b"h")
        time.sleep(0.2)

    pids = [one.process.pid for one in ranks]
    recording = observed(pids, work)
    entry = recording.manifest.collectors["collectives"]
    assert (entry.engine, entry.proven, entry.lost) == ("ebpf", True, 0)
    assert [(spot.code, spot.detail) for spot in entry.not_seen] == [("collectives_enqueued", "nccl")]
    processes = recording.table("collectives.processes")
    assert dict(processes.select("pid", "rank").iter_rows()) == {pids[0]: 0, pids[1]: 1}
    calls = recording.table("collectives.calls")
    finished = calls.filter(~pl.col("open")).group_by("pid", "op", "count", "bytes", "peer").len()
    due = [("all_reduce", 1024, 4096), ("all_reduce", 16, 64), ("all_gather", 32, 64)]
    assert sorted(finished.rows()) == sorted((pid, *kind, -1, STEPS) for pid in pids for kind in due)
    assert (calls["end_ns"] >= calls["start_ns"]).all()
    stuck = calls.filter("open")
    assert stuck.select("pid", "op", "count").rows() == [(pids[0], "reduce_scatter", 0)]
    found = judge(recording, Params()).data
    (late,) = found.late  # for all three operations of a step alike: nothing waits for the first
    assert (late.rank, late.last, late.compared) == (1, STEPS, STEPS)
    assert late.low_ms > LATE_MS / 2


def test_a_program_that_throws_through_a_probed_function_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe at the return would end it: the exception finds the kernel's trampoline instead of the caller."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    program = tmp_path / "throwing"
    subprocess.run(["c++", "-O1", "-o", program, HERE / "throwing.cpp"], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        answers = []
        recording = observed([one.pid], lambda: answers.append(one.communicate("\n")[0]))
    assert (answers, one.returncode) == (["caught\n"], 0)
    entry = recording.manifest.collectors["collectives"]
    assert (entry.seen, [spot.code for spot in entry.not_seen]) == (1, ["collectives_before"])


# --- gloo -------------------------------------------------------------------------------------------------------------


@contextmanager
def gloo(directory: Path, odd: int) -> Iterator[Running]:
    """A job whose steps take `PAUSE_S`, on the odd rank twice as long; healthy if there is no such rank."""
    arguments = ["--directory", directory, "--ranks", RANKS, "--rank", odd, "--pause", PAUSE_S, "is_slow"]
    with Running("hanging_job.py", *arguments) as program:
        time.sleep(4)  # it begins to train
        yield program


def run(tool: str, home: Path, program: Running, *arguments: object) -> dict[str, Any]:
    pid = str(program.start["rank_pids"][0])
    environment = {**os.environ, "WHYSTALL_HOME": str(home)}
    done = warm_command.run("run", tool, "--pid", pid, *map(str, arguments), "--json", env=environment)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_rank_delayed_by_30_ms_a_step_is_named_live(tmp_path: Path) -> None:
    with gloo(tmp_path, odd=2) as program:
        pids = program.start["rank_pids"]
        for _ in range(3):  # on a busy machine it may abstain, and never names another one
            judged = run("slow_node_check", tmp_path, program, "--live", "--duration", 6)
            assert {one["rank"] for one in judged["data"]["accused"]} <= {2}
            if judged["data"]["accused"]:
                break
        entered = run("collective_live", tmp_path, program, "--duration", 2)
        watcher = subprocess.Popen(
            [WHYSTALL, "run", "collective_live", "--pid", str(pids[0]), "--duration", "30"],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "WHYSTALL_HOME": str(tmp_path)},
        )
        until = time.monotonic() + 20
        programs: frozenset[int] = frozenset()
        while not programs and time.monotonic() < until:
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                programs = programs_of(watcher.pid)
        os.kill(watcher.pid, signal.SIGKILL)
        watcher.wait()
        assert programs
        assert wait_until_gone(programs) == frozenset()
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == pids
    (accused,) = judged["data"]["accused"]
    assert (judged["data"]["verdict"], accused["rank"], accused["pid"]) == ("rank", 2, pids[2])
    assert accused["slow_class"] == "unattributed"  # it sleeps
    (blocked,) = [row for row in accused["evidence"] if row["what"] == "blocked"]
    assert 0.8 < (blocked["mine"] - blocked["peers"]) / (1e3 * PAUSE_S) < 1.3
    (late,) = entered["data"]["late"]
    assert (late["rank"], late["pid"], late["op"], late["library"]) == (2, pids[2], "all_reduce", "gloo")
    assert late["last"] > 0.8 * late["compared"]
    assert late["size_bytes"] == 64 * 64 * 4  # the first gradient
    assert {one["name"]: one["lost"] for one in entered["coverage"]["collectors"]}["collectives"] == 0


@pytest.mark.thorough
def test_no_rank_of_a_healthy_job_is_accused_live(tmp_path: Path) -> None:
    with gloo(tmp_path, odd=RANKS) as program:
        judged = run("slow_node_check", tmp_path, program, "--live", "--duration", 6)
    assert judged["data"]["accused"] == []
    assert judged["data"]["verdict"] in ("none", "cannot_tell")
    assert judged["data"]["matched"]["matched"] > 4 * 20
