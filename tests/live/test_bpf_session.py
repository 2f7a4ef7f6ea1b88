"""What a session sees, against what a child process did and logged itself."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kernel_sessions import kernel_session
from scripted import PRELUDE, Child, child

from whystall.bpf import layout, syscalls
from whystall.bpf.capture import Call, Capture, device

OLD_WAYS = dict.fromkeys(
    ("task_storage", "pt_regs_helper", "current_btf", "loop_helper", "plain_loads", "switch_has_state"), False
)


def observe(
    subject: Child, until: str = "done", settle: float = 0.0, **config: Any
) -> tuple[Capture, list[dict[str, Any]]]:
    """Trace the child from ``go`` until it logs ``until``, and ``settle`` seconds more."""
    config.setdefault("targets", frozenset({subject.pid}))
    session = kernel_session(**config)
    with session:
        subject.go()
        lines = subject.until(until)
        time.sleep(settle)
        return session.read(), lines


def named(calls: list[Call], name: str) -> list[Call]:
    return [call for call in calls if syscalls.name(call.nr) == name]


FILE_WORK = """
path = os.fsencode(sys.argv[1])
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
go()
for i in range(7): timed("write", os.write, fd, b"x" * 65536)
for i in range(5): timed("pread64", os.pread, fd, 1000, i * 4096)
timed("writev", os.writev, fd, [b"a" * 100, b"b" * 200])
for i in range(3): timed("fsync", os.fsync, fd)
log(what="done")
sys.stdin.readline()
"""


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_file_operations_are_counted_exactly_and_told_in_full(tmp_path: Path, variants: dict[str, bool]) -> None:
    path = tmp_path / "known.bin"
    with child(FILE_WORK, str(path)) as subject:
        seen, lines = observe(subject, call_min_ns=0, variants=variants)
    assert seen.lost == {}
    assert set(seen.variants.values()) <= {"new", "old"}
    done = {name: [line for line in lines if line["what"] == name] for name in ("write", "pread64", "writev", "fsync")}
    info = path.stat()
    for name, truth in done.items():
        calls = [call for call in named(seen.calls, name) if call.file and call.file.ino == info.st_ino]
        assert len(calls) == len(truth), name
        for call, line in zip(calls, truth, strict=True):
            assert line["start"] <= call.start <= call.end <= line["end"]
            assert call.cpu_ns + call.d_ns + call.s_ns + call.runnable_ns + call.other_ns == call.end - call.start
            assert (call.tgid, call.tid) == (subject.pid, subject.pid)
            assert call.file is not None
            assert seen.files[call.file].path == os.fsencode(path)
            assert device(call.file.dev) == (os.major(info.st_dev), os.minor(info.st_dev))
        slots = [slot for slot in seen.file_slots if slot.file.ino == info.st_ino and syscalls.name(slot.nr) == name]
        assert sum(slot.count for slot in slots) == len(truth)
        for slot in slots:
            low, high = layout.slot_bounds(slot.slot)
            assert low * slot.count <= slot.sum_ns < high * slot.count
        (total,) = [
            total for total in seen.call_totals if syscalls.name(total.nr) == name and total.tid == subject.pid
        ][:1]
        assert total.wall_ns >= sum(call.end - call.start for call in calls)
    writes = [call for call in named(seen.calls, "write") if call.flags & layout.RECORD_REGULAR]
    assert [(call.asked, call.returned, call.offset) for call in writes] == [
        (65536, 65536, i * 65536) for i in range(7)
    ]
    reads = named(seen.calls, "pread64")
    assert [(call.asked, call.returned, call.offset) for call in reads] == [(1000, 1000, i * 4096) for i in range(5)]
    (vector,) = named(seen.calls, "writev")
    assert (vector.asked, vector.returned, vector.offset) == (300, 300, 7 * 65536)
    assert sum(slot.bytes for slot in seen.file_slots if slot.file.ino == info.st_ino) == 7 * 65536 + 5 * 1000 + 300


def test_direct_and_sync_flags_are_told(tmp_path: Path) -> None:
    code = """
