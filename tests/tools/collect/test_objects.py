"""The collector `objects` on directories that look like /proc, and its parsers."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whystall.bpf import syscalls
from whystall.tools.collect.objects import Objects
from whystall.tools.collect.objects_file_locks import concerning, file_locks, same_lock
from whystall.tools.collect.objects_frozen import Freezers
from whystall.tools.collect.objects_fuse import FuseMounts, served_connection, waits_for_server
from whystall.tools.collect.objects_proc import Proc, waited_descriptors, waited_path
from whystall.tools.collect.objects_python import Interpreters
from whystall.tools.collect.objects_snapshot import shared_file, shared_files
from whystall.tools.collect.objects_threads import ThreadInfo, ThreadReader
from whystall.tools.collect.proc_parse import InSyscall
from whystall.tools.collect.tables import OBJECTS
from whystall.tools.recording.target import Target

GONE = 1 << 22  # no process has a number above pid_max
LOCKS = b"""\
1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:131 0 EOF
1:  -> FLOCK  ADVISORY  WRITE 4713 fd:01:131 0 EOF
2: POSIX  ADVISORY  READ  99 00:1d:7 100 199
3: OFDLCK ADVISORY  READ -1 00:1d:8 0 EOF
nonsense
"""


def number(name: str) -> int:
    return next(nr for nr, known in syscalls.names().items() if known == name)


class Pretended:
    """A /proc with one process."""

    def __init__(self, root: Path, pid: int = GONE) -> None:
        self.root, self.pid = root, pid
        (root / str(pid) / "fd").mkdir(parents=True)
        (root / str(pid) / "fdinfo").mkdir()
        (root / str(pid) / "status").write_text("Name:\tx\nTracerPid:\t0\nNSpid:\t7\n")
        (root / "self").mkdir()
        (root / "self/mountinfo").write_text("")

    def thread(self, tid: int, state: str, call: str, wchan: str = "0", comm: str = "worker", tracer: int = 0) -> None:
        task = self.root / str(self.pid) / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{tid} ({comm}) {state} 1 " + "0 " * 48)
        (task / "syscall").write_text(call)
        (task / "wchan").write_text(wchan)
        (task / "stack").write_text("[<0>] pipe_read+0x1f/0x40\n[<0>] vfs_read+0x1/0x2\n")
        (task / "status").write_text(f"Name:\tx\nTracerPid:\t{tracer}\n")

    def descriptor(self, fd: int, link: str, fdinfo: str = "") -> None:
        (self.root / str(self.pid) / "fd" / str(fd)).symlink_to(link)
        (self.root / str(self.pid) / "fdinfo" / str(fd)).write_text(fdinfo)

    def read(self, most: int = 100) -> list[ThreadInfo]:
        proc = Proc(str(self.root))
        reader = ThreadReader(proc, Interpreters(str(self.root)), Freezers(str(self.root)))
        return reader.read(self.pid, most, lambda: False).threads


@pytest.fixture
def proc(tmp_path: Path) -> Pretended:
    return Pretended(tmp_path)


def call(name: str, *args: int) -> str:
    words = [*args, *[0] * (6 - len(args)), 0x7FFC, 0x7F1E]
    return f"{number(name)} " + " ".join(hex(word) for word in words)


def test_a_thread_that_reads_a_pipe(proc: Pretended) -> None:
    proc.descriptor(5, "pipe:[123]")
    proc.thread(11, "S", call("read", 5), "pipe_read", comm="a\x1b[31m) S (")
    (thread,) = proc.read()
    assert (thread.object, thread.fd, thread.syscall, thread.wchan) == ("pipe:[123]", 5, "read", "pipe_read")
    assert thread.kstack == ("pipe_read", "vfs_read")
    assert thread.comm == "a\\x1b[31m) S ("


@pytest.mark.parametrize(
    ("text", "limited"),
    [
        (call("futex", 0, 128, 2), 0),
        (call("futex", 0, 128, 2, 0x7F00), 1),
        (call("poll", 0, 0, 0xFFFFFFFF), 0),
        (call("poll", 0, 0, 5000), 1),
        (call("epoll_wait", 4, 0, 8, 0xFFFFFFFFFFFFFFFF), 0),
        (call("read", 5), 0),
        (call("restart_syscall"), -1),
    ],
)
def test_a_call_may_have_a_time_out(proc: Pretended, text: str, limited: int) -> None:
    proc.thread(11, "S", text)
    assert [thread.limited for thread in proc.read()] == [limited]


def test_a_running_thread_waits_for_nothing(proc: Pretended) -> None:
    proc.thread(11, "R", "running\n")
    (thread,) = proc.read()
    assert (thread.object, thread.syscall, thread.kstack, thread.lock.owner) == ("", "", (), -1)


def test_a_traced_thread_names_its_tracer(proc: Pretended) -> None:
    proc.thread(11, "t", "running\n", tracer=33)
    assert [thread.tracer_pid for thread in proc.read()] == [33]


def test_an_epoll_set_leads_to_its_members(proc: Pretended) -> None:
    proc.descriptor(4, "anon_inode:[eventpoll]", "pos:\t0\ntfd:        6 events:       19 data: 6\ntfd: 99 events: 1\n")
    proc.descriptor(6, "anon_inode:[eventfd]", "eventfd-count: 0\neventfd-id: 17\n")
    proc.thread(11, "S", call("epoll_wait", 4), "ep_poll")
    (thread,) = proc.read()
    assert thread.object == "anon_inode:[eventpoll]"
    assert thread.objects[1:] == [(6, "anon_inode:[eventfd:17]")]
    assert thread.members == [(6, "anon_inode:[eventfd:17]"), (99, "")]


def test_threads_that_ended_and_too_many(proc: Pretended) -> None:
    for tid in range(20, 25):
        proc.thread(tid, "S", "0")
    (proc.root / str(proc.pid) / "task/20/stat").write_text("")
    (proc.root / str(proc.pid) / "task/21/stat").write_text("21 (x) Z 1 " + "0 " * 48)
    assert [thread.tid for thread in proc.read()] == [22, 23, 24]
    assert [thread.tid for thread in proc.read(most=3)] == [22]


def test_a_target_that_has_exited_leaves_empty_tables() -> None:
    objects = Objects(Target(everything=False, pid=GONE, pids=[GONE]))
    objects.take_snapshot()
    objects.take_snapshot(last=True)
    capture = objects.read()
    assert {name: frame.schema for name, frame in capture.tables.items()} == OBJECTS
    assert capture.tables["threads"].is_empty()
    assert capture.proven


def test_what_calls_wait_for() -> None:
    class Memory:
        def read(self, address: int, size: int) -> bytes:
            content = (
                struct.pack("<ihhihh", -1, 1, 0, 9, 1, 0) if address == 16 else struct.pack("<Q", 1 << 3 | 1 << 40)
            )
            if size > len(content):
                raise OSError("unmapped")
            return content[:size]

    def waited(name: str, *args: int) -> list[int]:
        return waited_descriptors(InSyscall(number(name), args), name, Memory())

    assert waited("ppoll", 16, 2, 0, 0) == [9]
    assert waited("ppoll", 16, 5000, 0, 0) == []
    assert waited("pselect6", 41, 8, 0, 0, 0, 0) == [3, 40]
    assert waited("read", 3) == [3]
    assert waited("read", (1 << 64) - 100) == []
    assert waited("ppoll") == []
    assert waited("nanosleep", 5) == []
    assert waited_descriptors(InSyscall(number("ppoll"), (16, 2, 0)), "ppoll", None) == []


def test_file_locks() -> None:
    found = file_locks(LOCKS)
    assert [(lock.kind, lock.pid, lock.dev, lock.ino, lock.waits, lock.holder_pid) for lock in found] == [
        ("flock", 4711, "253:1", 131, False, -1),
        ("flock", 4712, "253:1", 131, True, 4711),
        ("flock", 4713, "253:1", 131, True, 4711),
        ("posix", 99, "0:29", 7, False, -1),
        ("ofd", -1, "0:29", 8, False, -1),
    ]
    assert (found[3].start_byte, found[3].end_byte, found[3].exclusive) == (100, 199, False)
    assert [lock.pid for lock in concerning(found, {4713})] == [4711, 4712, 4713, 99, -1]
    assert [lock.pid for lock in concerning(found, {99})] == [99, 4711, 4712, 4713, -1]
    assert [lock.pid for lock in concerning(found, None)] == [4711, 4712, 4713]
    info = b"pos:\t0\nflags:\t0100001\nlock:\t1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF\n"
    assert same_lock(info, found[0])
    assert not same_lock(info, found[3])


def test_who_waits_for_the_end_of_a_lease_waits_for_its_file() -> None:
    lines = b"11: LEASE  BREAKING  READ 101 fe:00:2149 0 EOF\n11: -> LEASE  BREAKER   READ 112 <none>:0 0 EOF\n"
    (held, asked) = file_locks(lines)
    assert (asked.kind, asked.pid, asked.dev, asked.ino, asked.waits) == ("lease", 112, "254:0", 2149, True)
    assert asked.holder_pid == held.pid == 101
    assert file_locks(lines.splitlines()[1]) == []


def test_shared_mappings() -> None:
    maps = b"""\
