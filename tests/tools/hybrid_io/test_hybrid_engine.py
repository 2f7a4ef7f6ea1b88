"""The engine against the kernel: which way a request went is seen in the page cache, not in what the engine says."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import mmap
import os
import random
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whystall.tools.hybrid_io import layout, library
from whystall.tools.hybrid_io.hybrid_file import HybridFile, counters, hybrid_open
from whystall.tools.hybrid_io.policy import Policy

pytestmark = pytest.mark.thorough

MIB = 1 << 20
COPY_MIB = int(os.environ.get("WHYSTALL_TEST_MIB", "48"))
"""How much `test_a_copy_is_the_same` copies; several GB by hand."""
PLAIN = Policy(read_direct_bytes=MIB, write_direct_bytes=MIB, keep_reread=False, keep_file_bytes=0)
"""By size alone."""
PRESSED = PLAIN._replace(limit_bytes=1)
"""As if the cache were always at its limit."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where direct I/O is possible and the kernel tells what is cached."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(8192))
    with opened(probe) as file:
        if not file.status().direct or not file.status().cached_bytes:
            pytest.skip(f"no direct I/O here: {file.status().note or 'the cache cannot be looked at'}")
    return tmp_path


def opened(path: Path, mode: str = "rb", policy: Policy = PLAIN, **more: Any) -> HybridFile:
    file = hybrid_open(path, mode, policy, **more)
    assert isinstance(file, HybridFile)
    return file


def memory(size: int, shift: int = 0) -> memoryview:
    """Memory of its own pages, `shift` bytes into the first."""
    return memoryview(mmap.mmap(-1, size + 4096))[shift : shift + size]


def filled(size: int, seed: int = 1, shift: int = 0) -> memoryview:
    made = memory(size, shift)
    made[:] = random.Random(seed).randbytes(size)
    return made


def cold(path: Path, size: int) -> bytes:
    """A file of which nothing is in the cache."""
    data = random.Random(size).randbytes(size)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with opened(path) as file:
        assert file.status().cached_bytes == 0
    return data


def went(file: HybridFile, op: str) -> dict[str, int]:
    return {reason: count["bytes"] for reason, count in file.status().requests[op].items() if count["bytes"]}


def test_direct_writes_leave_nothing_in_the_cache(folder: Path) -> None:
    data = filled(8 * MIB)
    with opened(folder / "file", "wb") as file:
        assert file.write(data) == len(data)
        assert file.status().cached_bytes == 0
        assert went(file, "write") == {"size": len(data)}
    assert (folder / "file").read_bytes() == data


def test_direct_reads_leave_nothing_in_the_cache(folder: Path) -> None:
    data, buffer = cold(folder / "file", 8 * MIB), memory(8 * MIB)
    with opened(folder / "file") as file:
        assert file.readinto(buffer) == len(data)
        assert file.status().cached_bytes == 0
        assert went(file, "read") == {"size": len(data)}
    assert buffer == data


def test_only_the_edges_of_a_crooked_request_are_buffered(folder: Path) -> None:
    path, data = folder / "file", filled(4 * MIB, shift=1)
    page = 4096
    with opened(path, "w+b") as file:
        file.truncate(6 * MIB)
        file.pwrite(data, 1234)
        parts = went(file, "write")
        align = file.status().direct_align
        assert parts == {"edge": parts["edge"], "size": len(data) - parts["edge"]}
        assert 0 < parts["edge"] < 2 * align
        assert file.status().cached_bytes <= 2 * max(align, page)
    assert path.read_bytes() == bytes(1234) + data + bytes(6 * MIB - 1234 - len(data))


def test_the_end_of_the_file_needs_no_edge_where_there_is_room(folder: Path) -> None:
    data, buffer = cold(folder / "file", 4 * MIB + 17), memory(5 * MIB)
    with opened(folder / "file") as file:
        assert file.readinto(buffer) == len(data)
        assert went(file, "read") == {"size": len(data)}
        assert file.status().cached_bytes == 0
    assert buffer[: len(data)] == data