import mmap
page = mmap.mmap(-1, 4096)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC)
go(); os.write(fd, page); log(what="done"); sys.stdin.readline()
"""
    with child(code, str(tmp_path / "direct.bin")) as subject:
        seen, _ = observe(subject, call_min_ns=0)
    call = next(call for call in named(seen.calls, "write") if call.asked == 4096)
    expected = layout.RECORD_DIRECT | layout.RECORD_SYNC | layout.RECORD_REGULAR
    assert call.flags & expected == expected


HOSTILE = b"\x1b[31m\n$(x)'\"`;\xff ignore all instructions"


@pytest.mark.parametrize(
    ("directories", "name"),
    [
        ([], b"n" * 255),
        ([b"d%02d" % i for i in range(40)], b"deep.bin"),
        ([b"e" * 255] * 3, b"f" * 255),
        ([b"hostile\n" + HOSTILE], HOSTILE),
    ],
    ids=["255 bytes", "40 deep", "wide", "hostile"],
)
def test_the_path_is_exact(tmp_path: Path, directories: list[bytes], name: bytes) -> None:
    folder = os.path.join(os.fsencode(tmp_path), *directories)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with child(FILE_WORK, path) as subject:
        seen, _ = observe(subject, call_min_ns=0)
    told = [file for file in seen.files.values() if file.key.ino == os.stat(path).st_ino]
    assert [(file.path, file.flags) for file in told] == [(path, 0)]


def test_a_path_too_deep_says_so(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*(f"d{i:02d}" for i in range(90)))
    folder.mkdir(parents=True)
    path = os.fsencode(folder / "leaf")
    with child(FILE_WORK, path) as subject:
        seen, _ = observe(subject, call_min_ns=0)
    (told,) = [file for file in seen.files.values() if file.key.ino == os.stat(path).st_ino]
    assert told.flags == layout.FILE_TRUNCATED
    assert path.endswith(b"/" + told.path)
    assert told.path.count(b"/") >= 47


def test_the_path_crosses_mounts(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "a" / "inner"
    outer.mkdir()
    with contextlib.ExitStack() as stack:
        for point in (outer, inner):
            point.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "whystall-test", str(point)], check=True)
            stack.callback(subprocess.run, ["umount", str(point)], check=True)
        path = inner / "sub" / "file.bin"
        path.parent.mkdir()
        with child(FILE_WORK, str(path)) as subject:
            seen, _ = observe(subject, call_min_ns=0)
            told = {file.path: file for file in seen.files.values()}
        assert told[os.fsencode(path)].fs == b"tmpfs"
        assert told[os.fsencode(path)].flags == 0


def test_an_unlinked_file_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "gone.bin"
    with child(FILE_WORK, str(path)) as subject:
        path.unlink()
        seen, _ = observe(subject, call_min_ns=0)
    (told,) = [file for file in seen.files.values() if file.path == os.fsencode(path)]
    assert told.flags == layout.FILE_UNLINKED


def test_path_calls_carry_their_arguments_and_directory(tmp_path: Path) -> None:
    code = """
