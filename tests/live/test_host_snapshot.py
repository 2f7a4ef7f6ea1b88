"""host_snapshot against load of known size on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from cgroups import Cgroup
from running import Running

from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.params import TargetParams
from whystall.tools.contract.result import ToolResult
from whystall.tools.host.host_snapshot.data import Data
from whystall.tools.host.host_snapshot.tool import TOOL, Params
from whystall.tools.recording.judging import judge
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import observe


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def look(pid: int | None = None, duration: float = 2.0, children: bool = False) -> ToolResult[Data]:
    """Run host_snapshot for real."""
    params = Params(pid=pid, duration=duration, children=children)
    target = resolve(TargetParams(pid=pid, children=children))
    recording = anyio.run(lambda: observe(TOOL.needs(params), target, duration, [ProcfsEngine]))
    return judge(TOOL, recording, params)


def of(result: ToolResult[Data], kind: str) -> list[Finding]:
    return [f for f in result.findings if f.kind == kind]


def abnormal(result: ToolResult[Data]) -> set[str]:
    return {f.kind for f in result.findings if f.polarity is Polarity.ABNORMAL}


def test_a_quota_shows_as_throttling_of_the_cgroup_and_in_its_own_counter() -> None:
    with Cgroup("cpu") as group:
        group.limit_cpus(0.3)
        with Running("spinner.py", "--processes", 1, "--duration", 30, wrap=group.command) as program:
            (spinner,) = program.start["pids"]
            time.sleep(0.3)
            before = group.stat("cpu.stat")
            result = look(spinner)
            after = group.stat("cpu.stat")
    (finding,) = [f for f in of(result, "cgroup.cpu_throttled") if f.subject.cgroup == group.name]
    assert finding.polarity is Polarity.ABNORMAL
    assert finding.metrics["quota_cpus"] == pytest.approx(0.3)
    # the counters read around the window bound what was counted inside it
    assert 5 <= finding.metrics["throttled_periods"] <= after["nr_throttled"] - before["nr_throttled"]
    name, unit = ("throttled_time", 1e9) if group.legacy else ("throttled_usec", 1e6)
    throttled_s = (after[name] - before[name]) / unit
    # the last throttling is counted when it ends: up to one period is on either side of the window's end
    assert throttled_s - 0.25 <= finding.metrics["throttled_s"] <= throttled_s
    (row,) = [p for p in result.data.by_cpu if p.pid == spinner]
    assert row.cpu_pct <= 40  # 30 % of a CPU, and a period's worth at the edges


def test_two_spinners_on_one_cpu_each_wait_half_of_the_time() -> None:
    with Running("spinner.py", "--processes", 2, "--cpu", 0, "--duration", 30) as program:
        first, second = program.start["pids"]
        time.sleep(0.3)
        result = look(first, duration=3.0)
    (finding,) = of(result, "sched.runqueue_delay")
    assert (finding.polarity, finding.subject.pid) == (Polarity.ABNORMAL, first)
    # others may want that CPU too: they add to the wait and take from the run
    assert finding.metrics["window_pct"] >= 40
    assert finding.metrics["wait_s"] + finding.metrics["run_s"] == pytest.approx(result.data.window_s, rel=0.05)
    (saturated,) = of(result, "cpu.saturated")
    assert saturated.polarity is Polarity.ABNORMAL
    assert second in {p.pid for p in result.data.by_cpu if not p.in_target}


def test_a_sleeper_is_not_accused_of_anything() -> None:
    with Running("sleeper.py", "--count", 100, "--sleep-s", 0.5) as program:
        result = look(program.pid, duration=3.0)
    own = [f for f in result.findings if f.subject.pid == program.pid and f.polarity is Polarity.ABNORMAL]
    assert own == []
    assert {f.subject.tid for f in of(result, "thread.time")} == set(program.start["tids"].values())
    # nothing is said when it was once met in an uninterruptible wait
    assert {f.polarity for f in of(result, "process.io_wait")} <= {Polarity.NORMAL}
    assert of(result, "process.system_time")[0].polarity is Polarity.NORMAL


@contextlib.contextmanager
def _drawing_bytes() -> Iterator[int]:
    """A thread of ours that does nothing but getrandom; yields its id."""
    stop, ready, tid = threading.Event(), threading.Event(), [0]

    def draw() -> None:
        tid[0] = threading.get_native_id()
        ready.set()
        with open("/dev/urandom", "rb", buffering=0) as source:
            while not stop.is_set():
                source.read(1 << 20)

    thread = threading.Thread(target=draw)
    thread.start()
    ready.wait()
    try:
        yield tid[0]
    finally:
        stop.set()
        thread.join()


def test_cpu_time_spent_in_the_kernel_is_told_from_computing() -> None:
    with Running("spinner.py", "--processes", 1, "--duration", 30) as program:
        (spinner,) = program.start["pids"]
        computing = look(spinner)
    assert [f.polarity for f in of(computing, "process.system_time")] == [Polarity.NORMAL]
    with _drawing_bytes() as tid:
        kernel = look(os.getpid())
    worst = of(kernel, "process.system_time")[0]
    assert (worst.polarity, worst.subject.tid) == (Polarity.ABNORMAL, tid)
    assert worst.metrics["system_s"] > 5 * worst.metrics["user_s"]


def test_a_target_that_exits_is_judged_to_its_last_sample_and_says_so() -> None:
    with Running("spinner.py", "--processes", 1, "--duration", 1.0) as program:
        (spinner,) = program.start["pids"]
        result = look(spinner, duration=5.0)
    assert "target_exited" in {spot.code for spot in result.coverage.not_seen}
    assert result.coverage.window_s < 4
    (thread,) = of(result, "thread.time")
    assert thread.interval.end_ns <= 2_000_000_000
    assert thread.metrics["user_pct"] > 0


def test_the_whole_host_without_a_target() -> None:
    result = look(duration=1.0)
    assert result.data.cpu is not None
    parts = result.data.cpu
    total = parts.user_pct + parts.system_pct + parts.iowait_pct + parts.steal_pct + parts.idle_pct
    assert total == pytest.approx(100)
    assert result.coverage.collectors[0].proven
    assert {f.subject.type for f in result.findings} <= {"host", "device", "cgroup", "process"}