def test_what_is_in_the_cache_is_read_from_there(folder: Path) -> None:
    path, buffer = folder / "file", memory(8 * MIB)
    data = cold(path, 8 * MIB)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: just what is asked for
        os.pread(fd, 3 * MIB, 2 * MIB)
    finally:
        os.close(fd)
    with opened(path) as file:
        before = file.status().cached_bytes
        assert file.readinto(buffer) == len(data)
        assert went(file, "read") == {"resident": 3 * MIB, "size": 5 * MIB}
        assert file.status().cached_bytes <= before
    assert buffer == data


def test_what_is_dirty_is_read_as_it_is(folder: Path) -> None:
    path, buffer = folder / "file", memory(4 * MIB)
    data = bytearray(cold(path, 4 * MIB))
    with path.open("r+b", buffering=0) as other:
        for at in range(100, 4 * MIB, 333_333):
            os.pwrite(other.fileno(), b"dirty", at)
            data[at : at + 5] = b"dirty"
        with opened(path) as file:
            assert file.readinto(buffer) == len(data)
    assert buffer == data


def test_a_second_reading_fills_the_cache_and_a_third_uses_it(folder: Path) -> None:
    """An epoch opens its files again."""
    path, data, policy = folder / "file", cold(folder / "file", 4 * MIB), PLAIN._replace(keep_reread=True)
    ways = []
    for _ in range(3):
        buffer = memory(4 * MIB)
        with opened(path, policy=policy) as file:
            for at in range(0, 4 * MIB, MIB):
                file.readinto(buffer[at : at + MIB])
            ways.append(went(file, "read"))
        assert buffer == data
    assert ways[0] == {"size": 4 * MIB}
    assert ways[1] == ways[2] == {"reread": 4 * MIB}
    with opened(path, policy=policy) as file:
        assert file.status().cached_bytes == 4 * MIB
        assert file.status().own_bytes == 4 * MIB

    os.utime(path, (1, 1))  # another content, for all that is known
    with opened(path, policy=policy) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.readinto(memory(4 * MIB))
        assert went(file, "read") == {"size": 4 * MIB}


def test_small_files_stay_from_the_first_time_on(folder: Path) -> None:
    path = folder / "file"
    cold(path, 4 * MIB)
    room = 1 << 40  # however full the cache of this host is
    with opened(path, policy=PLAIN._replace(keep_file_bytes=4 * MIB, limit_bytes=room)) as file:
        file.readinto(memory(4 * MIB))
        assert went(file, "read") == {"room": 4 * MIB}
        assert file.status().cached_bytes == 4 * MIB


def test_crooked_memory_passes_through_the_cache_and_leaves_nothing(folder: Path) -> None:
    path, data = folder / "file", cold(folder / "file", 24 * MIB)
    buffer = memory(24 * MIB, shift=1)
    with opened(path) as file:
        for at in range(0, 24 * MIB, 2 * MIB):
            file.readinto(buffer[at : at + 2 * MIB])
        assert went(file, "read") == {"passing": 24 * MIB}
    with opened(path) as file:
        assert file.status().cached_bytes == 0
    assert buffer == data


def test_of_a_file_that_is_left_halfway_nothing_stays(folder: Path) -> None:
    """What was read ahead of it goes, too, and holes are no different from data."""
    path = folder / "file"
    for holes in (False, True):
        cold(path, 0 if holes else 48 * MIB)
        os.truncate(path, 48 * MIB)
        buffer = memory(2 * MIB, shift=1)
        with opened(path) as file:
            for _ in range(9):
                file.readinto(buffer)
            assert went(file, "read") == {"passing": 18 * MIB}
        with opened(path) as file:
            # the rest of a chunk, and what the device was still reading ahead, which cannot be given back
            assert file.status().cached_bytes <= (2 if holes else 16) * MIB


