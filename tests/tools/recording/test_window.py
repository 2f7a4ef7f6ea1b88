"""The window: engines start and stop as one, whatever happens between. The engines here are small but real."""

from __future__ import annotations

import fcntl
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import anyio
import polars as pl
import pytest

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.collector import Capture, Engine, Need, Options, merge_needs, option
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, resolve
from whystall.tools.recording.window import observe

EVERYTHING = Target(everything=True)
HERE = Target(everything=False, pid=os.getpid(), comm="x", pids=[os.getpid()])
FAILURE = ToolError(ErrorCode.PROBE_FAILED, "the verifier said no", "use another kernel")


class Clock(Engine):
    """Serves what it is told to with readings of the clock; `log` tells its life, `attached` who is on."""

    log: ClassVar[list[str]] = []
    attached: ClassVar[set[str]] = set()
    period_s = 0.02
    missing: str | None = None
    load_error: BaseException | None = None
    poll_error: BaseException | None = None
    read_error: BaseException | None = None
    close_error: BaseException | None = None

    def __init__(self, name: str, *serves: str, **faults: Any) -> None:
        self.name, self.serves = name, frozenset(serves)
        self.wanted: dict[str, Options] = {}
        self.readings: list[int] = []
        vars(self).update(faults)

    def unavailable(self) -> str | None:
        return self.missing

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        self.log.append(f"load {self.name}")
        self.wanted = dict(wanted)
        self.attached.add(self.name)
        self.readings.append(time.monotonic_ns() - 5_000_000_000)  # something that began before the window
        if self.load_error is not None:
            raise self.load_error

    def poll(self) -> None:
        self.readings.append(time.monotonic_ns())
        if self.poll_error is not None:
            raise self.poll_error

    def read(self) -> dict[str, Capture]:
        self.log.append(f"read {self.name}")
        self.readings.append(time.monotonic_ns() + 9_000_000_000)  # and something that would end after it
        if self.read_error is not None:
            raise self.read_error
        self.close()
        return {name: self._capture(name) for name in self.wanted}

    def _capture(self, name: str) -> Capture:
        tables = {table: pl.DataFrame(schema=schema) for table, schema in COLLECTORS[name].items()}
        if name == "proc":
            rows = [{"at_ns": at, "name": "runnable", "value": 1.0} for at in self.readings]
            tables["host"] = pl.DataFrame(rows, COLLECTORS["proc"]["host"])
        if name == "block":
            row = dict.fromkeys(COLLECTORS["block"]["slow"], 0) | {"device": "sda", "operation": "read", "comm": "x"}
            row |= {"start_ns": self.readings[0], "issue_ns": 0, "end_ns": self.readings[-1]}
            tables["slow"] = pl.DataFrame([row], COLLECTORS["block"]["slow"])
        events = frozenset[str]()
        if name == "ftrace":
            event = dict.fromkeys(COLLECTORS["ftrace"]["migrations"], 7)
            rows = [event | {"at_ns": at} for at in self.readings]
            tables["migrations"] = pl.DataFrame(rows, COLLECTORS["ftrace"]["migrations"])
            since = {"at_ns": self.readings[0], "tid": 7, "pid": 7, "comm": "x"}
            tables["names"] = pl.DataFrame([since], COLLECTORS["ftrace"]["names"])
            events = frozenset({"migrations"})
        return Capture(
            tables, [f"hook/{name}"], len(self.readings), 1, 0, True, [("sampled", "\x1b[1m")], events=events
        )

    def close(self) -> None:
        self.log.append(f"close {self.name}")
        self.attached.discard(self.name)
        if self.close_error is not None:
            raise self.close_error


class Pipe(Clock):
    """Is woken by its descriptor only."""

    period_s = 30.0

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        super().load(wanted, target)
        self.reader, self.writer = os.pipe()
        os.write(self.writer, b"x" * 3)

    def fileno(self) -> int | None:
        return self.reader

    def poll(self) -> None:
        super().poll()
        os.read(self.reader, 1)


