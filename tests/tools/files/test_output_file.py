"""Files that are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from whystall.tools.contract.errors import ToolError
from whystall.tools.files.output_file import aside


def test_no_file_takes_the_place_of_a_pipe_or_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ToolError, match="no regular file"), aside(pipe) as beside:
        beside.write_text("x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_what_was_there_stays_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), aside(path) as beside:
        beside.write_text(f"half{1 // 0}")
    assert path.read_text() == "before"
    with aside(path) as beside:
        beside.write_text("after")
    assert path.read_text() == "after"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", [".", "/", "..", "folder", "folder/"])
def test_a_directory_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ToolError, match="Is a directory"), aside(Path(name)):
        pytest.fail("it went to work")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