def test_what_others_had_in_the_cache_stays(folder: Path) -> None:
    path = folder / "file"
    cold(path, 24 * MIB)
    path.read_bytes()
    for policy, size in ((PLAIN, 2 * MIB), (PRESSED, 65536)):
        buffer = memory(size, shift=1)
        with opened(path, policy=policy) as file:
            while file.readinto(buffer):
                pass
            assert set(went(file, "read")) == {"resident" if size >= MIB else "small"}
        with opened(path) as file:
            assert file.status().cached_bytes == 24 * MIB


def test_a_stream_of_small_reads_is_given_back_under_pressure(folder: Path) -> None:
    path, data, read = folder / "file", cold(folder / "file", 48 * MIB), hashlib.sha256()
    before = counters().dropped_bytes
    with opened(path, policy=PRESSED) as file:
        while block := file.read(65536):
            read.update(block)
        assert set(went(file, "read")) == {"small"}
    assert read.digest() == hashlib.sha256(data).digest()
    with opened(path) as file:
        assert file.status().cached_bytes <= 16 * MIB
    assert counters().dropped_bytes - before >= 32 * MIB


def test_a_stream_of_small_writes_is_given_back_under_pressure(folder: Path) -> None:
    path, block = folder / "file", random.Random(3).randbytes(65536)
    with opened(path, "wb", PRESSED) as file:
        for _ in range(48 * 16):
            file.write(block)
        file.fsync()
    with opened(path) as file:
        assert file.status().cached_bytes <= 24 * MIB
    assert path.read_bytes() == block * (48 * 16)


def test_without_pressure_small_requests_stay(folder: Path) -> None:
    path = folder / "file"
    cold(path, 24 * MIB)
    with opened(path, policy=PLAIN._replace(limit_bytes=1 << 50)) as file:
        while file.read(65536):
            pass
    with opened(path) as file:
        assert file.status().cached_bytes == 24 * MIB


def test_the_caller_may_wish_for_direct(folder: Path) -> None:
    path, data = folder / "file", cold(folder / "file", 2 * MIB)
    with opened(path, direct=True) as file:
        assert file.pread(8192, 4096) == data[4096:12288]  # also where its memory is crooked
        assert file.pread(100, 5) == data[5:105]
        assert went(file, "read") == {"caller": 8192, "small": 100}
        assert "caller_direct" in file.status().flags


def test_appending_is_the_kernels(folder: Path) -> None:
    path, data = folder / "file", filled(2 * MIB + 5)
    with opened(path, "ab") as one, opened(path, "ab") as two:
        one.write(data)
        two.write(data[:MIB])
        one.pwrite(data, 0)  # Linux appends that, too
        assert set(went(one, "write")) == {"append"}
    assert path.read_bytes() == bytes(data) + data[:MIB] + data


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs")
@pytest.mark.parametrize("direct", [False, True])
def test_on_tmpfs_all_is_buffered_and_told(direct: bool) -> None:
    path = Path(f"/dev/shm/whystall-hybrid-{os.getpid()}")
    try:
        with opened(path, "w+b", direct=direct) as file:
            data = filled(2 * MIB)
            file.write(data)
            assert file.pread(2 * MIB, 0) == data
            status = file.status()
            assert status.note == "direct I/O is not possible here (Operation not supported): all is buffered"
            assert (status.direct, status.direct_align) == (False, 0)
            assert set(went(file, "write")) == set(went(file, "read")) == {"unsupported"}
    finally:
        path.unlink(missing_ok=True)


def test_a_mapped_file_is_left_to_the_cache(folder: Path) -> None:
    path, data = folder / "file", filled(2 * MIB)
    with opened(path, "w+b") as file:
        file.write(data)
        file._engine.hy_mark(file._handle, 1 << layout.FLAGS.index("mapped"))
        with mmap.mmap(file.fileno(), 0) as view:
            view[5:9] = b"view"
            assert file.pread(MIB, 0)[5:9] == b"view"
            file.pwrite(data, 0)
            assert view[:MIB] == data[:MIB]
        assert went(file, "read").keys() == {"mapped"}


