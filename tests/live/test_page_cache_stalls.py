"""Evictions at a cgroup's limit and time lost to memory, against what the child that suffers says of itself."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from kernel_sessions import kernel_session
from scripted import child

from whystall.bpf import syscalls
from whystall.bpf.capture import Capture, FileKey, device
from whystall.bpf.capture_pages import Pages, Stall

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="tracing, cgroups and mounting need root")

LIMIT = 32 << 20
SIZE = 3 * LIMIT
PAGES = SIZE // mmap.PAGESIZE
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
CLOCK_MONOTONIC_COARSE = 6  # uapi/linux/time.h


@pytest.fixture(scope="module")
def disk(ext4: Callable[[int], Path]) -> Path:
    """A file system of our own."""
    return ext4(768)


@contextmanager
def held_back(place: Path) -> Iterator[None]:
    """The disk of `place` may have next to no dirty pages, so the kernel makes its writers pause. A loop device keeps
    this after it is unmounted, for whoever has it next: it is as it was in the end.
    """
    number = place.stat().st_dev
    backing = Path(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}")
    if not (backing / "strict_limit").exists():
        pytest.skip("the kernel cannot be asked to hold back writers of one disk (before 6.2)")
    before = {name: (backing / name).read_text() for name in ("max_ratio", "strict_limit")}
    for name in before:
        (backing / name).write_text("1")
    try:
        yield
    finally:
        for name, value in before.items():
            (backing / name).write_text(value)


@contextmanager
def limited(pid: int) -> Iterator[None]:
    """Process `pid` in a memory cgroup of its own with `LIMIT` bytes, until it has ended."""
    old = (V1 / "memory.limit_in_bytes").exists()
    if not old and "memory" not in (V2 / "cgroup.controllers").read_text().split():
        pytest.skip("no memory controller")
    root = V1 if old else V2
    if not old:
        (root / "cgroup.subtree_control").write_text("+memory")
    group = root / f"whystall-test-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(LIMIT))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(left)
        group.rmdir()


def pages_of(capture: Capture) -> Pages:
    assert capture.pages is not None
    assert not capture.lost
    return capture.pages


def stalls_of(capture: Capture, tid: int, what: str) -> list[Stall]:
    return [stall for stall in pages_of(capture).stalls if stall.tid == tid and stall.what == what]


def is_file(key: FileKey | None, path: Path) -> bool:
    info = path.stat()
    return (
        key is not None
        and key.ino == info.st_ino
        and device(key.dev)
        == (
            os.major(info.st_dev),
            os.minor(info.st_dev),
        )
    )


STREAM = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
path, size = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
for at in range(0, size, 1 << 20): os.write(fd, b"x" * (1 << 20))
os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
def resident():
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    told = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    assert libc.mincore(address, size, told) == 0
    return sum(one & 1 for one in told)
def read():
    start = time.monotonic_ns()
    for at in range(0, size, 1 << 17): os.pread(fd, 1 << 17, at)
    log(what="read", ns=time.monotonic_ns() - start, resident=resident())
go()
read(); read()
log(what="done"); sys.stdin.readline()
"""


def test_what_a_limit_evicts_is_counted_and_so_is_the_time_that_costs(disk: Path) -> None:
    path = disk / "stream"
    with child(STREAM, str(path), str(SIZE)) as subject, limited(subject.pid):
        config = partial(
            kernel_session, targets=frozenset({subject.pid}), syscalls=False, switches=False, page_cache=True
        )
        with config() as session:
            subject.go()
            first, second, _ = subject.until("done")
            capture = session.read()
        (use,) = [use for use in pages_of(capture).uses if is_file(use.file, path) and use.tgid == subject.pid]
        (gone,) = [file for file in pages_of(capture).files if is_file(file.file, path)]
    if use.accessed >= 0:
        assert (use.accessed, use.again) == (2 * PAGES, PAGES)
    # mincore is the truth: what came is still there, or was evicted
    assert use.added - gone.reclaimed == pytest.approx(second["resident"], abs=0.02 * PAGES)
    assert gone.dropped == 0
    assert gone.reclaimed >= 2 * (SIZE - LIMIT) // mmap.PAGESIZE
    assert use.added == pytest.approx(PAGES + use.refaulted, rel=0.02)  # the second time, all are refaults
    assert use.refaulted >= PAGES - first["resident"] - 0.02 * PAGES
    # read once each time they came, or not at all
    assert gone.judged == gone.reclaimed
    assert gone.one_pass == pytest.approx(gone.judged, rel=0.02)
    assert gone.touched_once == pytest.approx(use.added - gone.reclaimed, abs=0.02 * PAGES)
    (stall,) = stalls_of(capture, subject.pid, "cgroup_reclaim")
    assert stall.pages == pytest.approx(gone.reclaimed, rel=0.1)  # it may have anonymous pages too
    assert 0 < stall.max_ns <= stall.total_ns <= first["ns"] + second["ns"]
    assert capture.window_start <= stall.longest_at < capture.window_end
    assert not stall.in_flight