class Sums(Clock):
    """Sums up between `start` and `stop`."""

    start_error: BaseException | None = None
    since = until = 0

    def start(self) -> int:
        self.log.append(f"start {self.name}")
        if self.start_error is not None:
            raise self.start_error
        self.since = time.monotonic_ns()
        time.sleep(0.05)  # events of its own, a look at all threads
        return self.since

    def stop(self) -> int:
        self.log.append(f"stop {self.name}")
        time.sleep(0.05)
        self.until = time.monotonic_ns()
        return self.until


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    Clock.log, Clock.attached = [], set()
    yield
    assert Clock.attached == set(), "an engine was left attached"


def run(
    needs: list[str], *engines: Clock, target: Target = EVERYTHING, duration: float = 0.15, **more: Any
) -> Recording:
    factories: list[Callable[[], Clock]] = [lambda engine=engine: engine for engine in engines]
    wanted = [Need(name, Slow(min_ns=5)) for name in needs]
    return anyio.run(lambda: observe(wanted, target, duration, factories, **more))


# --- needs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slow(Options):
    min_ns: int = option(10, min)
    wakers: bool = option(False, operator.or_)


def test_needs_of_one_collector_are_merged() -> None:
    needs = [Need("a", Slow(min_ns=5)), Need("b"), Need("a", Slow(min_ns=3)), Need("a", Slow(min_ns=7, wakers=True))]
    assert merge_needs(needs) == merge_needs(reversed(needs)) == {"a": Slow(3, True), "b": Options()}


@pytest.mark.parametrize(("given", "merged"), [(50, 10), (5, 5)])
def test_a_need_without_options_asks_for_the_defaults(given: int, merged: int) -> None:
    needs = [Need("a", Slow(min_ns=given)), Need("a")]
    assert merge_needs(needs) == merge_needs(reversed(needs)) == {"a": Slow(min_ns=merged)}


# --- a window that goes well ----------------------------------------------------------------------------------


def test_a_window_without_collectors_is_an_empty_recording() -> None:
    recording = run([], Clock("fast", "block"), duration=0.0)
    assert (recording.manifest.collectors, Clock.log) == ({}, [])


def test_two_engines_make_one_recording() -> None:
    fast, slow = Clock("fast", "syscalls", "block"), Clock("slow", "block", "proc")
    recording = run(["block", "proc", "syscalls"], fast, slow)
    manifest = recording.manifest
    assert {name: c.engine for name, c in manifest.collectors.items()} == {
        "syscalls": "fast",
        "block": "fast",
        "proc": "slow",
    }
    assert manifest.collectors["proc"].why == ""
    assert manifest.collectors["block"].options == {"min_ns": 5}
    assert manifest.collectors["proc"].hooks == ["hook/proc"]
    assert manifest.collectors["proc"].not_seen[0].detail == "\\x1b[1m"
    assert manifest.collectors["proc"].rows["host"] == recording.table("proc.host").height > 3
    assert (manifest.target_exited, manifest.requested_ns) == (False, 150_000_000)
    assert manifest.window_ns >= 150_000_000
    assert Clock.log[:2] == ["load fast", "load slow"]
    assert {line for line in Clock.log[2:] if line.startswith("read")} == {"read fast", "read slow"}


def test_times_are_relative_and_within_the_window() -> None:
    recording = run(["proc", "block"], Clock("e", "proc", "block"))
    window = recording.manifest.window_ns
    at = recording.table("proc.host")["at_ns"].to_list()
    assert (at[0], at[-1]) == (0, window)
    assert at == sorted(at)
    assert all(0 < t < window for t in at[1:-1])
    (row,) = recording.table("block.slow").to_dicts()
    assert (row["start_ns"], row["issue_ns"], row["end_ns"]) == (0, 0, window)


def test_an_event_outside_of_the_window_is_not_one_at_its_edge() -> None:
    recording = run(["ftrace"], Clock("e", "ftrace"))
    at = recording.table("ftrace.migrations")["at_ns"].to_list()
    assert len(at) > 3
    assert all(0 < t < recording.manifest.window_ns for t in at)
    assert recording.table("ftrace.names")["at_ns"].to_list() == [0]