def test_a_mapping_sees_what_was_written_direct(folder: Path) -> None:
    path, data = folder / "file", filled(2 * MIB)
    with opened(path, "w+b") as file:
        file.truncate(2 * MIB)
        with mmap.mmap(file.fileno(), 0) as view:
            assert view[: 2 * MIB] == bytes(2 * MIB)
            file.write(data)
            assert view[: 2 * MIB] == data
            view[MIB : MIB + 4] = b"view"
            buffer = memory(2 * MIB)
            assert file.preadinto(buffer, 0) == 2 * MIB
            assert buffer[MIB : MIB + 4] == b"view"


def test_holes_are_zeros(folder: Path) -> None:
    path = folder / "file"
    with opened(path, "w+b") as file:
        file.pwrite(filled(MIB), 64 * MIB)
        file.truncate(128 * MIB)
        assert os.fstat(file.fileno()).st_blocks * 512 < 8 * MIB
        buffer = filled(4 * MIB)
        assert file.preadinto(buffer, 62 * MIB) == 4 * MIB
        assert buffer == bytes(2 * MIB) + filled(MIB) + bytes(MIB)


def without(calls: dict[int, int]) -> None:
    """From now on these system calls give an errno: as of an older kernel, or of a container's filter."""

    class Step(ctypes.Structure):
        _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint32))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(Step)))

    load, equal, give = 0x20, 0x15, 0x06  # of classic BPF
    steps = [Step(load, 0, 0, 0)]  # the number of the call
    for number, error in calls.items():
        steps += [Step(equal, 0, 1, number), Step(give, 0, 0, 0x00050000 | error)]
    steps.append(Step(give, 0, 0, 0x7FFF0000))
    program = Program(len(steps), (Step * len(steps))(*steps))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())


STATX = {"x86_64": 332, "aarch64": 291}.get(os.uname().machine, -1)
MADVISE = {"x86_64": 28, "aarch64": 233}.get(os.uname().machine, -1)


@pytest.mark.skipif(STATX < 0, reason="the numbers of this machine's calls are not known")
@pytest.mark.parametrize(
    "missing",
    [{451: errno.ENOSYS}, {451: errno.EPERM}, {451: errno.ENOSYS, STATX: errno.ENOSYS, MADVISE: errno.EINVAL}],
    ids=["before 6.5", "filtered", "before 5.14"],
)
def test_on_older_kernels_it_does_the_same(folder: Path, missing: dict[int, int]) -> None:
    """No cachestat, no statx that tells alignments, no madvise that populates: by mincore, by trying."""
    path = folder / "file"
    data = cold(path, 8 * MIB)

    def work(tell: int) -> None:
        without(missing)
        aligned, crooked = memory(8 * MIB), memory(8 * MIB, shift=1)
        with opened(path, "r+b") as file:
            cached = [file.status().cached_bytes]
            file.readinto(aligned)
            cached.append(file.status().cached_bytes)
            file.preadinto(crooked, 0)
            cached.append(file.status().cached_bytes)
            with path.open("rb") as other:
                other.read()
            cached.append(file.status().cached_bytes)
            file.preadinto(aligned, 0)
            file.pwrite(crooked, 0)
            cached.append(file.status().cached_bytes)
            assert aligned == crooked == data
            os.write(tell, json.dumps([cached, went(file, "read"), went(file, "write")]).encode())

    child, reading = child_of(work)
    size = 8 * MIB
    reads = {"size": size, "passing": size, "resident": size}
    assert json.loads(all_of(reading)) == [[0, 0, 0, size, 0], reads, {"size": size}]
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == data


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.fixture
def engine() -> ctypes.CDLL:
    """Calls that Python's object does not make."""
    loaded = library.load()
    for name in ("hy_readv", "hy_writev"):
        function = getattr(loaded, name)
        function.restype = ctypes.c_ssize_t
        function.argtypes = (ctypes.c_void_p, ctypes.POINTER(Vector), ctypes.c_int, ctypes.c_int64)
    return loaded