LOCK = """
import mmap
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
block = mmap.mmap(-1, 4 << 20)
def extend(number):
    spent = 0
    for i in range(12):
        start = time.monotonic_ns()
        os.pwrite(fd, block, (2 * i + number) * (4 << 20))
        spent += time.monotonic_ns() - start
    log(what="wrote", tid=threading.get_native_id(), ns=spent)
threads = [threading.Thread(target=extend, args=(number,)) for number in (0, 1)]
go()
for thread in threads: thread.start()
for thread in threads: thread.join()
log(what="done"); sys.stdin.readline()
"""


def test_two_writers_wait_for_the_lock_of_their_file(disk: Path) -> None:
    """A direct write beyond the end holds the lock while it waits for the disk."""
    path = disk / "locked"
    with child(LOCK, str(path)) as subject:
        config = partial(
            kernel_session, targets=frozenset({subject.pid}), syscalls=False, switches=False, page_cache=True
        )
        with config() as session:
            subject.go()
            lines = subject.until("done")[:-1]
            capture = session.read()
        if "lock:contention_begin" in pages_of(capture).absent:
            pytest.skip("the kernel does not tell of locks")
        waits = []
        for line in lines:
            for stall in stalls_of(capture, line["tid"], "file_lock"):
                assert is_file(stall.file, path)
                assert stall.total_ns <= line["ns"]
                waits.append(stall.total_ns)
        assert sum(waits) >= 0.1 * sum(line["ns"] for line in lines)


THROTTLED = """
path, size = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
go()
start = time.monotonic_ns()
for at in range(0, size, 1 << 20): os.pwrite(fd, b"x" * (1 << 20), at)
log(what="done", ns=time.monotonic_ns() - start); sys.stdin.readline()
"""


def test_a_writer_is_throttled_for_its_dirty_pages(disk: Path) -> None:
    path = disk / "throttled"
    with held_back(disk), child(THROTTLED, str(path), str(64 << 20)) as subject:
        config = partial(kernel_session, targets=frozenset({subject.pid}), switches=False, page_cache=True)
        with config() as session:
            subject.go()
            subject.until("done")
            capture = session.read()
        (writes,) = [
            total for total in capture.call_totals if syscalls.name(total.nr) == "pwrite64" and total.tid == subject.pid
        ]
        (stall,) = stalls_of(capture, subject.pid, "dirty_throttle")
        assert is_file(stall.file, path)
        assert (stall.count > 0, stall.max_ns <= stall.total_ns) == (True, True)
        # the pauses, in ticks, are what the writer slept; little else makes it wait for its own disk
        tick = 1e9 * time.clock_getres(CLOCK_MONOTONIC_COARSE)
        assert 0.7 * writes.d_ns <= stall.total_ns <= writes.wall_ns + stall.count * tick
        assert stall.pages <= (64 << 20) // mmap.PAGESIZE
        assert capture.window_start <= stall.longest_at < capture.window_end


ENDLESS = """
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
go()
while True: os.pwrite(fd, b"x" * (1 << 20), (time.monotonic_ns() & 127) << 20)
"""


def test_a_pause_that_outlasts_the_window_counts_up_to_its_end(disk: Path) -> None:
    path = disk / "endless"
    with held_back(disk), child(ENDLESS, str(path)) as subject:
        config = partial(
            kernel_session, targets=frozenset({subject.pid}), syscalls=False, switches=False, page_cache=True
        )
        with config() as session:
            subject.go()
            time.sleep(0.7)
            capture = session.read()
    (stall,) = stalls_of(capture, subject.pid, "dirty_throttle")
    assert stall.total_ns <= capture.window_end - capture.window_start


MANY = """
path, count = sys.argv[1], int(sys.argv[2])
os.mkdir(path)
for i in range(count):
    fd = os.open(f"{path}/{i}", os.O_RDWR | os.O_CREAT, 0o600); os.ftruncate(fd, 4096); os.close(fd)
go()
for i in range(count):
    fd = os.open(f"{path}/{i}", os.O_RDWR); os.pread(fd, 4096, 0)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
log(what="done"); sys.stdin.readline()
"""


def test_a_neighbour_with_many_files_costs_the_target_nothing(disk: Path) -> None:
    """Somebody reads a tree of files: no map is full for it, so nothing of the target's is lost."""
    config = partial(kernel_session, targets=frozenset({os.getpid()}), switches=False, page_cache=True)
    with child(MANY, str(disk / "many"), "20000") as subject, config() as session:
        subject.go()
        subject.until("done")
        lost = session.read().lost
    assert not {"files_full", "page_files_full", "page_uses_full", "sizes_full"} & lost.keys(), lost