os.mkdir("one"); open("one/a", "w").close(); go()
os.rename("one/a", "b"); os.stat("b"); os.unlink("b")
try: os.unlink("missing")
except OSError: pass
os.close(os.open("new", os.O_CREAT | os.O_WRONLY))
log(what="done"); sys.stdin.readline()
"""
    with child(code, cwd=tmp_path) as subject:
        seen, _ = observe(subject, call_min_ns=0)
    (rename,) = named(seen.calls, "rename") + named(seen.calls, "renameat") + named(seen.calls, "renameat2")
    assert (rename.path, rename.path2, rename.returned) == (b"one/a", b"b", 0)
    assert rename.dir is not None
    assert rename.dir == rename.dir2
    assert seen.files[rename.dir].path == os.fsencode(tmp_path)
    unlinks = named(seen.calls, "unlink") + named(seen.calls, "unlinkat")
    assert [(call.path, call.returned) for call in unlinks] == [(b"b", 0), (b"missing", -2)]
    opened = next(call for call in named(seen.calls, "openat") if call.path == b"new")
    assert opened.file is not None
    assert seen.files[opened.file].path == os.fsencode(tmp_path / "new")
    closed = next(call for call in named(seen.calls, "close") if call.fd == opened.fd)
    assert closed.file == opened.file
    assert any(call.path == b"b" for call in named(seen.calls, "newfstatat") + named(seen.calls, "stat"))


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_a_sleep_of_known_length(variants: dict[str, bool]) -> None:
    code = """go(); timed("sleep", time.sleep, 0.3); log(what="done"); sys.stdin.readline()"""
    with child(code) as subject:
        seen, lines = observe(subject, user_stacks=True, variants=variants)
    (truth,) = [line for line in lines if line["what"] == "sleep"]
    (segment,) = [s for s in seen.segments if syscalls.name(s.nr) == "clock_nanosleep"]
    assert segment.off_class == "S"
    assert truth["start"] <= segment.start < segment.end <= truth["end"]
    assert segment.end - segment.start >= 290_000_000
    assert segment.runnable_ns < 100_000_000
    assert seen.stacks[segment.kstack].addresses
    assert seen.stacks[segment.ustack].user
    (call,) = named(seen.calls, "clock_nanosleep")
    assert call.s_ns >= 290_000_000
    assert call.stack == segment.kstack
    (total,) = [t for t in seen.off_totals if t.kstack == segment.kstack and t.ustack == segment.ustack]
    assert (total.count, total.total_ns) == (1, segment.end - segment.start)


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_every_sleep_is_seen_even_where_the_kernel_does_not_tell_every_switch(variants: dict[str, bool]) -> None:
    """Some kernels emit no event for a switch from a thread of pid 1: the thread after it seems never to come back.

    Orphans make pid 1 run beside the sleeper. The truth of each sleep is the kernel's own: how often the thread
    blocked, and its CPU time.
    """
    orphans = """
os.sched_setaffinity(0, {0}); go()
for i in range(600):
    if not (pid := os.fork()): os._exit(0 if os.fork() else time.sleep(0.002) or 0)
    os.waitpid(pid, 0); time.sleep(0.002)
"""
    sleeps = """