def test_one_request_moves_what_the_kernel_would(folder: Path, engine: ctypes.CDLL) -> None:
    """Beyond 2 GiB, in vectors that are all the same memory."""
    path, block = folder / "file", memory(64 * MIB)
    with opened(path, "w+b") as file:
        file.truncate(3 << 30)
        file.pwrite(b"far", layout.MOST - 3)
        vectors = (Vector * 40)(*[Vector(address(block), 64 * MIB)] * 40)
        assert engine.hy_readv(file._handle, vectors, 40, 0) == layout.MOST
        assert engine.hy_read(file._handle, address(block), 64 * MIB, (3 << 30) - MIB) == MIB


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_buffers_move_like_one(folder: Path, engine: ctypes.CDLL, seed: int) -> None:
    chance, path = random.Random(seed), folder / "file"
    data = random.Random(seed).randbytes(3 * MIB)
    path.write_bytes(bytes(4 * MIB))
    with opened(path, "r+b", PLAIN._replace(read_direct_bytes=65536, write_direct_bytes=65536)) as file:
        for function in (engine.hy_writev, engine.hy_readv):
            pieces, left = [], len(data)
            while left:
                size = min(left, chance.choice([0, 1, 17, 4096, 65536, 300_000]))
                pieces.append(memory(size + 1, chance.choice([0, 0, 3, 512]))[:size])
                left -= size
            if function is engine.hy_writev:
                at = 0
                for piece in pieces:
                    piece[:] = data[at : at + len(piece)]
                    at += len(piece)
            places = [Vector(address(piece) if len(piece) else None, len(piece)) for piece in pieces]
            assert function(file._handle, (Vector * len(places))(*places), len(places), 777) == len(data)
            assert b"".join(pieces) == data
    assert path.read_bytes() == bytes(777) + data + bytes(MIB - 777)


def test_too_many_buffers_are_the_kernels_to_refuse(folder: Path, engine: ctypes.CDLL) -> None:
    path, block = folder / "file", memory(8192)
    cold(path, 8192)
    with opened(path) as file:
        for count in (1025, 1 << 20, -1):
            many = (Vector * 1025)(*[Vector(address(block), 8)] * 1025)
            assert engine.hy_readv(file._handle, many, count, 0) == -1
            assert ctypes.get_errno() == errno.EINVAL
        assert engine.hy_readv(file._handle, many, 0, 0) == 0


