"""Hybrid I/O where things are short: disks that are full or fail, memory that is limited."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from cgroups import Cgroup

from whystall.tools.hybrid_io.hybrid_file import HybridFile, hybrid_open
from whystall.tools.hybrid_io.policy import Policy

MIB = 1 << 20
BY_SIZE = Policy(read_direct_bytes=MIB, write_direct_bytes=MIB, keep_reread=False, keep_file_bytes=0)
POLICIES = {
    "auto": BY_SIZE,
    "direct": BY_SIZE._replace(mode="direct"),
    "buffered": BY_SIZE._replace(mode="buffered"),
    "pressed": BY_SIZE._replace(limit_bytes=1, pressure_direct_bytes=1 << 40, write_direct_bytes=1 << 40),
}


@pytest.fixture
def full_disk(loop_device: str, tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 16 MiB."""
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", loop_device], check=True)
    subprocess.run(["mount", loop_device, str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
        subprocess.run(["e2fsck", "-fn", loop_device], check=True, capture_output=True)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 64 MiB on a device that fails all writes beyond the first 20 MiB or so."""
    under, place = tmp_path / "under", tmp_path / "failing"
    under.mkdir()
    place.mkdir()
    undo: list[list[str]] = []
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "whystall-test", str(under)], check=True)
        undo.append(["umount", str(under)])
        backing = under / "image"
        with backing.open("wb") as file:
            file.truncate(64 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(backing)], check=True)
        made = subprocess.run(["losetup", "-f", "--show", str(backing)], capture_output=True, text=True, check=True)
        undo.append(["losetup", "-d", made.stdout.strip()])
        subprocess.run(["mount", "-o", "errors=continue", made.stdout.strip(), str(place)], check=True)
        undo.append(["umount", str(place)])
        yield place
    finally:
        for command in reversed(undo):
            subprocess.run(command, check=True)


def block_of(size: int, seed: int, shift: int) -> memoryview:
    made = memoryview(mmap.mmap(-1, size + 4096))[shift : shift + size]
    made[:] = random.Random(seed).randbytes(size)
    return made


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "crooked"])
def test_a_full_disk_takes_what_it_has_room_for_and_says_so(full_disk: Path, policy: str, shift: int) -> None:
    path, expected, seed = full_disk / "file", bytearray(), 0
    with hybrid_open(path, "w+b", POLICIES[policy]) as file:
        assert isinstance(file, HybridFile)
        assert file.status().direct
        while True:
            block = block_of(3 * MIB + 5, seed, shift)
            try:
                assert file.write(block) == len(block)
            except OSError as error:
                told = error
                break
            expected += block
            seed += 1
        assert (told.errno, told.filename) == (errno.ENOSPC, path)
        written = getattr(told, "characters_written", 0)
        assert file.tell() == len(expected)  # as before the write that failed
        assert len(expected) + written >= 12 * MIB  # nearly all there is
        with pytest.raises(OSError, match=r"\[Errno 28\]"):
            file.write(block)
        file.truncate(len(expected))
        file.fsync()
        with pytest.raises(OSError, match=r"\[Errno 28\]"):
            file.pwrite(block_of(14 * MIB, 1, shift), len(expected) + 50)
        file.truncate(len(expected))
        # with room again, it goes on
        file.truncate(MIB)
        assert file.pwrite(block, 77) == len(block)
        file.fsync()
    assert path.read_bytes() == bytes(expected[:77]) + block


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_device_that_fails_is_told_at_write_or_fsync(failing_disk: Path, policy: str) -> None:
    """Giving pages back begins to write them, and must not take the error that the caller is to get."""
    size = 65536 if policy == "pressed" else MIB
    block, told = block_of(size, 1, 0), []
    with hybrid_open(failing_disk / "file", "wb", POLICIES[policy]) as file:
        for _ in range(40 * MIB // size):
            try:
                file.write(block)
            except OSError as error:
                told.append(error.errno)
                break
        try:
            file.fsync()
        except OSError as error:
            told.append(error.errno)
    assert told
    assert set(told) <= {errno.EIO, errno.ENOSPC}


def in_cgroup(cgroup: Cgroup, code: str, *arguments: str) -> list[dict[str, int]]:
    """Runs Python there; what it printed, a JSON object a line."""
    command = cgroup.command([sys.executable, "-c", textwrap.dedent(code), *arguments])
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


STREAM = """
    import json, sys
    from whystall.tools.hybrid_io import hybrid_open
    from whystall.tools.hybrid_io.policy import pressure
    path, op, size, total = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    block, buffer = bytes(size), bytearray(size)
    with hybrid_open(path, "rb" if op == "read" else "wb", {"keep_file_bytes": 0}) as file:
        for at in range(0, total, size):
            done = file.readinto(buffer) if op == "read" else file.write(block)
            assert done == size
            if at % (8 << 20) == 0:
                print(json.dumps(pressure()._asdict()))
        counts = file.status().requests[op]
    print(json.dumps({reason: count["bytes"] for reason, count in counts.items()}))
"""


@pytest.mark.parametrize(("op", "size"), [("read", 65536), ("read", 4 * MIB), ("write", 65536), ("write", 4 * MIB)])
def test_the_cache_of_a_cgroup_is_held_under_its_limit(tmp_path: Path, op: str, size: int) -> None:
    """A file of holes fills the cache like any other, at no cost for the disk."""
    path, limit, total = tmp_path / "file", 256 * MIB, 384 * MIB if op == "read" else 256 * MIB
    with path.open("wb") as file:
        file.truncate(total)
    with Cgroup("memory") as cgroup:
        cgroup.limit_memory(limit)
        *seen, counts = in_cgroup(cgroup, STREAM, str(path), op, str(size), str(total))
        hits = refused(cgroup)
    try:
        assert {now["cgroup_limit_bytes"] for now in seen} == {limit}
        assert {now["cgroup_version"] for now in seen} == {1 if cgroup.legacy else 2}
        assert all(now["limit_bytes"] <= 0.80 * limit for now in seen)
        # a look every 8 MiB, and what is being written at that moment
        assert max(now["cached_bytes"] - now["limit_bytes"] for now in seen) <= 32 * MIB
        assert hits == 0
        assert sum(counts.values()) == total
        if size > MIB:
            assert max(now["cached_bytes"] for now in seen) <= 48 * MIB
            assert counts.keys() <= {"passing", "size", "resident"}
    finally:
        os.truncate(path, 0)


def refused(cgroup: Cgroup) -> int:
    """How often the cgroup met its limit."""
    if cgroup.legacy:
        return int((cgroup.path / "memory.failcnt").read_text())
    return cgroup.stat("memory.events")["max"]


def test_the_smallest_limit_above_counts(tmp_path: Path) -> None:
    code = """
        import json
        from whystall.tools.hybrid_io.policy import pressure
        print(json.dumps(pressure()._asdict()))
    """
    with Cgroup("memory") as outer:
        outer.limit_memory(200 * MIB)
        if not outer.legacy:
            (outer.path / "cgroup.subtree_control").write_text("+memory")
        inner = outer.path / "inner"
        inner.mkdir()
        try:
            (inner / ("memory.limit_in_bytes" if outer.legacy else "memory.max")).write_text(str(300 * MIB))
            script = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(inner / "cgroup.procs")]
            done = subprocess.run(
                [*script, sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
            )
            assert done.stderr == ""
            assert json.loads(done.stdout)["cgroup_limit_bytes"] == 200 * MIB
        finally:
            inner.rmdir()