def test_engines_start_when_all_are_loaded_and_stop_before_any_is_read() -> None:
    run(["syscalls", "block", "proc"], Sums("one", "syscalls"), Clock("two", "block"), Sums("three", "proc"))
    life = [line for line in Clock.log if not line.startswith("close")]
    started = ["load one", "load two", "load three", "start one", "start three"]
    assert life == [*started, "stop three", "stop one", "read three", "read two", "read one"]


def test_the_window_reaches_from_the_first_start_to_the_last_stop() -> None:
    one, two = Sums("one", "syscalls"), Sums("two", "proc")
    manifest = run(["syscalls", "proc"], one, two).manifest
    assert (manifest.start_ns, manifest.window_ns) == (one.since, one.until - one.since)
    started = datetime.fromisoformat(manifest.started).timestamp()
    assert started == pytest.approx(time.time() - (time.monotonic_ns() - one.since) / 1e9, abs=0.01)


def test_an_engine_is_drained_when_its_descriptor_is_readable() -> None:
    engine = Pipe("pipe", "proc")
    run(["proc"], engine, duration=0.4)
    assert len(engine.readings) >= 5
    os.close(engine.reader)
    os.close(engine.writer)


def test_progress_runs_from_nothing_to_all() -> None:
    told: list[tuple[float, float, str]] = []
    run(["proc"], Clock("e", "proc"), duration=0.3, progress=lambda *step: told.append(step))
    assert [t[0] for t in told] == sorted(t[0] for t in told)
    assert told[0][0] < 0.1
    assert told[-1] == (0.3, 0.3, "judging")


# --- choosing engines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (Clock("best", "proc", missing="no BTF"), "best: no BTF"),
        (Clock("best", "proc", load_error=FAILURE), "best: probe_failed: the verifier said no"),
    ],
)
def test_the_next_engine_takes_over_and_says_why(first: Clock, why: str) -> None:
    recording = run(["proc"], first, Clock("next", "proc"))
    entry = recording.manifest.collectors["proc"]
    assert (entry.engine, entry.why) == ("next", why)


def test_the_next_engine_takes_over_from_one_that_cannot_start() -> None:
    engines = Clock("one", "block"), Sums("best", "proc", start_error=FAILURE), Clock("next", "proc")
    recording = run(["proc", "block"], *engines)
    told = {name: (entry.engine, entry.why) for name, entry in recording.manifest.collectors.items()}
    assert told == {"block": ("one", ""), "proc": ("next", "best: probe_failed: the verifier said no")}


def test_an_engine_that_cannot_start_and_has_no_other_ends_the_window_with_its_error() -> None:
    with pytest.raises(ToolError) as caught:
        run(["proc", "block"], Clock("one", "proc"), Sums("two", "block", start_error=FAILURE))
    assert caught.value is FAILURE
    assert {"close one", "close two"} <= set(Clock.log)


def test_an_engine_can_be_chosen_where_there_is_a_choice() -> None:
    engines = Clock("best", "proc"), Clock("next", "proc"), Clock("last", "block")
    recording = run(["proc", "block"], *engines, choice="next")
    assert {n: c.engine for n, c in recording.manifest.collectors.items()} == {"proc": "next", "block": "last"}


def test_what_only_a_better_engine_serves_is_not_had_from_a_lesser_one_that_is_chosen() -> None:
    """Who chooses `procfs` has no program loaded."""
    with pytest.raises(ToolError, match="no engine 'next' serves it") as caught:
        run(["proc", "block"], Clock("best", "proc", "block"), Clock("next", "proc"), choice="next")
    assert caught.value.remedy == "choose auto or best"
    assert "load best" not in Clock.log


