"""What is cached of files: both ways of asking, on files of known content, and of processes that change meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.tools.collect import residency as asking
from whystall.tools.collect.proc_residency import OpenFiles
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.collect.residency import PAGE, Residency, cachestat, mincore, residency
from whystall.tools.collect.tables import RESIDENCY
from whystall.tools.recording.collector import Options
from whystall.tools.recording.target import Target

SIZE = 64 * PAGE


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file of which nothing is cached, and no more is read than is asked for."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    if max((len(at), kind) for at, kind in mounts if str(tmp_path).startswith(at))[1] in ("tmpfs", "overlay"):
        pytest.skip("files here do not leave the cache, or have no pages of their own")
    path = tmp_path / "cold.bin"
    path.write_bytes(os.urandom(SIZE))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    yield descriptor
    os.close(descriptor)


def told(ask: object) -> bool:
    """Whether this kernel answers at all."""
    try:
        with open(__file__, "rb") as file:
            ask(file.fileno())  # type: ignore[operator]
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


@pytest.mark.skipif(not told(cachestat), reason="cachestat came with Linux 6.5")
def test_cachestat_counts_what_was_read_and_what_is_dirty(cold: int) -> None:
    assert cachestat(cold) == Residency(0, 0, 0, 0, 0)
    os.pread(cold, 10 * PAGE, 4 * PAGE)
    assert cachestat(cold).cached == 10 * PAGE
    os.pwrite(cold, b"x" * (2 * PAGE), 0)
    found = cachestat(cold)
    assert found.cached == 12 * PAGE
    assert found.dirty + found.writeback in (0, 2 * PAGE)  # it may be on its way to the disk, or there, by now


def test_mincore_counts_what_was_read(cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_WINDOW", 16 * PAGE)  # several mappings, and a last one that is shorter
    os.ftruncate(cold, SIZE - 100)
    os.pread(cold, 10 * PAGE, 12 * PAGE)
    assert mincore(cold, SIZE - 100) == Residency(10 * PAGE)
    assert mincore(cold, 0) == Residency(0)


def test_an_older_kernel_is_asked_the_older_way(cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(descriptor: int) -> Residency:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(asking, "cachestat", absent)
    os.pread(cold, 3 * PAGE, 0)
    assert residency(cold, SIZE) == Residency(3 * PAGE)


def test_overlayfs_is_asked_what_it_maps(cold: int) -> None:
    os.pread(cold, 3 * PAGE, 0)
    assert residency(cold, SIZE, "overlay") == Residency(3 * PAGE)


def test_of_a_strangers_file_mincore_would_not_say_the_truth(cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(asking, "held", lambda: frozenset({"CAP_DAC_READ_SEARCH"}))
    with pytest.raises(PermissionError):
        mincore(cold, SIZE)


def test_uid_0_without_the_capability_is_a_stranger_too(cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that drops it."""
    owned = os.fstat(cold)
    monkeypatch.setattr(os, "geteuid", lambda: owned.st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(asking, "held", lambda: frozenset({"CAP_FOWNER"}))
    assert mincore(cold, 0) == Residency(0)
    monkeypatch.setattr(asking, "held", lambda: frozenset({"CAP_SYS_ADMIN"}))
    with pytest.raises(PermissionError):
        mincore(cold, SIZE)


def test_a_file_that_is_open_twice_is_told_once_per_process(cold: int) -> None:
    again = os.dup(cold)
    files = OpenFiles()
    files.sample([os.getpid(), os.getpid() + 10**6])  # the other has exited
    os.pread(cold, 5 * PAGE, 0)
    files.sample([os.getpid()])
    os.close(again)
    capture = files.read()
    assert {name: frame.schema for name, frame in capture.tables.items()} == RESIDENCY
    (key,) = capture.tables["files"].filter(ino=os.fstat(cold).st_ino)["file"]
    rows = capture.tables["open_files"].filter(file=key)
    assert rows["size_bytes"].to_list() == [SIZE, SIZE]
    assert rows["cached_bytes"].to_list() == [0, 5 * PAGE]
    assert capture.proven


def test_files_that_may_not_be_asked_about_are_said(cold: int) -> None:
    def refused(descriptor: int, size: int, fstype: str) -> Residency:
        raise OSError(errno.EPERM, "not yours")

    files = OpenFiles(measure=refused)
    files.sample([os.getpid()])
    capture = files.read()
    assert capture.tables["open_files"].is_empty()
    assert not capture.proven
    assert [code for code, _ in capture.not_seen] == ["not_permitted"]


def test_a_look_ends_in_time_and_says_what_was_left(cold: int) -> None:
    moments = iter(range(0, 10**15, 200_000_000))
    files = OpenFiles(clock=lambda: next(moments), measure=lambda *_: Residency(0))
    others = [os.dup(cold) for _ in range(5)]
    files.sample([os.getpid()])
    for other in others:
        os.close(other)
    assert any(code == "residency_cut" for code, _ in files.read().not_seen)


def test_the_engine_looks_at_the_start_and_at_the_end(cold: int) -> None:
    engine = ProcfsEngine()
    engine.load({"residency": Options()}, Target(everything=False, pid=os.getpid(), pids=[os.getpid()]))
    os.pread(cold, 7 * PAGE, 0)
    tables = engine.read()["residency"].tables
    rows = tables["open_files"].join(tables["files"].filter(ino=os.fstat(cold).st_ino), on="file")
    assert rows["cached_bytes"].to_list() == [0, 7 * PAGE]


def test_without_a_target_nobodys_files_are_opened() -> None:
    engine = ProcfsEngine()
    engine.load({"residency": Options()}, Target(everything=True))
    capture = engine.read()["residency"]
    assert capture.tables["open_files"].is_empty()
    assert capture.proven