7f00-7f10 rw-s 00000000 00:01 77 /dev/shm/x y
7f10-7f20 rw-p 00000000 fd:01 78 /lib/x
7f20-7f30 rw-s 00000000 00:00 0
"""
    assert shared_file(maps, 0x7F08) == (b"00:01", b"77")
    assert shared_file(maps, 0x7F10) is None
    assert shared_file(maps, 0x7F28) is None
    assert shared_file(maps, 0x8000) is None
    assert shared_files(maps) == {(b"00:01", b"77")}


def test_frozen_cgroups(tmp_path: Path) -> None:
    group = tmp_path / "cgroup/job"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"30 1 0:26 / {tmp_path}/cgroup rw - cgroup2 cgroup2 rw\n")
    freezers = Freezers(str(tmp_path))
    assert freezers.frozen(b"0::/job\n")
    assert not freezers.frozen(b"0::/\n")
    assert not freezers.frozen(b"0::/../job\n")
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert freezers.frozen(b"0::/job\n")  # known from this look
    freezers.forget()
    assert not freezers.frozen(b"0::/job\n")


def test_servers_of_fuse(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5/mountinfo").write_text(
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "57 27 0:41 / /data rw - fuse.s3 s3 rw\n"
        "58 57 254:1 / /data/local rw - ext4 /dev/vdb rw\n"
    )
    mounts = FuseMounts(Proc(str(tmp_path)))
    paths = ("/data/x", "/data", "/database", "/data/local/x", "/")
    assert [mounts.connection(5, path) for path in paths] == ["fuse:[41]", "fuse:[41]", "", "", ""]
    assert mounts.connection(6, "/data/x") == ""
    assert served_connection(b"pos:\t0\nfuse_connection:\t41\n") == "fuse:[41]"
    assert served_connection(b"pos:\t0\n") == ""  # an older kernel
    assert waits_for_server("folio_wait_bit_common", ("folio_wait_bit_common", "fuse_file_read_iter"))
    assert not waits_for_server("fuse_dev_do_read", ("fuse_dev_do_read", "fuse_dev_read"))


def test_the_path_of_a_call() -> None:
    class Memory:
        def read(self, address: int, size: int) -> bytes:
            content = {4080: b"/tmp/x\0y".ljust(16, b"."), 8192: b"relative\0".ljust(4096, b".")}[address]
            if size > len(content):
                raise OSError("the next page is not mapped")
            return content[:size]

    def path(name: str, *args: int) -> bytes:
        return waited_path(InSyscall(number(name), args), name, Memory())

    assert path("openat", 3, 4080, 0) == b"/tmp/x"
    assert path("openat", 3, 8192, 0) == b""
    assert path("read", 3, 4080, 0) == b""


def test_our_own_process_is_not_among_the_children_of_the_target() -> None:
    objects = Objects(Target(everything=False, pid=os.getppid(), pids=[os.getppid()]))
    objects.take_snapshot(last=True)
    assert os.getpid() not in objects.read().tables["threads"]["pid"].to_list()


_PAIR = """
import os, socket
a, b = socket.socketpair()
child = os.fork()
if child == 0:
    b.recv(1)
print(child, os.fstat(a.fileno()).st_ino, os.fstat(b.fileno()).st_ino, flush=True)
a.recv(1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="reading the descriptors of other processes needs root")
def test_of_a_pair_that_two_processes_hold_the_other_one_has_the_other_end() -> None:
    """As with multiprocessing.Pipe, where both ends stay open in the forked process."""
    with subprocess.Popen([sys.executable, "-c", _PAIR], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, ours, theirs = (int(word) for word in parent.stdout.readline().split())
        try:
            while not all(_receives(pid) for pid in (parent.pid, child)):
                time.sleep(0.01)
            objects = Objects(Target(everything=False, pid=parent.pid, pids=[parent.pid]))
            objects.take_snapshot(last=True)
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()
    rows = objects.read().tables["sockets"].iter_rows(named=True)
    assert {row["inode"]: row["pid"] for row in rows} == {ours: parent.pid, theirs: child}


def _receives(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().startswith(f"{number('recvfrom')} ")