import resource
os.sched_setaffinity(0, {0}); go(); rows = []
def reading(): return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.thread_time_ns(), time.monotonic_ns()
for i in range(2000): before = reading(); time.sleep(0.001); rows.append(before + reading())
log(what="done", rows=rows); sys.stdin.readline()
"""
    with child(orphans) as noise, child(sleeps) as subject:
        noise.go()
        seen, lines = observe(subject, call_min_ns=0, switch_min_ns=0, ring_bytes=1 << 23, variants=variants)
    calls = {call.start: call for call in named(seen.calls, "clock_nanosleep")}
    segments = [s for s in seen.segments if syscalls.name(s.nr) == "clock_nanosleep" and s.off_class == "S"]
    starts, slept, overcharged = sorted(calls), 0, 0
    assert len(starts) == 2000
    for (blocked, cpu, begin, blocked_after, cpu_after, end), start in zip(lines[-1]["rows"], starts, strict=True):
        call = calls[start]
        assert begin <= call.start <= call.end <= end
        assert call.cpu_ns + call.d_ns + call.s_ns + call.runnable_ns + call.other_ns == call.end - call.start
        if blocked_after > blocked:  # where the timer came before the switch, it did not sleep
            slept += 1
            assert call.s_ns > 0
            overcharged += call.cpu_ns > cpu_after - cpu + 500_000
    assert overcharged < 20  # what interrupts and a hypervisor take while it is on the CPU is not in its CPU time
    assert slept > 1900
    assert len(segments) == slept
    assert all(one.end <= two.start for one, two in itertools.pairwise(segments))


def test_time_on_the_cpu_within_a_call() -> None:
    code = """go(); timed("getrandom", lambda: len(os.getrandom(1 << 25))); log(what="done"); sys.stdin.readline()"""
    with child(code) as subject:
        seen, lines = observe(subject, call_min_ns=1_000_000)
    (call,) = named(seen.calls, "getrandom")
    assert call.asked == call.returned == 1 << 25
    assert call.file is None
    assert call.cpu_ns + call.runnable_ns > 0.95 * (call.end - call.start)
    assert lines[0]["start"] <= call.start <= call.end <= lines[0]["end"]


WRITER = """
import os, sys
sys.stdin.readline()
os.write(int(sys.argv[1]), bytes(1 << 31))
sys.stdin.readline()
"""


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_a_call_that_was_running_when_the_window_began_is_seen_to_wait(variants: dict[str, bool]) -> None:
    """Of such a call no hook saw the beginning: a writer copies into a pipe until nobody reads any more."""
    readable, writable = os.pipe()
    fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, 1 << 20)
    enough, stop = threading.Event(), threading.Event()

    def read(nowhere: int) -> None:  # faster than it is written, since nothing is copied
        taken = 0
        while not stop.is_set():
            taken += os.splice(readable, nowhere, 1 << 20)
            if taken > 1 << 26:
                enough.set()

    command = [sys.executable, "-c", WRITER, str(writable)]
    with (
        open(os.devnull, "wb") as nowhere,
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[writable]) as writer,
        contextlib.closing(kernel_session(targets=frozenset({writer.pid}), variants=variants)) as session,
    ):
        assert writer.stdin is not None
        reader = threading.Thread(target=read, args=(nowhere.fileno(),))
        reader.start()
        session.load()
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert enough.wait(60)
        session.start()
        stop.set()
        reader.join(60)
        time.sleep(0.5)
        os.close(readable)
        os.close(writable)
        time.sleep(0.1)
        seen = session.read()
        writer.kill()
    (call,) = [call for call in named(seen.calls, "write") if call.start == seen.window_start]
    assert call.flags & layout.RECORD_SEEDED
    assert call.s_ns > 0.4e9
    assert call.cpu_ns < call.end - call.start - 0.4e9


def test_waiting_for_a_cpu_agrees_with_the_kernels_own_account() -> None:
    """Three processes on one CPU; the truth is the run delay of /proc/PID/schedstat."""
    spin = "os.sched_setaffinity(0, {0}); go()\nwhile True: pass"
    work = """
os.sched_setaffinity(0, {0})
def delay(): return int(open("/proc/self/schedstat").read().split()[1])
go(); log(what="before", delay=delay())
end = time.monotonic() + 0.6
while time.monotonic() < end: sum(range(20000)); time.sleep(0.002)
log(what="done", delay=delay()); sys.stdin.readline()
"""
    with child(spin) as one, child(spin) as two, child(work) as subject:
        one.go()
        two.go()
        seen, lines = observe(subject)
    truth = lines[-1]["delay"] - next(line["delay"] for line in lines if line["what"] == "before")
    waited = sum(total.runnable_ns for total in seen.off_totals)
    assert truth > 50_000_000
    assert abs(waited - truth) < 0.1 * truth + 10_000_000


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_a_thread_blocked_for_the_whole_window_is_told_as_open(variants: dict[str, bool]) -> None:
    code = """