@pytest.fixture
def guarded() -> Iterator[Callable[[int, int], int]]:
    """Memory that ends in a page that cannot be touched: the address of `size` bytes, `beyond` of them in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    )
    libc.mprotect.argtypes, libc.munmap.argtypes = (
        [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
        [ctypes.c_void_p, ctypes.c_size_t],
    )
    room = 4 * MIB
    base = libc.mmap(None, room, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.mprotect(base + room // 2, room // 2, 0) == 0
    yield lambda size, beyond: base + room // 2 - (size - beyond)
    libc.munmap(base, room)


@pytest.mark.parametrize("beyond", [4096, 500_000, MIB - 4096, MIB])
@pytest.mark.parametrize("crooked", [0, 3], ids=["aligned", "crooked"])
@pytest.mark.parametrize("mode", ["auto", "direct"])
def test_memory_that_is_not_there_is_told(
    folder: Path, guarded: Callable[[int, int], int], beyond: int, crooked: int, mode: str
) -> None:
    """As the kernel does by itself: what could be moved, or EFAULT; never a signal."""
    libc, path, size = ctypes.CDLL(None, use_errno=True), folder / "file", MIB
    libc.pread.restype = libc.pwrite.restype = ctypes.c_ssize_t
    for function in (libc.pread, libc.pwrite):
        function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
    cold(path, 2 * MIB)
    where = guarded(size, beyond - crooked)

    def told(got: int) -> tuple[int, int]:
        return got, ctypes.get_errno() if got < 0 else 0

    with opened(path, "r+b", PLAIN._replace(mode=mode)) as file:
        engine, handle = file._engine, file._handle
        reading = told(libc.pread(file.fileno(), where, size, 0))
        writing = told(libc.pwrite(file.fileno(), where, size, 0))
        assert reading[0] < size > writing[0]
        assert told(engine.hy_read(handle, where, size, 0)) == reading
        assert told(engine.hy_write(handle, where, size, 0)) == writing
        # and the file goes on as before
        buffer = memory(MIB)
        assert file.preadinto(buffer, MIB) == MIB


def child_of(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that does `work` with a descriptor to tell of it; its process id, and where that can be read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        work(writing)
        status = 0
    finally:
        os._exit(status)


def all_of(fd: int) -> str:
    text = b""
    while part := os.read(fd, 65536):
        text += part
    os.close(fd)
    return text.decode()


@pytest.mark.parametrize("mode", layout.MODES)
@pytest.mark.parametrize("shift", [0, 1])
def test_the_limit_of_a_files_size(folder: Path, mode: str, shift: int) -> None:
    path, end = folder / "file", 3 * MIB + 1000
    data = filled(2 * MIB, shift=shift)

    def work(tell: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (end, resource.RLIM_INFINITY))
        engine, policy = library.load(), PLAIN._replace(mode=mode).struct()
        handle = engine.hy_open(os.fsencode(path), os.O_RDWR | os.O_CREAT, 0o600, ctypes.byref(policy))
        for _ in range(3):
            got = engine.hy_write(handle, address(data), len(data), -1)
            why = ctypes.get_errno() if got < 0 else 0
            os.write(tell, f"{got} {why} {engine.hy_seek(handle, 0, 1)}\n".encode())
        os.write(tell, f"{os.path.getsize(path)} {engine.hy_close(handle)}\n".encode())

    child, reading = child_of(work)
    assert all_of(reading).split("\n")[:4] == [
        f"{2 * MIB} 0 {2 * MIB}",
        f"{end - 2 * MIB} 0 {end}",
        f"-1 {errno.EFBIG} {end}",
        f"{end} 0",
    ]
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == bytes(data)[: 2 * MIB] + bytes(data)[: end - 2 * MIB]


def test_a_raised_error_leaves_the_position(folder: Path) -> None:
    path = folder / "file"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with opened(path, "wb") as file:
            file.write(b"12345")
            resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, hard))
            with pytest.raises(OSError, match=r"\[Errno 27\]") as error:
                file.write(filled(4 * MIB))
            assert error.value.characters_written == 3 * MIB - 5
            assert file.tell() == 5
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_descriptors_closed_by_others_are_made_again(folder: Path) -> None:
    """A program that closes all descriptors it does not know closes ours; what has the number then is not touched."""
    path, innocent, data = folder / "file", folder / "innocent", cold(folder / "file", 4 * MIB)
    innocent.write_bytes(bytes(4 * MIB))
    with opened(path, "r+b") as file:
        file.readinto(memory(MIB))
        ours = {int(n) for n in os.listdir("/proc/self/fd") if path == Path(os.path.realpath(f"/proc/self/fd/{n}"))}
        (hidden,) = ours - {file.fileno()}
        os.close(hidden)
        taken = os.open(innocent, os.O_RDWR)
        if taken != hidden:
            os.dup2(taken, hidden)
        file.pwrite(data[:MIB], 2 * MIB)
        buffer = memory(2 * MIB)
        assert file.preadinto(buffer, 2 * MIB) == 2 * MIB
        assert buffer == data[:MIB] + data[3 * MIB :]
        assert "size" in went(file, "write")
    os.fstat(hidden)  # still open
    for fd in {taken, hidden}:
        os.close(fd)
    assert innocent.read_bytes() == bytes(4 * MIB)


def test_an_adopted_descriptor_that_became_another_file(folder: Path) -> None:
    first, second = folder / "first", folder / "second"
    one, two = cold(first, 4 * MIB), cold(second, 4 * MIB + 8)
    engine, policy = library.load(), PLAIN.struct()
    fd = os.open(first, os.O_RDWR)
    handle = engine.hy_adopt(fd, ctypes.byref(policy))
    buffer = memory(2 * MIB)
    assert engine.hy_read(handle, address(buffer), 2 * MIB, -1) == 2 * MIB
    assert buffer == one[: 2 * MIB]
    other = os.open(second, os.O_RDWR)
    os.dup2(other, fd)
    os.close(other)
    assert engine.hy_read(handle, address(buffer), 2 * MIB, -1) == 2 * MIB
    assert buffer == two[: 2 * MIB]
    assert os.lseek(fd, 0, os.SEEK_CUR) == 2 * MIB
    assert engine.hy_close(handle) == 0
    os.close(fd)


def test_locks_of_the_process_survive_direct_requests(folder: Path) -> None:
    """POSIX locks end when the process closes any descriptor of the file: the engine closes none while it is open."""
    import fcntl

    path = folder / "file"
    cold(path, 2 * MIB)
    with opened(path, "r+b") as file:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX)
        file.readinto(memory(2 * MIB))
        file.pwrite(filled(2 * MIB), 0)
        code = (
            "import fcntl, sys\n"
            "try: fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "except OSError: print('locked')"
        )
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        assert done.stdout == "locked\n"


def write_blocks(path: Path, seed: int, count: int) -> Callable[[int], None]:
    """In a child: blocks of its own, one line per block that was acknowledged."""

    def work(tell: int) -> None:
        with opened(path, "r+b", PLAIN._replace(write_direct_bytes=65536)) as file:
            chance, at = random.Random(seed), seed
            for block in range(count):
                size = chance.choice([1000, 65536, 100_000, MIB])
                file.pwrite(content(seed, block, size), at)
                os.write(tell, f"{block} {at} {size}\n".encode())
                at += size

    return work


def content(seed: int, block: int, size: int) -> bytes:
    return random.Random(f"{seed} {block}").randbytes(size)


def acknowledged(fd: int) -> list[tuple[int, int, int]]:
    lines = [line.split() for line in all_of(fd).split("\n")[:-1]]
    return [(int(block), int(at), int(size)) for block, at, size in lines]


def test_killed_while_writing_nothing_acknowledged_is_lost(folder: Path) -> None:
    path = folder / "file"
    for seed in range(3):
        path.write_bytes(b"")
        child, reading = child_of(write_blocks(path, seed, 100_000))
        select.select([reading], [], [])  # it has begun
        signal.sigtimedwait([], 0.05 + 0.06 * seed)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        blocks = acknowledged(reading)
        assert blocks
        with path.open("rb") as file:
            for block, at, size in blocks:
                file.seek(at)
                assert file.read(size) == content(seed, block, size)
        assert path.stat().st_size <= blocks[-1][1] + blocks[-1][2] + MIB


def test_two_writers_of_neighbouring_ranges(folder: Path) -> None:
    """They share the page between them, which one of them writes direct and the other buffered."""
    path, middle = folder / "file", 8 * MIB + 5
    path.write_bytes(bytes(16 * MIB))
    # the first ends where the second begins
    with opened(path, "r+b") as file:
        children = [(seed, *child_of(write_blocks(path, seed, 12))) for seed in (0, middle)]
        file.pwrite(filled(MIB), middle - MIB)
    for seed, child, reading in children:
        blocks = acknowledged(reading)
        assert os.waitpid(child, 0)[1] == 0
        assert len(blocks) == 12
        with path.open("rb") as plain:
            for block, at, size in blocks:
                if seed or at + size <= middle - MIB:
                    plain.seek(at)
                    assert plain.read(size) == content(seed, block, size)


def test_a_file_that_others_cut_and_extend(folder: Path) -> None:
    """Whatever is read is what was there at some moment: the data, zeros, or nothing."""
    path, block = folder / "file", bytes(range(1, 252))
    data = (block * (4 * MIB // len(block) + 1))[: 4 * MIB]
    path.write_bytes(data)
    code = (
        "import os, sys\n"
        "for i in range(300):\n"
        "    os.truncate(sys.argv[1], (i * 977_777) % (4 << 20)); os.truncate(sys.argv[1], 4 << 20)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path])
    buffer = memory(4 * MIB)
    with opened(path) as file:
        while child.poll() is None:
            got = file.preadinto(buffer, 12_345)
            assert got <= 4 * MIB - 12_345
            for at in range(0, got, 40_001):
                assert buffer[at] in (0, data[12_345 + at])
    assert child.wait() == 0


def test_counters_outlive_a_process_that_is_killed(folder: Path) -> None:
    path, shared = folder / "file", folder / "counters"
    code = (
        "import os, signal; from whystall.tools.hybrid_io import hybrid_open, library\n"
        f"assert library.load().hy_counters_share({str(shared)!r}.encode()) == 0\n"
        f"hybrid_open({str(path)!r}, 'wb', 'buffered').write(b'12345')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    assert child.wait() == -signal.SIGKILL
    told = layout.Counters.from_buffer_copy(shared.read_bytes())
    assert (told.pid, told.files, told.abi) == (child.pid, 1, layout.ABI)
    assert layout.counts(told.by)["write"] == {"off": {"requests": 1, "bytes": 5}}
    assert shared.stat().st_mode & 0o777 == 0o600


def test_requests_count_once_and_bytes_all(folder: Path) -> None:
    path, chance = folder / "file", random.Random(5)
    cold(path, 8 * MIB)
    before = counters()
    calls = moved = 0
    with opened(path, "r+b", PLAIN._replace(read_direct_bytes=65536, write_direct_bytes=65536)) as file:
        engine, handle = file._engine, file._handle
        buffer = memory(2 * MIB)
        for _ in range(200):
            function = chance.choice([engine.hy_read, engine.hy_write])
            size, at = chance.randrange(1, MIB), chance.randrange(6 * MIB)
            moved += function(handle, address(buffer) + chance.choice([0, 1]), size, at)
            calls += 1
        requests = file.status().requests
        assert sum(c["requests"] for op in requests.values() for c in op.values()) == calls
        assert sum(c["bytes"] for op in requests.values() for c in op.values()) == moved
        assert all(op.get("edge", {"requests": 0})["requests"] == 0 for op in requests.values())
    after = counters()
    for op in layout.OPS:
        for reason, count in requests[op].items():
            was = before.requests[op].get(reason, {"requests": 0, "bytes": 0})
            assert {k: after.requests[op][reason][k] - was[k] for k in was} == count
    assert after.files - before.files == 1


def test_a_copy_is_the_same(folder: Path) -> None:
    source, target, size = folder / "source", folder / "target", COPY_MIB * MIB
    chance, expected = random.Random(11), hashlib.sha256()
    with opened(source, "wb") as file:
        left = size
        while left:
            block = chance.randbytes(min(left, chance.choice([70_000, MIB, 3 * MIB + 1, 8 * MIB])))
            expected.update(block)
            file.write(block)
            left -= len(block)
    with opened(source) as reading, opened(target, "wb") as file:
        buffer = memory(4 * MIB + 13)
        while got := reading.readinto(buffer):
            file.write(buffer[:got])
        file.fsync()
    with target.open("rb") as plain:
        assert (
            hashlib.file_digest(plain, "sha256").digest() == expected.digest()
            if sys.version_info >= (3, 11)
            else (hashlib.sha256(plain.read()).digest() == expected.digest())
        )
    assert target.stat().st_size == size
