"""What ended each wait, and what the thread waited for: two programs, of which one is the target."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from scripted import PRELUDE

from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.options import SwitchOptions
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.target import Target

MS = 1_000_000
SUBJECT = """
import select, signal, socket
reader, connection, path = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), sys.argv[3]
idle = socket.socketpair()
tids = {}
def sleeps():
    for _ in range(3): time.sleep(0.1)
def reads(): tids["inode"] = os.fstat(reader).st_ino; os.read(reader, 1); os.read(reader, 1)
def receives(): connection.recv(1); connection.recv(1)
def polls():
    idle[0].settimeout(0.15)
    try: idle[0].recv(1)
    except TimeoutError: pass
def selects(): select.select([], [], [], 0.12)
def selects_one(): select.select([], [], [idle[0]], 0.14)
def uses_epoll(): select.epoll().poll(0.13)
def waits(): threading.Event().wait(0.11)
def gets_signal(): tids["got"] = signal.sigtimedwait({signal.SIGUSR1}, 3).si_signo
def is_late():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for _ in range(25): time.sleep(0.007)
def uses_disk():
    with open(path, "rb", buffering=0) as file:
        for at in range(0, 1 << 23, 1 << 20):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED); file.seek(at); file.read(4096)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def run(work): tids[work.__name__] = threading.get_native_id(); start.wait(); work()
start = threading.Event()
all = [threading.Thread(target=run, args=(one,)) for one in
       (sleeps, reads, receives, polls, selects, selects_one, uses_epoll, waits, gets_signal, is_late, uses_disk)]
for one in all: one.start()
go(); start.set()
for one in all: one.join()
log(what="done", polled=os.fstat(idle[0].fileno()).st_ino, **tids); sys.stdin.readline()
"""
WORKER = """
import signal, socket
writer, connection, subject = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
def blocked_all_the_time(): threading.Event().wait()
threading.Thread(target=blocked_all_the_time, daemon=True).start()
def produces():
    for _ in range(2):
        time.sleep(0.1)
        os.write(writer, b"x")
        connection.send(b"y")
    os.kill(subject, signal.SIGUSR1)
    for _ in range(3): time.sleep(0.05)
def burns():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for _ in range(25):
        end = time.monotonic() + 0.005
        while time.monotonic() < end: sum(range(1000))
        time.sleep(0.005)
go(); threading.Thread(target=burns).start(); produces(); log(what="done"); sys.stdin.readline()
"""


class Watched(NamedTuple):
    """The tables, and the ids that the programs logged."""

    capture: Capture
    start_ns: int
    subject: int
    worker: int
    truth: dict[str, Any]

    def waits(self, what: str) -> pl.DataFrame:
        """The long waits of the subject's thread that does `what`, in their order."""
        long = pl.col("end_ns") - pl.col("start_ns") > 30 * MS
        rows = self.capture.tables["segments"].filter(pl.col("tid") == self.truth[what], pl.col("state") == "S", long)
        # waits for the interpreter lock ask for 5 ms
        return rows.filter((pl.col("syscall") != "futex") | (pl.col("asked_ns") > 50 * MS)).sort("start_ns")


@pytest.fixture(scope="module")
def seen(ext4: Callable[[int], Path]) -> Watched:
    """One window over all of it."""
    path = ext4(32) / "read"
    path.write_bytes(os.urandom(1 << 23))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    with ExitStack() as undo:
        reader, writer = os.pipe()
        server = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = undo.enter_context(socket.create_connection(server.getsockname()))
        theirs = undo.enter_context(server.accept()[0])

        def started(code: str, *arguments: object, pass_fds: tuple[int, ...]) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=pass_fds,
            )  # fmt: skip
            undo.callback(process.communicate)
            undo.callback(process.kill)
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["what"] == "ready"
            return process

        subject = started(SUBJECT, reader, ours.fileno(), path, pass_fds=(reader, ours.fileno()))
        worker = started(WORKER, writer, theirs.fileno(), subject.pid, pass_fds=(writer, theirs.fileno()))
        engine = EbpfEngine()
        undo.callback(engine.close)
        options = SwitchOptions(min_ns=10_000, wakers=True, python=True, follow_wakers=True)
        engine.load({"switches": options}, Target(everything=False, pid=subject.pid, pids=[subject.pid]))
        start_ns = engine.start()
        for process in (subject, worker):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert subject.stdout is not None
        end = time.monotonic() + 5
        while not select.select([subject.stdout], [], [], 0)[0] and time.monotonic() < end:
            select.select([engine.fileno(), subject.stdout], [], [], 0.1)
            engine.poll()
        truth = json.loads(subject.stdout.readline())
        engine.stop()
        capture = engine.read()["switches"]
    return Watched(capture, start_ns, subject.pid, worker.pid, truth)


def test_a_sleep_is_ended_by_a_timer_after_the_time_asked_for(seen: Watched) -> None:
    rows = seen.waits("sleeps")
    assert rows["syscall"].to_list() == ["clock_nanosleep"] * 3
    assert rows["context"].to_list() == ["timer"] * 3
    assert rows["asked_ns"].is_between(95 * MS, 101 * MS).all()
    took = rows["end_ns"] - rows["start_ns"] - rows["runnable_ns"]
    assert ((took - rows["asked_ns"]).abs() < 20 * MS).all()


