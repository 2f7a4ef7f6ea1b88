"""The engine ``tracefs`` in a window, and the tool that sums a trace up, on this kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

from whystall.agent_server.app import App
from whystall.tools.collect.ftrace import tracefs_engine
from whystall.tools.collect.ftrace.tracefs import find
from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine
from whystall.tools.collect.options import FtraceOptions
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import Status
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

EVERYTHING = Target(everything=True)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.sched_getaffinity(0)
    yield
    tracefs = find()
    assert [name for name in tracefs.instances() if name.startswith(f"whystall-{os.getpid()}-")] == []
    tracefs.close()
    assert list(tmp_path.glob("whystall-*")) == []
    assert os.sched_getaffinity(0) == before


def window(
    duration: float = 0.5, target: Target = EVERYTHING, stop: Callable[[], bool] | None = None, **options: int
) -> Recording:
    (tempfile.gettempdir() and Path(tempfile.gettempdir(), "home")).mkdir(exist_ok=True)
    groups = frozenset(options) - {"cpus", "only_target", "buffer_kb"}
    others: dict[str, Any] = {name: value for name, value in options.items() if name not in groups}
    need = Need("ftrace", FtraceOptions(groups, **others))
    return anyio.run(lambda: observe([need], target, duration, [TracefsEngine], stop=stop))


def of(pid: int) -> Target:
    return Target(everything=False, pid=pid, pids=[pid])


class Napper:
    """A process that sleeps 2 ms at a time."""

    def __enter__(self) -> int:
        self.process = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.002)"])
        time.sleep(0.1)
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_a_window_has_every_table_and_is_proven() -> None:
    with Napper() as pid:
        recording = window(irq=1, softirq=1)
    entry = recording.manifest.collectors["ftrace"]
    assert (entry.engine, entry.proven, entry.lost) == ("tracefs", True, 0)
    assert entry.seen >= entry.kept >= recording.table("ftrace.switches").height > 20
    assert {"sched/sched_switch", "irq/softirq_entry"} <= set(entry.hooks)
    assert set(entry.rows) == set(COLLECTORS["ftrace"])
    switches = recording.table("ftrace.switches")
    assert switches["at_ns"].is_sorted()
    assert switches["at_ns"].is_between(0, recording.manifest.window_ns).all()
    naps = switches.filter((pl.col("prev_tid") == pid) & (pl.col("prev_state") == "S")).height
    assert 10 < naps < 300
    first, last = recording.table("ftrace.clocks")["mono"].to_list()
    assert first <= recording.manifest.start_ns
    assert last >= recording.manifest.start_ns + recording.manifest.window_ns


def test_cpus_are_chosen_by_bits_and_the_proof_is_made_on_one_of_them() -> None:
    cpu = max(os.sched_getaffinity(0))
    recording = window(cpus=1 << cpu)
    assert set(recording.table("ftrace.switches")["cpu"].unique()) == {cpu}
    assert recording.manifest.collectors["ftrace"].proven


def test_only_the_target_is_recorded_when_that_is_enough() -> None:
    recorder: set[int] = set()  # the window calls `stop` in its own thread

    def stop() -> bool:
        recorder.add(threading.get_native_id())
        return False

    with Napper() as pid, Napper() as other:
        recording = window(target=of(pid), stop=stop, only_target=1)
        everything = window(target=of(pid))
    entry = recording.manifest.collectors["ftrace"]
    assert entry.proven
    assert "target_only" in {spot.code for spot in entry.not_seen}
    switches = recording.table("ftrace.switches")
    known = [pid, *recorder]  # the recorder's switches prove that it is alive
    assert switches.filter(pl.col("prev_tid") == pid).height > 10
    assert switches.filter(~pl.col("prev_tid").is_in(known) & ~pl.col("next_tid").is_in(known)).height == 0
    assert recording.table("ftrace.holes").filter(pl.col("why") == "unseen").height == 0
    assert everything.table("ftrace.switches")["prev_tid"].to_list().count(other) > 10
    assert not {"target_only"} & {spot.code for spot in everything.manifest.collectors["ftrace"].not_seen}


def test_a_target_that_is_gone_is_told() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    engine = TracefsEngine()
    with pytest.raises(ToolError) as caught:
        engine.load({"ftrace": FtraceOptions(only_target=True)}, of(gone.pid))
    assert caught.value.code is ErrorCode.NO_SUCH_PROCESS
    engine.close()


def test_losses_are_counted() -> None:
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            os.getppid()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        recording = window(syscalls=1, buffer_kb=64)
    finally:
        stop.set()
        thread.join()
    entry = recording.manifest.collectors["ftrace"]
    assert entry.lost > 0
    assert recording.table("ftrace.holes").filter(pl.col("why") == "lost").height > 0


def test_too_much_text_ends_the_trace_and_leaves_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefs_engine, "_MOST_BYTES", 20_000)
    with Napper():
        recording = window(1.0)
    entry = recording.manifest.collectors["ftrace"]
    assert "cut_short" in {spot.code for spot in entry.not_seen}
    (hole,) = recording.table("ftrace.holes").filter(pl.col("why") == "stopped").to_dicts()
    assert hole["cpu"] == -1
    assert hole["end_ns"] == recording.manifest.window_ns
    last = recording.table("ftrace.switches")["at_ns"].max()
    assert isinstance(last, int)
    assert last <= hole["start_ns"] < recording.manifest.window_ns


@pytest.mark.parametrize("end", ["close", "stop", "start fails"])
def test_an_engine_lets_go_at_every_end(end: str) -> None:
    engine = TracefsEngine()
    assert engine.unavailable() is None
    if end == "start fails":
        with pytest.raises(ToolError):
            engine.load({"ftrace": FtraceOptions(buffer_kb=3)}, EVERYTHING)
    else:
        engine.load({"ftrace": FtraceOptions()}, EVERYTHING)
        engine.poll()
        if end == "stop":
            assert engine.read()["ftrace"].proven
    engine.close()
    engine.close()
    engine.poll()
    assert engine.read() == {}


# --- the tool -----------------------------------------------------------------------------------------------


def run_tool(**arguments: Any) -> Any:
    with App().closing() as app:
        return anyio.run(lambda: app.run_tool("ftrace_capture", arguments, engine="tracefs"))


def ran_ms(pid: int) -> float:
    """What the scheduler itself says a single thread ran."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def test_the_tool_says_who_ran_and_who_was_pushed_off() -> None:
    cpu = max(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        time.sleep(0.3)
        before = [ran_ms(spinner.pid) for spinner in spinners]
        result = run_tool(duration=2.0, pid=spinners[0].pid, top=200)
        after = [ran_ms(spinner.pid) for spinner in spinners]
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    assert result.status in (Status.OK, Status.PARTIAL)
    assert result.findings == []
    row = next(row for row in result.data.cpus if row.cpu == cpu)
    assert row.busy_pct + row.unknown_pct > 90
    assert row.involuntary >= 4
    assert row.busy_pct + row.idle_pct + row.unknown_pct == pytest.approx(100, abs=0.1)
    by_tid = {thread.tid: thread for thread in result.data.threads}
    mine, other = (by_tid[spinner.pid] for spinner in spinners)
    assert (mine.of_target, other.of_target) == (True, False)
    assert (mine.pid, other.pid) == tuple(spinner.pid for spinner in spinners)
    for thread, first, last in zip((mine, other), before, after, strict=True):
        assert 20 < thread.running_ms <= 1.1 * (last - first) + 10  # a switch that was not told makes it inexact
        assert thread.runnable_ms > 300  # at best every other moment is its own
        assert thread.involuntary >= 2
    assert {thread.tid for thread in result.data.preempted} >= {mine.tid, other.tid}
    (artifact,) = result.artifacts
    lines = Path(artifact.path).read_text().splitlines()
    assert lines[0].startswith("pid,tid,comm,of_target,running_ms")
    assert len(lines) == result.totals["threads"] + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cpus": "3-1"}, "'3-1' is no CPU"),
        ({"cpus": "8000"}, "no CPU 8000"),
        ({"groups": "sched,disk"}, "no group of events is called 'disk'"),
        ({"buffer_mb": -1}, "buffer_mb"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError, match=said) as caught:
        run_tool(duration=0.2, **arguments)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
