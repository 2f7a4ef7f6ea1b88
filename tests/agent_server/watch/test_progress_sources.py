"""Signs of progress that are named for a job: real files, a real HTTP server, and hostile ones."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whystall.agent_server.watch.background_source import BackgroundSource
from whystall.agent_server.watch.jobs import Selection
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.progress_sources import (
    Heartbeat,
    ProgressMetric,
    ProgressSource,
    SourceNames,
    StepLog,
    asked_once,
    check_one_job,
)
from whystall.agent_server.watch.signals import Reading, Signal
from whystall.tools.collect.serving.scrape import endpoint_of
from whystall.tools.contract.errors import ToolError

S = 1_000_000_000


def value(source: ProgressSource) -> float | None:
    found = source.read()
    return found.value if found is not None else None


def opened(text: str) -> StepLog:
    (found,) = SourceNames(step_logs=(text,)).open()
    assert isinstance(found, StepLog)
    return found


def test_a_log_without_a_pattern_grows_with_each_step(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("old\n" * 1000)
    log = opened(str(path))
    before = value(log)
    assert value(log) == before
    with path.open("a") as file:
        file.write("loss 0.5\n")
    assert value(log) != before


def test_only_lines_with_another_step_count(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.touch()
    log = opened(rf"{path}:step (\d+)")
    seen = [value(log)]
    for text in ("step 1\n", "waiting\n", "step 1: still here\n", "step ", "2\n", "step 3\nstep 4\n"):
        with path.open("a") as file:
            file.write(text)
        seen.append(value(log))
    assert seen == [0, 1, 1, 1, 1, 2, 4]


def test_a_log_that_is_truncated_rotated_or_removed_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1\n" * 10)
    log = opened(f"{path}:step")
    assert value(log) == 0
    path.write_text("step 2\n")
    assert value(log) == 1
    path.rename(tmp_path / "train.log.1")
    assert log.read() is None
    path.write_text("step 3\nstep 4\n")
    assert value(log) == 3
    log.close()
    log.close()


def test_what_is_read_of_a_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.touch()
    log = opened(f"{path}:step")
    log.read()
    with path.open("ab") as file:
        file.write(b"\xff\0" * (8 << 20))  # one line of 16 MiB
        file.write(b"\nstep 9\n")
    assert value(log) == 1
    with path.open("ab") as file:
        file.truncate(1 << 40)  # a sparse file
    assert value(log) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd")
    assert opened(str(tmp_path / "odd")).read() is None


def test_a_heartbeat_is_the_time_of_modification(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    beat = Heartbeat(str(path))
    assert beat.read() is None
    path.touch()
    before = beat.read()
    assert before is not None
    assert abs(before.at_ns - time.monotonic_ns()) < 60 * S
    os.utime(path, ns=(0, 5))
    assert value(beat) == 5


def test_a_source_that_does_not_answer_holds_up_nobody() -> None:
    class Hung:
        name = "a file of a server that is gone"
        answers = threading.Event()
        closed = threading.Event()

        def read(self) -> Reading | None:
            self.answers.wait()
            return Reading(next(values), 0)

        def close(self) -> None:
            self.closed.set()

    values, hung = iter(range(9)), Hung()
    source = BackgroundSource(hung)
    assert source.read() is None
    assert source.read() is None, "no second thread waits"
    hung.answers.set()
    while (found := source.read()) is None:
        time.sleep(0.01)
    assert found.value in (0, 1)
    later = source.read()
    assert later is not None
    assert later.value > found.value
    source.close()
    assert hung.closed.wait(10)
    assert source.read() == later


@pytest.mark.parametrize(
    "names",
    [
        SourceNames(step_logs=(":x",)),
        SourceNames(step_logs=("/x:(",)),
        SourceNames(step_logs=("/x:" + "a" * 600,)),
        SourceNames(metrics=("http://127.0.0.1:1/metrics",)),
        SourceNames(metrics=("ftp://127.0.0.1/#steps",)),
        SourceNames(metrics=("http://user:secret@127.0.0.1/#steps",)),
        SourceNames(metrics=("http://127.0.0.1/#a b",)),
    ],
)
def test_what_names_no_source_is_refused(names: SourceNames) -> None:
    with pytest.raises(ToolError):
        names.open()


def test_a_source_is_one_of_a_single_job() -> None:
    check_one_job(Selection(names=("a", "b")), SourceNames())
    check_one_job(Selection(names=("a",)), SourceNames(heartbeats=("/x",)))
    for selection in (Selection(), Selection(names=("a", "b")), Selection(pids=(1,), names=("a",))):
        with pytest.raises(ToolError):
            check_one_job(selection, SourceNames(heartbeats=("/x",)))


class Server:
    """Answers with `text`; not at all while `silent` is set."""

    def __init__(self) -> None:
        self.text = b""
        self.silent = threading.Event()
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                if outer.silent.is_set():
                    time.sleep(3)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(outer.text)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


def becomes(metric: ProgressMetric, wanted: float | None) -> bool:
    """Return whether it reads as `wanted` before long."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if value(metric) == wanted:
            return True
        time.sleep(0.02)
    return False