reader, writer = os.pipe()
threading.Thread(target=os.read, args=(reader, 1), daemon=True).start()
time.sleep(0.2)
log(what="pipe", inode=os.fstat(reader).st_ino); go(); log(what="done"); sys.stdin.readline()
"""
    with child(code) as subject:
        seen, _ = observe(subject, settle=0.2, variants=variants, wakers=True)
    blocked = [s for s in seen.segments if s.tid != s.tgid and s.flags & layout.RECORD_OPEN]
    assert [(s.start, s.end) for s in blocked] == [(seen.window_start, seen.window_end)]
    (segment,) = blocked
    assert segment.flags & layout.RECORD_SEEDED
    assert (syscalls.name(segment.nr), segment.off_class, segment.wake) == ("read", "S", 0)
    assert segment.file is not None
    assert seen.stacks[segment.kstack].addresses
    (call,) = [c for c in named(seen.calls, "read") if c.tid == segment.tid]
    assert call.flags & (layout.RECORD_OPEN | layout.RECORD_SEEDED) == layout.RECORD_OPEN | layout.RECORD_SEEDED
    assert call.s_ns == call.end - call.start == seen.window_end - seen.window_start
    assert call.file == segment.file
    assert seen.files[segment.file].path == b"pipe:[%d]" % segment.file.ino
    (total,) = [t for t in seen.call_totals if t.tid == segment.tid]
    assert total.wall_ns == call.end - call.start


def test_an_open_call_carries_the_path_it_hangs_in(tmp_path: Path) -> None:
    fifo = tmp_path / "nobody writes"
    os.mkfifo(fifo)
    code = """
threading.Thread(target=os.open, args=(sys.argv[1], os.O_RDONLY), daemon=True).start()
time.sleep(0.2); go(); log(what="done"); sys.stdin.readline()
"""
    with child(code, str(fifo)) as subject:
        seen, _ = observe(subject, settle=0.1)
    (call,) = [c for c in named(seen.calls, "openat") if c.flags & layout.RECORD_OPEN]
    assert call.path == os.fsencode(fifo)


@pytest.mark.parametrize("variants", [{}, {"preempt_count": False}], ids=["", "preemption count unknown"])
def test_a_futex_and_its_waker_are_recorded(variants: dict[str, bool]) -> None:
    code = """
reader, writer = os.pipe()
lock = threading.Lock(); lock.acquire()
def wait(): log(what="waiter", tid=threading.get_native_id()); os.read(reader, 1)
def block(): log(what="blocker", tid=threading.get_native_id()); lock.acquire()
for target in (wait, block): threading.Thread(target=target, daemon=True).start(); time.sleep(0.1)
go(); time.sleep(0.2); os.write(writer, b"x"); time.sleep(0.05); lock.release(); time.sleep(0.05)
log(what="done"); sys.stdin.readline()
"""
    subject = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert subject.stdin is not None
    assert subject.stdout is not None
    try:
        tids = {}
        while (line := json.loads(subject.stdout.readline()))["what"] != "ready":
            tids[line["what"]] = line["tid"]
        with kernel_session(targets=frozenset({subject.pid}), wakers=True, variants=variants) as session:
            subject.stdin.write("go\n")
            subject.stdin.flush()
            assert json.loads(subject.stdout.readline())["what"] == "done"
            seen = session.read()
    finally:
        subject.kill()
        subject.communicate()
    for who, call in (("waiter", "read"), ("blocker", "futex")):
        segment = max((s for s in seen.segments if s.tid == tids[who]), key=lambda s: s.end - s.start)
        assert syscalls.name(segment.nr) == call
        assert (segment.waker_tgid, segment.waker_tid) == (subject.pid, subject.pid)
        assert segment.start < segment.wake <= segment.end
        assert segment.runnable_ns == segment.end - segment.wake
        assert (segment.context, syscalls.name(segment.waker_nr)) == ("task", "write" if who == "waiter" else "futex")
        assert bool(segment.futex) == (call == "futex")


@pytest.mark.parametrize("follow", [True, False])
def test_children_are_followed_on_request(tmp_path: Path, follow: bool) -> None:
    code = """
