"""Where a capture's text goes, on real file systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.tools.collect.ftrace.trace_file import TraceFile
from whystall.tools.contract.errors import ErrorCode, ToolError

LINE = b"x" * 99 + b"\n"


def head(part: int) -> bytes:
    return f"# head {part}\n".encode()


def foot() -> bytes:
    return b"# foot\n"


def test_text_stands_between_head_and_foot(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("something older and longer" * 10)
    file = TraceFile(path, head, foot)
    file.write(b"one\ntwo\n")
    file.write(b"three\n")
    file.close()
    file.close()
    assert path.read_bytes() == b"# head 1\none\ntwo\nthree\n# foot\n"
    assert file.files == (path,)
    assert file.written == path.stat().st_size


def test_nobody_else_may_read_a_trace(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.txt", head, foot)
    file.close()
    assert (tmp_path / "t.txt").stat().st_mode & 0o777 == 0o600


def test_full_files_get_numbers_and_each_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    (tmp_path / "t.0006.txt").write_text("of an earlier capture")
    (tmp_path / "t.9.txt").write_text("something else")
    file = TraceFile(path, head, foot, rotate_bytes=500)
    for _ in range(10):
        file.write(LINE)
    file.close()
    assert [p.name for p in file.files] == ["t.0007.txt", "t.0008.txt", "t.txt"]
    for part, at in enumerate(file.files, 1):
        text = at.read_bytes()
        assert text.startswith(head(part))
        assert text.endswith(foot())
        assert at.stat().st_size <= 500 + len(foot())
    assert sum(p.read_bytes().count(LINE) for p in file.files) == 10
    assert file.written == sum(p.stat().st_size for p in file.files)
    assert (tmp_path / "t.0006.txt").read_text() == "of an earlier capture"


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t", head, foot, rotate_bytes=300, keep=2)
    for number in range(9):
        file.write(b"%d\n" % number + LINE * 2)
    file.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t", "t.0008"]
    assert [p.name for p in file.files] == ["t.0008", "t"]
    assert b"\n8\n" in (tmp_path / "t").read_bytes()
    assert b"\n7\n" in (tmp_path / "t.0008").read_bytes()
    assert file.written > 9 * 200


def test_a_piece_larger_than_a_file_is_not_torn(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t", head, foot, rotate_bytes=50)
    file.write(LINE)
    file.write(LINE)
    file.close()
    assert sum(p.read_bytes().count(LINE) for p in file.files) == 2


def test_two_captures_do_not_write_the_same_file(tmp_path: Path) -> None:
    first = TraceFile(tmp_path / "t", head, foot)
    first.write(LINE)
    with pytest.raises(ToolError) as caught:
        TraceFile(tmp_path / "t", head, foot)
    assert caught.value.code is ErrorCode.BUSY
    first.close()
    assert (tmp_path / "t").read_bytes() == head(1) + LINE + foot()
    TraceFile(tmp_path / "t", head, foot).close()


def test_too_little_room_to_begin_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        TraceFile(tmp_path / "t", head, foot, min_free_bytes=1 << 60)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "code"),
    [("missing/t", ErrorCode.IO_ERROR), ("folder", ErrorCode.IO_ERROR), ("pipe", ErrorCode.BAD_ARGUMENT)],
)
def test_what_is_no_file_is_refused(tmp_path: Path, place: str, code: ErrorCode) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError) as caught:
        TraceFile(tmp_path / place, head, foot)
    assert caught.value.code is code
    assert "\n" not in str(caught.value)


def test_abandoning_leaves_a_whole_file_and_discarding_none(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t", head, foot)
    file.write(LINE)
    file.abandon()
    file.abandon()
    assert (tmp_path / "t").read_bytes() == head(1) + LINE + foot()
    file = TraceFile(tmp_path / "t", head, foot)
    file.discard()
    file.discard()
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
from whystall.tools.collect.ftrace.trace_file import TraceFile
from whystall.tools.contract.errors import ToolError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
file = TraceFile(Path(sys.argv[1]), lambda part: b"# head\\n", lambda: b"# foot\\n")
try:
    while True:
        file.write(b"".join(b"%099d\\n" % n for n in range(50)))
except ToolError as error:
    print(error.code.value, "bytes" in error.message)
file.abandon()
"""


@pytest.mark.parametrize("limit", [20_000, 123_457, 8192 + 4096])
def test_a_file_that_can_grow_no_more_is_cut_after_a_whole_line_and_gets_its_foot(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "t"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(limit)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["disk_full", "True"]
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[0] == b"# head\n"
    assert lines[-1] == b"# foot\n"
    assert {len(line) for line in lines[1:-1]} == {100}
    assert limit - 4096 - 300 <= path.stat().st_size <= limit