def test_a_metric_is_the_sum_of_its_series(server: Server) -> None:
    server.text = (
        b'# TYPE steps counter\nsteps_total 99\nsteps{rank="0"} 4\nsteps{rank="1",a="}"} 3 1700000000000\n'
        b"steps NaN\nsteps{ 1 2 3\nsteps x\n\xff\xfe\n"
    )
    metric = ProgressMetric(server.url, "steps", each_s=0.05)
    assert becomes(metric, 7)
    server.text = b"steps 8\n"
    assert becomes(metric, 8)
    server.text = b"other 8\n"
    assert becomes(metric, None)
    server.text = b"steps 1" + b" " * (9 << 20)
    assert not value(metric)
    metric.close()


@pytest.mark.thorough
def test_the_value_of_a_server_that_does_not_answer_holds_and_of_one_that_is_gone_is_unknown(server: Server) -> None:
    server.text = b"steps 5\n"
    metric = ProgressMetric(server.url, "steps", each_s=0.05)
    assert becomes(metric, 5)
    server.silent.set()
    asked = server.asked
    end = time.monotonic() + 30
    while server.asked < asked + 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert value(metric) == 5
    metric.close()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert asked_once(endpoint_of(f"http://127.0.0.1:{port}/"), "steps", Reading(5, 0)) is None


class Job:
    """A sign that changes each `step_s`, and is looked at. `now`: simulated time."""

    def __init__(self, step_s: float = 0.12, learn_s: float = 20) -> None:
        self.now = self.last = 1000 * S
        self.step, self.count = int(step_s * S), 0
        self.signal = Signal(int(learn_s * S))

    def goes_on(self, seconds: float, every_s: float = 1.0, *, readable: bool = True) -> list[Stall]:
        """Return what is found within `seconds`."""
        found, end = [], self.now + int(seconds * S)
        while self.now < end:
            self.now += int(every_s * S)
            while self.last + self.step <= self.now:
                self.last += self.step
                self.count += 1
            stall = self.signal.look(Reading(self.count, self.last) if readable else None, self.now, 7)
            found += [stall] if stall is not None else []
        return found

    def pauses(self, seconds: float) -> None:
        """Make no step for so long, from the last one on."""
        self.last += int(seconds * S)


@pytest.mark.parametrize("step_s", [0.02, 0.12, 0.9, 4.0, 30.0])
def test_a_sign_that_changes_with_each_step_is_no_stall(step_s: float) -> None:
    assert Job(step_s).goes_on(1200) == []


@pytest.mark.parametrize("offset", [0.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("step_s", [0.12, 0.4])
def test_a_stall_of_2_s_is_found_whenever_it_begins(step_s: float, offset: float) -> None:
    job = Job(step_s)
    job.goes_on(60)
    job.goes_on(offset, every_s=offset or 1)
    job.pauses(2.5)
    start = job.now
    found = [one for one in job.goes_on(20) if not one.ongoing]
    assert [one.kind for one in found] == ["signal"]
    assert abs(found[0].start_ns - start) <= S
    assert found[0].end_ns is not None
    assert found[0].end_ns <= start + 3.5 * S


def test_a_stall_is_reported_while_it_lasts_and_not_within_the_time_to_learn() -> None:
    job = Job(learn_s=60)
    job.goes_on(30)
    job.pauses(5)
    assert job.goes_on(40) == []
    job.pauses(30)
    assert [one.ongoing for one in job.goes_on(20)] == [True]
    assert job.signal.state()["stalled"]


def test_looks_that_come_late_on_a_busy_host_are_no_stall() -> None:
    job = Job()
    job.goes_on(60)
    assert job.goes_on(60, every_s=4.0) == []


def test_a_sign_that_cannot_be_read_is_not_judged() -> None:
    job = Job()
    job.goes_on(60)
    assert job.goes_on(60, readable=False) == []
    assert job.signal.unreadable
    assert job.goes_on(20) == []


def test_pauses_at_regular_distances_are_accepted() -> None:
    job = Job()
    found = []
    for _ in range(8):
        found += [one for one in job.goes_on(120) if not one.ongoing]
        job.pauses(15)
    assert len(found) <= 2