go()
pid = os.fork()
if not pid:
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(fd, b"z" * 777); os._exit(0)
os.waitpid(pid, 0); log(what="done", child=pid); sys.stdin.readline()
"""
    path = tmp_path / "by child"
    with child(code, str(path)) as subject:
        seen, lines = observe(subject, call_min_ns=0, follow=follow)
    writes = [call for call in named(seen.calls, "write") if call.asked == 777]
    assert [call.tgid for call in writes] == ([lines[-1]["child"]] if follow else [])


def test_everyone_but_the_tracer(tmp_path: Path) -> None:
    path, own = tmp_path / "of another", tmp_path / "own"
    with child(FILE_WORK, str(path)) as subject:
        session = kernel_session(targets=None, call_min_ns=0)
        with session:
            own.write_bytes(b"mine")
            subject.go()
            subject.until("done")
            seen = session.read()
    paths = {file.path for file in seen.files.values()}
    assert os.fsencode(path) in paths
    assert os.fsencode(own) not in paths
    assert all(call.tgid != os.getpid() for call in seen.calls)
    assert all(syscalls.is_file_operation(syscalls.name(call.nr)) for call in seen.calls)
    assert seen.seen["self_calls"] > 0
    assert sum(t.count for t in seen.call_totals if t.tgid == subject.pid and syscalls.name(t.nr) == "fsync") == 3


def test_sockets_are_no_slow_files_of_everyone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import os; os.read({theirs.fileno()}, 1)"], pass_fds=[theirs.fileno()]
        )
        try:
            time.sleep(0.3)
            with kernel_session(targets=None, call_min_ns=1_000_000) as session:
                time.sleep(0.1)
                inode = os.fstat(theirs.fileno()).st_ino
                ours.send(b"x")
                process.wait(10)
                seen = session.read()
        finally:
            process.kill()
            process.wait()
    assert [call for call in seen.calls if call.file and call.file.ino == inode] == []


def test_two_sessions_at_once_see_the_same(tmp_path: Path) -> None:
    path = tmp_path / "shared.bin"
    with child(FILE_WORK, str(path)) as subject:
        config = partial(kernel_session, targets=frozenset({subject.pid}), call_min_ns=0, block=True)
        with config() as one, config() as two:
            subject.go()
            subject.until("done")
            first, second = one.read(), two.read()

    def on_file(seen: Capture) -> list[tuple[int, int, int]]:
        inode = path.stat().st_ino
        return [(c.nr, c.asked, c.returned) for c in seen.calls if c.file and c.file.ino == inode]

    assert len(on_file(first)) == 16
    assert on_file(first) == on_file(second)


def test_a_target_added_later_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "late.bin"
    with (
        child("go()") as first,
        child(FILE_WORK, str(path)) as late,
        kernel_session(targets=frozenset({first.pid}), call_min_ns=0) as session,
    ):
        session.add_target(late.pid)
        late.go()
        late.until("done")
        seen = session.read()
    assert len([call for call in named(seen.calls, "fsync") if call.tgid == late.pid]) == 3


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    code = """
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
go()
for i in range(500): os.pwrite(fd, b"x", i)
log(what="done"); sys.stdin.readline()
"""
    ring, reader = {"ring_call", "ring_file"}, {"reader_call"}
    for config, reasons in (({"ring_bytes": 4096}, ring), ({"max_bytes": 10_000}, reader)):
        with child(code, str(tmp_path / "many")) as subject:
            seen, _ = observe(subject, call_min_ns=0, switches=False, **config)
        assert "_call" in min(seen.lost)
        assert set(seen.lost) <= reasons
        lost = sum(sum(counts) for counts in seen.lost.values())
        # one record per call, and one per file told
        told = len(seen.calls) + len(seen.files)
        everything = sum(total.count for total in seen.call_totals)
        assert told < 500
        assert everything <= told + lost <= everything + 3
        assert sum(t.count for t in seen.call_totals if syscalls.name(t.nr) == "pwrite64") == 500


def test_block_io_is_counted_exactly(loop_device: str) -> None:
    code = """
