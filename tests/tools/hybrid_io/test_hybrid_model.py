"""Whatever is done to a hybrid file, a plain one it is done to holds the same bytes, says the same, stands the same."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whystall.tools.hybrid_io.hybrid_file import HybridFile, hybrid_open
from whystall.tools.hybrid_io.policy import Policy

MOST = 300_000  # bytes: beyond the thresholds below many times over
EAGER = Policy(read_direct_bytes=8192, write_direct_bytes=8192, pressure_direct_bytes=4096, keep_file_bytes=0)
POLICIES = {
    "eager": EAGER,
    "forgetful": EAGER._replace(keep_reread=False),
    "keeping": EAGER._replace(keep_file_bytes=1 << 30),
    "pressed": EAGER._replace(limit_bytes=4096, read_direct_bytes=1 << 20, write_direct_bytes=1 << 20),
    "direct": Policy(mode="direct"),
    "buffered": Policy(mode="buffered"),
    "default": Policy(),
}

sizes = st.one_of(st.sampled_from([0, 1, 511, 512, 4095, 4096, 4097, 8192, 65536, 131072]), st.integers(0, MOST))
offsets = st.one_of(st.integers(0, 60).map(lambda page: page * 4096), st.integers(0, MOST))
shifts = st.sampled_from([0, 0, 1, 64, 512])
seeds = st.integers(0, 255)

operations = st.one_of(
    st.tuples(st.just("write"), sizes, seeds, shifts),
    st.tuples(st.just("pwrite"), sizes, offsets, seeds, shifts),
    st.tuples(st.just("read"), sizes),
    st.tuples(st.just("readinto"), sizes, shifts),
    st.tuples(st.just("pread"), sizes, offsets),
    st.tuples(st.just("preadinto"), sizes, offsets, shifts),
    st.tuples(st.just("readall")),
    st.tuples(st.just("seek"), offsets),
    st.tuples(st.just("seek_end"), st.integers(-5000, 5000)),
    st.tuples(st.just("truncate"), st.one_of(st.none(), offsets)),
    st.tuples(st.just("fsync"), st.booleans()),
    st.tuples(st.just("evict")),
    st.tuples(st.just("warm")),
    st.tuples(st.just("other_writes"), sizes, offsets, seeds),
    st.tuples(st.just("other_truncates"), offsets),
    st.tuples(st.just("reopen"), st.sampled_from(["r+b", "a+b"]), st.sampled_from(sorted(POLICIES)), st.booleans()),
)


def content(size: int, seed: int) -> bytes:
    """Bytes that differ from place to place, so that what lands elsewhere is seen."""
    block = bytes((seed + i * 7 + (i >> 8)) & 0xFF for i in range(1021))
    return (block * (size // 1021 + 1))[:size]


class Plain:
    """What is expected: the system calls themselves, and nothing else."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.file = open(path, mode, buffering=0)  # noqa: SIM115

    def run(self, name: str, *arguments: Any) -> Any:
        fd = self.file.fileno()
        match name, arguments:
            case "write", (size, seed, _):
                return self.file.write(content(size, seed)) if size else 0
            case "pwrite", (size, offset, seed, _):
                return os.pwrite(fd, content(size, seed), offset)
            case ("read", (size,)) | ("readinto", (size, _)):
                return self.file.read(size)
            case ("pread", (size, offset)) | ("preadinto", (size, offset, _)):
                return os.pread(fd, size, offset)
            case "readall", ():
                return self.file.readall()
            case _:
                return shared(self.file, self.path, name, *arguments)

    def close(self) -> None:
        self.file.close()


class Hybrid:
    """The same through the engine, with memory that is aligned or not."""

    def __init__(self, path: Path, mode: str, policy: Policy, direct: bool) -> None:
        self.path = path
        made = hybrid_open(path, mode, policy, direct=direct)
        assert isinstance(made, HybridFile)
        self.file = made
        self.memory = mmap.mmap(-1, MOST + 4096)

    def run(self, name: str, *arguments: Any) -> Any:
        match name, arguments:
            case "write", (size, seed, shift):
                return self.with_memory(size, shift, seed, self.file.write)
            case "pwrite", (size, offset, seed, shift):
                return self.with_memory(size, shift, seed, lambda view: self.file.pwrite(view, offset))
            case "read", (size,):
                return self.file.read(size)
            case "pread", (size, offset):
                return self.file.pread(size, offset)
            case "readinto", (size, shift):
                return self.filled(size, shift, self.file.readinto)
            case "preadinto", (size, offset, shift):
                return self.filled(size, shift, lambda view: self.file.preadinto(view, offset))
            case "readall", ():
                return self.file.readall()
            case "fsync", (data_only,):
                return self.file.fsync(data_only)
            case _:
                return shared(self.file, self.path, name, *arguments)

    def with_memory(self, size: int, shift: int, seed: int, write: Callable[[memoryview], int]) -> int:
        with memoryview(self.memory) as whole, whole[shift : shift + size] as view, view.toreadonly() as readonly:
            view[:] = content(size, seed)
            return write(readonly)

    def filled(self, size: int, shift: int, read: Callable[[memoryview], int]) -> bytes:
        with memoryview(self.memory) as whole, whole[shift : shift + size] as view:
            return bytes(view[: read(view)])

    def close(self) -> None:
        self.file.close()
        self.memory.close()


def shared(file: Any, path: Path, name: str, *arguments: Any) -> Any:
    """What is done in the same words to both."""
    match name, arguments:
        case "seek", (offset,):
            return file.seek(offset)
        case "seek_end", (offset,):
            return file.seek(max(0, os.fstat(file.fileno()).st_size + offset))
        case "truncate", (size,):
            return file.truncate(size)
        case "fsync", _:
            return os.fsync(file.fileno())
        case "evict", ():
            return os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        case "warm", ():
            path.read_bytes()
        case "other_writes", (size, offset, seed):
            with path.open("r+b") as other:
                other.seek(offset)
                other.write(content(size, seed))
        case "other_truncates", (size,):
            os.truncate(path, size)
        case _:
            raise AssertionError(name)
    return None


@settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(plan=st.lists(operations, min_size=4, max_size=24))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_hybrid_and_plain_hold_the_same(tmp_path: Path, policy: str, plan: list[tuple[Any, ...]]) -> None:
    paths = tmp_path / "plain", tmp_path / "hybrid"
    for path in paths:
        path.unlink(missing_ok=True)
    expected, got = Plain(paths[0], "w+b"), Hybrid(paths[1], "w+b", POLICIES[policy], False)
    try:
        for step, (name, *arguments) in enumerate(plan):
            if name == "reopen":
                mode, other_policy, direct = arguments
                expected.close()
                got.close()
                expected, got = Plain(paths[0], mode), Hybrid(paths[1], mode, POLICIES[other_policy], direct)
            else:
                assert got.run(name, *arguments) == expected.run(name, *arguments), f"step {step}: {name}"
            assert got.file.tell() == expected.file.tell(), f"position after step {step}: {name}"
    finally:
        expected.close()
        got.close()
    assert paths[1].read_bytes() == paths[0].read_bytes()
