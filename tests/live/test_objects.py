"""The collector `objects` on a job whose threads and processes wait for each other in known ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import file_server

from whystall.tools.collect.objects import Objects
from whystall.tools.recording.target import Target

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reading other processes' memory and stacks needs root")

# `python job.py FILE`: process A; its children B (holds the other ends, stopped) and C (waits for A's file lock).
PROGRAM = """\
import ctypes, fcntl, os, signal, socket, sys, threading, time

libc = ctypes.CDLL(None)
mutex, shared, thread_id = ctypes.create_string_buffer(64), None, ctypes.c_ulong()
libc.pthread_mutex_init(mutex, None)
taken = threading.Event()

def holds_mutex():
    libc.pthread_mutex_lock(mutex)
    taken.set()
    time.sleep(100)

def wants_mutex():
    taken.wait()
    libc.pthread_mutex_lock(mutex)

def spins():
    while True:
        sum(range(1000))

joined = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(100))

def joins():
    libc.pthread_create(ctypes.byref(thread_id), None, joined, None)
    libc.pthread_join(thread_id, None)

def reads_pipe():
    os.read(pipe[0], 1)

def reads_tcp():
    client.recv(1)

def reads_unix():
    pair[0].recv(1)

def polls():
    import select
    poller = select.epoll()
    poller.register(pair[0])
    select.select([pipe[0]], [], [])

pipe, pair = os.pipe(), socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    if os.fork() == 0:
        fcntl.flock(open(sys.argv[1], "w"), fcntl.LOCK_EX)
    accepted, _ = server.accept()
    for one in (client, pair[0]):
        one.close()
    os.close(pipe[0])
    accepted.sendall(b"x")
    os.kill(os.getpid(), signal.SIGSTOP)
os.close(pipe[1])
pair[1].close()
client.recv(1)
for function in (holds_mutex, wants_mutex, joins, spins, spins, reads_pipe, reads_tcp, reads_unix, polls):
    threading.Thread(target=function, daemon=True).start()
time.sleep(0.1)
print("ready", flush=True)
time.sleep(100)
"""
Row = dict[str, Any]


class Seen:
    """The last look at the job."""

    def __init__(self, root: int, objects: Objects) -> None:
        objects.take_snapshot()
        objects.take_snapshot(last=True)
        self.capture = objects.read()
        self.root = root
        tables = self.capture.tables
        self.tables = {
            name: frame.filter(at_ns=frame["at_ns"].max()).rows(named=True)
            for name, frame in tables.items()
            if "at_ns" in frame.columns
        }
        stacks = {row["stack"]: row["frames"] for row in tables["stacks"].rows(named=True)}
        self.frames = {row["tid"]: stacks.get(row["pystack"], []) for row in self.tables["threads"]}

    def thread(self, function: str) -> Row:
        """The thread of the job whose innermost frame in the program is `function`."""
        (row,) = [row for row in self.tables["threads"] if self.code(row["tid"]).startswith(f"{function} (")]
        return row

    def code(self, tid: int) -> str:
        return next((frame for frame in self.frames[tid] if "(job.py:" in frame), "")

    def others(self, name: str, writes: bool = True) -> set[int]:
        """The processes other than the job's first one that may write to `name`."""
        rows = [row for row in self.tables["ends"] if row["object"] == name and (row["writes"] or not writes)]
        return {row["pid"] for row in rows} - {self.root}


def line(text: str) -> int:
    return PROGRAM.splitlines().index(text) + 1


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    script = tmp_path_factory.mktemp("objects") / "job.py"
    script.write_text(PROGRAM)
    argv = [sys.executable, str(script), str(script.with_name("locked"))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1)
            # of the first process only: its children are found
            target = Target(everything=False, pid=process.pid, pids=[process.pid])
            yield Seen(process.pid, Objects(target))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_everything_was_seen(seen: Seen) -> None:
    assert seen.capture.proven
    assert seen.capture.not_seen == []


def test_owners_of_locks(seen: Seen) -> None:
    waits, holds = seen.thread("wants_mutex"), seen.thread("holds_mutex")
    assert (waits["syscall"], waits["lock_kind"], waits["owner_tid"]) == ("futex", "mutex", holds["tid"])
    joins, joined = seen.thread("joins"), seen.thread("<lambda>")
    assert (joins["lock_kind"], joins["owner_tid"]) == ("join", joined["tid"])
    assert seen.code(holds["tid"]) == f"holds_mutex (job.py:{line('    taken.set()') + 1})"