def test_a_pipe_is_named_and_so_is_the_process_that_writes_it(seen: Watched) -> None:
    rows = seen.waits("reads")
    assert rows.height == 2
    for row in rows.iter_rows(named=True):
        assert (row["syscall"], row["context"], row["object"]) == ("read", "task", f"pipe:[{seen.truth['inode']}]")
        assert (row["waker_pid"], row["waker_syscall"], row["asked_ns"]) == (seen.worker, "write", -1)
        assert 0 <= row["runnable_ns"] < row["end_ns"] - row["start_ns"]


def test_loopback_tcp_names_the_sender(seen: Watched) -> None:
    rows = seen.waits("receives")
    assert rows.height == 2
    for row in rows.iter_rows(named=True):
        assert (row["syscall"], row["context"]) == ("recvfrom", "network")
        assert row["object"].startswith("socket:[")
        assert (row["waker_pid"], row["waker_syscall"]) == (seen.worker, "sendto")


@pytest.mark.parametrize(
    ("what", "call", "asked_ms"),
    [
        ("polls", "poll", 150),
        ("selects", "pselect6", 120),
        ("selects_one", "pselect6", 140),
        ("uses_epoll", "epoll_wait", 130),
        ("waits", "futex", 110),
    ],
)
def test_a_time_out_is_known(seen: Watched, what: str, call: str, asked_ms: int) -> None:
    (row,) = seen.waits(what).iter_rows(named=True)
    assert (row["syscall"], row["context"]) == (call, "timer")
    assert 0 <= asked_ms * MS - row["asked_ns"] < 10 * MS
    socket = f"socket:[{seen.truth['polled']}]"
    names = {"polls": socket, "selects_one": socket, "uses_epoll": "anon_inode:[eventpoll]"}
    assert row["object"] == names.get(what, "")
    assert (row["fd"] >= 0) == bool(row["object"])


def test_a_signal_names_its_sender(seen: Watched) -> None:
    (row,) = seen.waits("gets_signal").iter_rows(named=True)
    assert (row["syscall"], row["context"]) == ("rt_sigtimedwait", "signal")
    assert (row["waker_pid"], row["waker_syscall"], row["asked_ns"]) == (seen.worker, "kill", 3000 * MS)


def test_a_read_from_disk_is_ended_by_its_completion(seen: Watched) -> None:
    table = seen.capture.tables["segments"]
    rows = table.filter(pl.col("tid") == seen.truth["uses_disk"], pl.col("state") == "D", pl.col("file") >= 0)
    # the driver of the loop device may hold a page's lock meanwhile, and give it up as a task
    assert (rows["context"] == "block").sum() > rows.height / 2


def test_a_wait_for_a_cpu_names_who_had_it(seen: Watched) -> None:
    rows = seen.capture.tables["segments"].filter(pl.col("tid") == seen.truth["is_late"])
    late = rows.filter(pl.col("runnable_ns") > MS)
    assert late.height
    assert seen.worker in late["ran_pid"].to_list()
    assert rows.filter(pl.col("runnable_ns") < 50_000)["ran_pid"].unique().to_list() in ([], [-1])


def test_the_process_that_wakes_the_target_is_followed_with_its_python_frames(seen: Watched) -> None:
    followed = seen.capture.tables["followed"]
    assert seen.worker in followed["pid"].to_list()
    assert os.getpid() not in followed["pid"].to_list()
    stacks = dict(seen.capture.tables["stacks"].select("stack", "frames").iter_rows())
    rows = seen.capture.tables["segments"].filter(pl.col("pid") == seen.worker)
    sleeps = rows.filter(pl.col("tid") == seen.worker, pl.col("syscall") == "clock_nanosleep")
    assert sleeps.height >= 3
    assert any("produces" in frame for stack in sleeps["ustack"] for frame in stacks.get(stack, []))
    (blocked,) = rows.filter("open", pl.col("syscall") == "futex").iter_rows(named=True)
    assert blocked["seeded"]
    assert blocked["start_ns"] == seen.start_ns  # it slept before the window, and it was found later
    assert any("blocked_all_the_time" in frame for frame in stacks.get(blocked["ustack"], []))


def test_a_process_that_wakes_nobody_is_recorded_on_request() -> None:
    """A process that keeps the target waiting all along would never be seen."""
    with ExitStack() as undo:
        sleeper = [sys.executable, "-c", "import time\nwhile True: time.sleep(0.05); sum(range(500_000))"]
        subject, peer = (subprocess.Popen([*sleeper, name]) for name in ("subject", "peer"))
        for process in (subject, peer):
            undo.callback(process.wait)
            undo.callback(process.kill)
        time.sleep(0.5)
        engine = EbpfEngine()
        undo.callback(engine.close)
        options = SwitchOptions(
            min_ns=10_000, wakers=True, python=True, follow_wakers=True, peers=frozenset({peer.pid})
        )
        engine.load({"switches": options}, Target(everything=False, pid=subject.pid, pids=[subject.pid]))
        engine.start()
        time.sleep(0.5)
        engine.stop()
        tables = engine.read()["switches"].tables
    assert tables["followed"]["pid"].to_list() == [peer.pid]
    sleeps = tables["segments"].filter((pl.col("pid") == peer.pid) & (pl.col("syscall") == "clock_nanosleep"))
    assert sleeps.height >= 3
