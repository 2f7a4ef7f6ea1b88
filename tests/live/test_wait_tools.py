"""lock_wait, python_stacks and net_latency on programs with known holders."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from whystall.tools.collect.engines import ENGINES
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host import python_stacks
from whystall.tools.host.lock_wait import tool as lock_wait
from whystall.tools.host.net_latency import tool as net_latency
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="watching the kernel needs root")

SERVER = """\
import socket, time

def answer(connection):
    connection.recv(1)
    time.sleep(60)  # answers

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
answer(listener.accept()[0])
"""
CLIENT = """\
import socket, sys, threading, time

lock = threading.Lock()

def hold():
    while True:
        with lock:
            time.sleep(0.09)  # holds
        time.sleep(0.01)

def use():
    while True:
        with lock:  # uses
            pass
        time.sleep(0.001)

def fetch():
    connection.recv(1)  # fetches

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"?")
for target in (hold, use, fetch):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""
SPINNERS = """\
import threading

def spin():
    while True:
        for _ in range(1000):
            pass

threads = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
print("ready", flush=True)
threads[0].join()
"""
STUCK = """\
import ctypes, sys, threading

libc = ctypes.CDLL(None)
first, second = threading.Lock(), threading.Lock()
mutexes = [ctypes.create_string_buffer(64) for _ in range(2)]
ready = threading.Barrier(2)

def nested(one, other):
    with one:
        ready.wait()
        with other:  # nested
            pass

def mutual(one, other):
    libc.pthread_mutex_lock(one)
    ready.wait()
    libc.pthread_mutex_lock(other)  # mutual

def plain(one, other):
    one.acquire()
    ready.wait()
    other.acquire()  # plain

work = globals()[sys.argv[1]]
pair = mutexes if work is mutual else (first, second)
threads = [threading.Thread(target=work, args=order) for order in (pair, pair[::-1])]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
"""


def line(program: str, mark: str) -> int:
    return 1 + next(n for n, text in enumerate(program.splitlines()) if text.endswith(f"# {mark}"))


@contextlib.contextmanager
def started(directory: Path, name: str, program: str, *arguments: str) -> Iterator[tuple[int, str]]:
    """Run `program`; yield its pid and the first line that it prints."""
    script = directory / name
    script.write_text(program)
    argv = [sys.executable, str(script), *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        try:
            yield process.pid, said
        finally:
            process.kill()


def recorded(pid: int, seconds: float, needs: list[Need]) -> Recording:
    target = Target(everything=False, pid=pid, comm="python", pids=[pid])
    return anyio.run(lambda: observe(needs, target, seconds, ENGINES))


def judged(tool: Tool[Any, Any], recording: Recording) -> tuple[Judgement[Any], dict[str, Finding]]:
    result = tool.judge(recording, tool.params(top=50))
    return result, {f.kind: f for f in result.findings if f.polarity.value == "abnormal"}


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))


def test_the_holder_of_a_lock_and_a_silent_local_server_are_named_with_their_lines(tmp_path: Path) -> None:
    holds, uses = f"hold (client.py:{line(CLIENT, 'holds')})", f"use (client.py:{line(CLIENT, 'uses')})"
    fetches, answers = f"fetch (client.py:{line(CLIENT, 'fetches')})", f"answer (server.py:{line(SERVER, 'answers')})"
    with (
        started(tmp_path, "server.py", SERVER) as (server, port),
        started(tmp_path, "client.py", CLIENT, port) as (client, _),
    ):
        needs = [*lock_wait.TOOL.needs(lock_wait.Params()), *net_latency.TOOL.needs(net_latency.Params())]
        recording = recorded(client, 1.5, needs)
    result, found = judged(lock_wait.TOOL, recording)
    (row,) = [r for r in result.data.rows if r.waiters[0].code == uses and r.kind != "interpreter"]
    assert (row.holder_code, row.holder_doing) == (holds, "sleep")
    assert row.window_pct > 60
    # the readings are instants: in nine of ten the lock is held, and then its holder is known
    assert row.kind == "unknown" or found["lock.wait"].attributes["holder_code"] == holds
    stacks, _ = judged(python_stacks.TOOL, recording)
    assert {holds.split()[0], uses.split()[0], fetches.split()[0]} <= {r.line.split()[0] for r in stacks.data.rows}
    (waits,) = [r for r in stacks.data.rows if r.line == fetches]
    assert waits.whom.endswith(f"({server}) at {answers}")
    connections, silent = judged(net_latency.TOOL, recording)
    (connection,) = [c for c in connections.data.connections if c.pid == client]
    assert (connection.code, connection.peer_code) == (fetches, answers)
    assert connection.peer.endswith(f"({server})")
    assert connection.waited_ms == pytest.approx(1500, rel=0.1)
    assert silent["net.no_answer"].attributes["peer_code"] == answers


def test_two_busy_threads_share_the_interpreter_lock(tmp_path: Path) -> None:
    with started(tmp_path, "spinners.py", SPINNERS) as (pid, _):
        recording = recorded(pid, 1.5, lock_wait.TOOL.needs(lock_wait.Params()))
    result, found = judged(lock_wait.TOOL, recording)
    shares = [row for row in result.data.interpreters if row.tid != pid]
    held = [row.held_pct for row in shares]
    assert len(held) == 2
    assert min(held) > 0.35 * sum(held)  # about half each
    assert sum(held) == pytest.approx(sum(row.waited_pct for row in shares), rel=0.15)
    assert found["lock.interpreter"].attributes["holder_code"].startswith("spin (spinners.py:")


@pytest.mark.parametrize(("work", "proof"), [("nested", "cycle"), ("mutual", "cycle"), ("plain", "no_owner_kept")])
def test_a_deadlock_is_named(tmp_path: Path, work: str, proof: str) -> None:
    with started(tmp_path, "stuck.py", STUCK, work) as (pid, _):
        time.sleep(0.1)
        recording = recorded(pid, 0.2, python_stacks.TOOL.needs(python_stacks.Params()))
    _, found = judged(python_stacks.TOOL, recording)
    words = found["lock.deadlock"].attributes
    assert words["proof"] == proof
    assert words["code"] == f"{work} (stuck.py:{line(STUCK, work)})"
    assert words["cycle"].count(f"at {words['code']}") == 2