@pytest.mark.parametrize(
    ("engines", "choice", "code", "words"),
    [
        ([], "auto", ErrorCode.NO_ENGINE, "nothing can observe proc"),
        ([Clock("e", "block")], "auto", ErrorCode.NO_ENGINE, "nothing can observe proc"),
        ([Clock("e", "proc", missing="no BTF")], "auto", ErrorCode.NO_ENGINE, "e: no BTF"),
        ([Clock("e", "proc", load_error=FAILURE)], "auto", ErrorCode.PROBE_FAILED, "the verifier said no"),
        ([Clock("e", "proc"), Clock("f", "proc")], "g", ErrorCode.NO_ENGINE, "no engine 'g' serves it"),
    ],
)
def test_what_nobody_can_serve_is_an_error(engines: list[Clock], choice: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(ToolError) as caught:
        run(["proc"], *engines, choice=choice)
    assert caught.value.code is code
    assert words in caught.value.message


def test_what_would_only_tell_more_is_left_out_where_nothing_serves_it_and_said() -> None:
    wanted = [Need("proc"), Need("block", optional=True)]
    factories = [lambda: Clock("one", "proc"), lambda: Clock("two", "block", missing="no BTF")]
    recording = anyio.run(lambda: observe(wanted, EVERYTHING, 0.15, factories))
    assert recording.manifest.collectors.keys() == {"proc"}
    (spot,) = [s for s in recording.manifest.coverage(["proc", "block"], []).not_seen if s.code == "no_engine"]
    assert spot.detail == "block: two: no BTF"
    assert all(s.code != "no_engine" for s in recording.manifest.coverage(["proc"], []).not_seen)
    # an engine that could, and fails, is an error; so is it where somebody needs it
    factories[1] = lambda: Clock("two", "block", load_error=FAILURE)
    with pytest.raises(ToolError, match="verifier"):
        anyio.run(lambda: observe(wanted, EVERYTHING, 0.15, factories))
    factories[1] = lambda: Clock("two", "block", missing="no BTF")
    with pytest.raises(ToolError, match="no BTF"):
        anyio.run(lambda: observe([*wanted, Need("block")], EVERYTHING, 0.15, factories))


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [FAILURE, OSError("odd"), KeyboardInterrupt()])
def test_when_the_second_cannot_be_loaded_the_first_is_closed(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(["proc", "block"], Clock("one", "proc"), Clock("two", "block", load_error=error))
    assert Clock.log[-1] == "close one"
    assert "close two" in Clock.log


@pytest.mark.parametrize("error", [FAILURE, OSError("odd")])
@pytest.mark.parametrize("where", ["poll_error", "read_error"])
def test_an_error_on_the_way_comes_out_as_itself_and_closes_all(where: str, error: BaseException) -> None:
    one, two = Clock("one", "proc", **{where: error}), Clock("two", "block")
    with pytest.raises(type(error)) as caught:
        run(["proc", "block"], one, two, duration=5 if where == "poll_error" else 0.2)
    assert caught.value is error
    assert {"close one", "close two"} <= set(Clock.log)


def test_all_are_closed_when_one_cannot_be() -> None:
    broken = Clock("two", "block", load_error=None, close_error=OSError("stuck"), read_error=FAILURE)
    with pytest.raises((OSError, ToolError)):
        run(["proc", "block"], Clock("one", "proc"), broken)
    assert Clock.log.count("close one") >= 1


def test_a_cancelled_window_is_closed_and_the_next_one_can_run() -> None:
    engine = Clock("e", "proc")

    async def impatient() -> None:
        with anyio.move_on_after(0.1) as scope:
            await observe([Need("proc")], EVERYTHING, 30, [lambda: engine])
        assert scope.cancelled_caught

    begun = time.monotonic()
    anyio.run(impatient)
    assert time.monotonic() - begun < 10
    assert "read e" not in Clock.log
    assert Clock.attached == set()
    run(["proc"], Clock("again", "proc"))


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["load", "start", "poll", "stop", "read", "close"])
def test_an_engine_that_blocks_does_not_delay_other_tasks(verb: str) -> None:
    class Slow(Sums):
        blocked = False

    def block(self: Slow, *arguments: Any) -> Any:
        if not self.blocked:
            self.blocked = True
            time.sleep(1.0)
        return getattr(super(Slow, self), verb)(*arguments)

    setattr(Slow, verb, block)
    gaps: list[float] = []

    async def other() -> None:
        before = time.monotonic()
        while True:
            await anyio.sleep(0.01)
            now = time.monotonic()
            gaps.append(now - before)
            before = now

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await observe([Need("proc")], EVERYTHING, 0.2, [lambda: Slow("e", "proc")])
            tasks.cancel_scope.cancel()

    anyio.run(both)
    assert max(gaps) < 0.5