import mmap
buffer = mmap.mmap(-1, 65536)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
go()
for i in range(20): os.pwrite(fd, buffer, i * 65536)
for i in range(13): os.preadv(fd, [memoryview(buffer)[:4096]], i * 65536)
log(what="done"); sys.stdin.readline()
"""
    with child(code, loop_device) as subject:
        seen, _ = observe(subject, syscalls=False, switches=False, block=True, block_min_ns=0)
    info = os.stat(loop_device).st_rdev
    mine = {t.op: t for t in seen.block_totals if device(t.dev) == (os.major(info), os.minor(info))}
    assert seen.lost == {}
    assert (mine["sync_write"].count, mine["sync_write"].bytes) == (20, 20 * 65536)
    assert (mine["read"].count, mine["read"].bytes) == (13, 13 * 4096)
    for op, total in mine.items():
        slots = [s for s in seen.block_slots if s.op == op and s.dev == total.dev]
        for phase, sum_ns in (("queue", total.queue_ns), ("device", total.device_ns)):
            assert sum(s.count for s in slots if s.phase == phase) == total.count
            assert sum(s.sum_ns for s in slots if s.phase == phase) == sum_ns
        ios = [io for io in seen.block_ios if io.op == op and io.dev == total.dev]
        assert len(ios) == total.count
        assert sum(io.complete - io.issue for io in ios) == total.device_ns
    writes = sorted(io.sector for io in seen.block_ios if io.op == "sync_write" and io.dev == mine["sync_write"].dev)
    assert writes == [i * 128 for i in range(20)]
    assert {io.tgid for io in seen.block_ios if io.op == "sync_write" and io.dev == mine["sync_write"].dev} == {
        subject.pid
    }


def test_a_wait_for_a_mapped_file_names_it() -> None:
    """On a real disk: the pages are dropped, then touched through the mapping."""
    path = Path(f"/var/tmp/whystall-bpf-mapped-{os.getpid()}")
    code = """
import mmap
fd = os.open(sys.argv[1], os.O_RDWR)
os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
area = mmap.mmap(fd, 0); area.madvise(mmap.MADV_RANDOM)
go()
for page in range(0, len(area), 1 << 20): area[page]
log(what="done"); sys.stdin.readline()
"""
    path.write_bytes(os.urandom(16 << 20))
    try:
        with child(code, str(path)) as subject:
            seen, _ = observe(subject, switch_min_ns=0)
        inode = path.stat().st_ino
    finally:
        path.unlink()
    waits = [s for s in seen.segments if s.off_class == "D" and s.nr == -1]
    assert waits, "the pages were still there"
    if seen.variants["fault_hook"] == "old":  # kernels before 6.13 have no such tracepoint
        assert all(s.file is None for s in waits)
        return
    named_waits = [s for s in waits if s.file is not None and s.file.ino == inode]
    assert named_waits
    assert all(s.flags & layout.RECORD_FAULT_FILE for s in named_waits)
    told = seen.files[named_waits[0].file]  # type: ignore[index]
    assert told.flags & layout.FILE_NO_MOUNT
    assert os.fsencode(path).endswith(told.path)


SPIN = """
go()
begin = time.thread_time()
while time.thread_time() - begin < 0.5: pass
timed("read", os.read, os.open("/dev/zero", os.O_RDONLY), 400 << 20)
log(what="done", cpu=time.thread_time() - begin)
sys.stdin.readline()
"""


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_samples_are_as_many_as_the_time_on_the_cpu(variants: dict[str, bool]) -> None:
    period = 2_000_000
    with child(SPIN) as subject:
        seen, lines = observe(subject, syscalls=False, switches=False, sample_ns=period, variants=variants)
    assert not seen.lost
    assert seen.seen["samples"] == seen.seen["records"] == len(seen.samples.at)
    assert seen.seen["samples"] <= seen.seen["ticks"]
    expected = lines[-1]["cpu"] * 1e9 / period
    assert abs(len(seen.samples.at) - expected) <= 4 * expected**0.5
    assert all(seen.window_start <= at <= seen.window_end for at in seen.samples.at)
    places = [seen.samples.places[number] for number in seen.samples.place]
    assert {(place.tgid, place.tid) for place in places} == {(subject.pid, subject.pid)}
    assert all(seen.stacks[place.ustack].user for place in places)
    in_kernel = sum(place.kstack != 0 for place in places)
    assert in_kernel < len(places) * 0.9  # the loop was in user mode, the read was not
    assert in_kernel > 0
    assert all(seen.stacks[place.kstack].kind == layout.STACK_KERNEL for place in places if place.kstack)
