"""The circular log: what it keeps, what a reader gets, and where it cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from whystall.tools.collect import slice_log
from whystall.tools.collect.slice_log import LEAST_BYTES, Entry, SliceLog, read_log
from whystall.tools.contract.errors import ErrorCode, ToolError


def filled_with(log: SliceLog, count: int, size: int) -> list[Entry]:
    entries = [Entry(1 + i % 3, 10 * i, 10 * i + 9, bytes([i % 256]) * (size + i % 13)) for i in range(count)]
    assert all(log.append(*entry) for entry in entries)
    return entries


def test_the_newest_entries_are_kept_in_order(tmp_path: Path) -> None:
    log = SliceLog(tmp_path / "log", LEAST_BYTES)
    entries = filled_with(log, 200, 20_000)
    kept = list(log.entries())
    assert kept == entries[-len(kept) :]
    assert LEAST_BYTES - 2 * 21_000 < log.used <= LEAST_BYTES
    assert read_log(tmp_path / "log") == kept


def test_a_log_is_continued_by_its_next_writer_and_has_only_one(tmp_path: Path) -> None:
    log = SliceLog(tmp_path / "log", LEAST_BYTES)
    first = filled_with(log, 3, 100)
    with pytest.raises(ToolError) as refused:
        SliceLog(tmp_path / "log", LEAST_BYTES)
    assert refused.value.code == ErrorCode.BUSY
    log.close()
    again = SliceLog(tmp_path / "log", LEAST_BYTES)
    second = filled_with(again, 2, 50)
    assert list(again.entries()) == first + second


def test_a_log_of_another_size_has_the_newest_entries_and_one_of_another_boot_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SliceLog(tmp_path / "log", 2 * LEAST_BYTES)
    entries = filled_with(log, 90, 20_000)
    log.close()
    smaller = SliceLog(tmp_path / "log", LEAST_BYTES)  # it was shrunk, or the setting was changed
    kept = list(smaller.entries())
    assert kept == entries[-len(kept) :]
    assert smaller.used > LEAST_BYTES // 2
    smaller.close()
    larger = SliceLog(tmp_path / "log", 2 * LEAST_BYTES)
    assert list(larger.entries()) == kept
    larger.close()
    monkeypatch.setattr(slice_log, "_boot", lambda: b"another boot")
    with pytest.raises(ToolError, match="before the last boot"):
        read_log(tmp_path / "log")
    assert not list(SliceLog(tmp_path / "log", 2 * LEAST_BYTES).entries())


def test_the_last_entry_can_be_replaced(tmp_path: Path) -> None:
    log = SliceLog(tmp_path / "log", LEAST_BYTES)
    first = filled_with(log, 3, 100)
    log.close()
    again = SliceLog(tmp_path / "log", LEAST_BYTES)
    for size in (10, 200_000, 30, LEAST_BYTES):  # the last one does not fit, and replaces nothing
        again.replace_last(7, size, size, b"x" * size)
    assert list(again.entries()) == [*first, Entry(7, 30, 30, b"x" * 30)], "those of an earlier writer are kept"
    for number in range(100):  # over the end of the file
        assert again.append(1, number, number, b"a" * 50_000)
        assert again.replace_last(2, number, number, b"b" * 60_000)
    kept = list(again.entries())
    assert {one.kind for one in kept} == {2}
    assert [one.start_ns for one in kept] == list(range(100 - len(kept), 100))


def test_damaged_entries_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = SliceLog(path, LEAST_BYTES)
    entries = filled_with(log, 5, 1000)
    log.close()
    data = bytearray(path.read_bytes())
    at = data.index(entries[2].data)
    data[at] ^= 1
    path.write_bytes(data)
    assert read_log(path) == entries[:2] + entries[3:]
    data[at - 40 : at] = bytes(40)  # the head of the entry: those after it cannot be found
    path.write_bytes(data)
    assert read_log(path) == entries[:2]


@pytest.mark.parametrize("content", [b"", b"x" * 9000, bytes(9000)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(ToolError) as refused:
        read_log(tmp_path / "log")
    assert refused.value.code == ErrorCode.BAD_RECORDING


def test_a_pipe_or_a_link_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("log", "link"):
        log = SliceLog(tmp_path / name, LEAST_BYTES)
        assert not log.on_disk
        assert name in log.note


def test_where_the_disk_is_full_it_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    log = SliceLog(tmp_path / "log", LEAST_BYTES)
    assert "No space left" in log.note
    assert filled_with(log, 3, 100) == list(log.entries())


def test_an_entry_larger_than_a_quarter_is_refused() -> None:
    log = SliceLog(None, LEAST_BYTES)
    assert not log.append(1, 0, 1, bytes(LEAST_BYTES // 4))
    assert not list(log.entries())


@pytest.mark.parametrize("in_file", [True, False])
def test_a_log_shrinks_and_grows_with_its_newest_entries(tmp_path: Path, in_file: bool) -> None:
    path = tmp_path / "log" if in_file else None
    log = SliceLog(path, 4 * LEAST_BYTES)
    entries = filled_with(log, 300, 20_000)
    small = log.resized(LEAST_BYTES)
    kept = list(small.entries())
    assert kept == entries[-len(kept) :]
    assert LEAST_BYTES // 2 < small.used <= LEAST_BYTES
    more = filled_with(small, 10, 500)
    large = small.resized(4 * LEAST_BYTES)
    assert list(large.entries())[-10:] == more
    assert large.size == 4 * LEAST_BYTES
    if path is not None:
        assert [one.name for one in tmp_path.iterdir()] == ["log"]
        assert path.stat().st_size > 4 * LEAST_BYTES
        assert read_log(path) == list(large.entries())
        with pytest.raises(ToolError):
            SliceLog(path, LEAST_BYTES)
        large.forget_pages()
        assert read_log(path) == list(large.entries())


def test_without_space_for_another_size_the_log_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SliceLog(tmp_path / "log", LEAST_BYTES)
    entries = filled_with(log, 3, 100)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert log.resized(4 * LEAST_BYTES) is log
    assert read_log(tmp_path / "log") == entries


def test_a_log_whose_disk_became_read_only_keeps_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SliceLog(tmp_path / "log", 2 * LEAST_BYTES)
    entries = filled_with(log, 3, 100)

    def read_only(*args: object, **more: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("unlink", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, read_only)
            assert log.resized(LEAST_BYTES) is log
            assert list(log.entries()) == entries