def test_a_window_cancelled_while_an_engine_loads_closes_it_before_the_cancellation_goes_on() -> None:
    class Slow(Clock):
        def load(self, wanted: Mapping[str, Options], target: Target) -> None:
            super().load(wanted, target)
            time.sleep(0.5)

    async def impatient() -> None:
        with anyio.move_on_after(0.1) as scope:
            await observe([Need("proc")], EVERYTHING, 30, [lambda: Slow("e", "proc")])
        assert scope.cancelled_caught
        assert Clock.attached == set()

    anyio.run(impatient)
    assert "start e" not in Clock.log


# --- one at a time ------------------------------------------------------------------------------------------

_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
os.pwrite(fd, str(os.getpid()).encode(), 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_windows_at_once_are_refused_and_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _HOLD, str(tmp_path / "window.lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ToolError) as caught:
            run(["proc"], Clock("e", "proc"))
        assert caught.value.code is ErrorCode.BUSY
        assert str(other.pid) in caught.value.message
        assert Clock.log == []
        other.kill()
    run(["proc"], Clock("e", "proc"))
    assert (tmp_path / "window.lock").read_text() == str(os.getpid())


def test_a_hostile_lock_file_is_quoted_inertly(tmp_path: Path) -> None:
    with (tmp_path / "window.lock").open("wb") as lock:
        lock.write(b"\x1b[31m\xff")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ToolError) as caught:
            run(["proc"], Clock("e", "proc"))
    assert "\x1b" not in str(caught.value)


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "window.lock").mkdir()
    with pytest.raises(ToolError) as caught:
        run(["proc"], Clock("e", "proc"))
    assert caught.value.code is ErrorCode.IO_ERROR


# --- the target ---------------------------------------------------------------------------------------------


def test_the_window_ends_with_its_target() -> None:
    with subprocess.Popen(["sleep", "0.3"]) as program:
        target = Target(everything=False, pid=program.pid, comm="sleep", pids=[program.pid])
        recording = run(["proc"], Clock("e", "proc"), target=target, duration=30)
    manifest = recording.manifest
    assert manifest.target_exited
    assert manifest.window_ns < 20e9 < manifest.requested_ns
    assert "target_exited" in {spot.code for spot in manifest.coverage(["proc"], []).not_seen}


def test_a_target_that_is_gone_at_once_is_an_error_and_no_measurement() -> None:
    with subprocess.Popen(["true"]) as program:
        program.wait()
        target = Target(everything=False, pid=program.pid, comm="true", pids=[program.pid])
        with pytest.raises(ToolError) as caught:
            run(["proc"], Clock("e", "proc"), target=target)
    assert caught.value.code is ErrorCode.NO_SUCH_PROCESS
    assert "exited" in caught.value.message


def test_a_target_that_exits_while_engines_start_was_not_observed() -> None:
    with subprocess.Popen(["sleep", "0.1"]) as program:

        class Slow(Sums):
            def start(self) -> int:
                since = super().start()
                program.wait()
                time.sleep(0.2)
                return since

        target = Target(everything=False, pid=program.pid, comm="sleep", pids=[program.pid])
        with pytest.raises(ToolError) as caught:
            run(["proc"], Slow("e", "proc"), target=target)
    assert caught.value.code is ErrorCode.NO_SUCH_PROCESS


def test_the_window_goes_on_while_one_of_the_target_lives() -> None:
    with subprocess.Popen(["true"]) as program:
        program.wait()
        target = Target(everything=False, pids=[program.pid, os.getpid()])
        assert not run(["proc"], Clock("e", "proc"), target=target).manifest.target_exited


def test_a_target_that_lives_gets_its_whole_window() -> None:
    manifest = run(["proc"], Clock("e", "proc"), target=HERE).manifest
    assert not manifest.target_exited
    assert manifest.target == HERE


def test_a_zombie_is_nobody_to_observe() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    try:
        with pytest.raises(ToolError, match="zombie") as caught:
            resolve(TargetParams(pid=ended.pid))
        assert caught.value.code is ErrorCode.NO_SUCH_PROCESS
    finally:
        ended.wait()