def test_the_interpreter_lock(seen: Seen) -> None:
    spinning = {tid for tid in seen.frames if seen.code(tid).startswith("spins (")}
    assert len(spinning) == 2
    own = [row for row in seen.tables["interpreters"] if row["pid"] == seen.root]
    assert {row["version"] for row in own} == {f"3.{sys.version_info[1]}"}
    assert len({row["word"] for row in own}) == len(own)
    holder = {row["tid"] for row in seen.tables["threads"] if row["holds_gil"] and row["pid"] == seen.root}
    # between two holders nobody has it
    assert holder <= spinning
    waiting = [row for row in seen.tables["threads"] if row["tid"] in spinning and row["lock"]]
    assert all(row["lock_kind"] == "gil" for row in waiting)


def test_the_other_ends_of_pipes_and_sockets(seen: Seen) -> None:
    (stopped,) = [row for row in seen.tables["threads"] if row["state"] == "T"]
    for function in ("reads_pipe", "polls"):
        reads = seen.thread(function)
        assert reads["object"].startswith("pipe:[")
        assert stopped["pid"] in seen.others(reads["object"])
    sockets = {row["inode"]: row for row in seen.tables["sockets"]}
    for function, protocol in (("reads_tcp", "tcp"), ("reads_unix", "stream")):
        waits = seen.thread(function)
        own = sockets[int(waits["object"].removeprefix("socket:[").removesuffix("]"))]
        peer = sockets[own["peer"]]
        assert (own["protocol"], own["pid"], own["state"]) == (protocol, seen.root, "established")
        assert stopped["pid"] in seen.others(f"socket:[{peer['inode']}]")
    tcp = next(row for row in sockets.values() if row["protocol"] == "tcp" and row["bytes_acked"] >= 1)
    assert tcp["rtt_us"] > 0
    assert tcp["local"].startswith("127.0.0.1:")


def test_file_locks(seen: Seen) -> None:
    (waiter,) = [row for row in seen.tables["threads"] if row["syscall"] == "flock"]
    (held,) = [row for row in seen.tables["file_locks"] if row["waits"] and row["pid"] == waiter["pid"]]
    assert (held["holder_pid"], held["kind"]) == (seen.root, "flock")
    assert held["path"] == waiter["object"]
    assert held["path"].endswith("/locked")


def test_a_process_in_other_namespaces() -> None:
    """It holds the pipe that the target reads, and is no child of it."""
    program = "import socket; a, b = socket.socketpair(); a.recv(1)"
    with subprocess.Popen(["unshare", "-pnf", sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
        reader = subprocess.Popen(["cat"], stdin=writer.stdout, stdout=subprocess.DEVNULL)
        children = Path(f"/proc/{writer.pid}/task/{writer.pid}/children")
        try:
            time.sleep(0.3)
            inside = int(children.read_text().split()[0])
            objects = Objects(Target(everything=False, pid=reader.pid, pids=[reader.pid]))
            objects.take_snapshot(last=True)
            tables = objects.read().tables
            assert {reader.pid, writer.pid, inside} <= set(tables["threads"]["pid"])
            objects = Objects(Target(everything=False, pid=inside, pids=[inside]))
            objects.take_snapshot(last=True)
            tables = objects.read().tables
            (waits,) = tables["threads"].filter(pid=inside).rows(named=True)
            assert tables["stacks"].filter(stack=waits["pystack"])["frames"].to_list() == [["<module> (<string>:1)"]]
            sockets = {f"socket:[{row['inode']}]": row for row in tables["sockets"].rows(named=True)}
            peer = sockets[waits["object"]]["peer"]
            assert sockets[f"socket:[{peer}]"]["pid"] == inside
        finally:
            for pid in (*map(int, children.read_text().split()), writer.pid, reader.pid):
                os.kill(pid, signal.SIGKILL)
            reader.wait()


def test_the_server_of_a_file() -> None:
    with file_server("read=1") as (backing, mount):
        (backing / "x").write_text("content")
        with subprocess.Popen(["cat", str(mount / "x")], stdout=subprocess.DEVNULL) as reader:
            time.sleep(0.3)
            objects = Objects(Target(everything=False, pid=reader.pid, pids=[reader.pid]))
            objects.take_snapshot(last=True)
    tables = objects.read().tables
    (waits,) = tables["threads"].filter(pid=reader.pid).rows(named=True)
    assert waits["object"] == str(mount / "x")
    (server,) = set(tables["ends"].filter(object=waits["object"])["pid"])
    assert "fuse_dev_do_read" in tables["threads"].filter(pid=server)["wchan"].to_list()
