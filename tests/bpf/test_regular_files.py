"""What lies where a program of others should lie."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whystall.bpf.elf_symbols import read_file
from whystall.bpf.python_find import read_image
from whystall.bpf.regular_files import open_regular


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("lay", [os.mkfifo, listening, os.mkdir])
def test_only_regular_files_are_opened(
    lay: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "lib.so"
    lay(place)
    opened: list[int] = []
    really = os.open

    def watched(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if os.fspath(path) == str(place):
            opened.append(flags)
        return really(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", watched)
    with pytest.raises(OSError, match="regular"):
        open_regular(str(place))
    assert read_file(str(place)) is None
    assert read_image(str(place)) is None
    assert len(opened) == 3
    assert all(flags & os.O_PATH for flags in opened)


def test_regular_files_are_read_also_when_they_are_gone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"program")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with open(open_regular(str(tmp_path / "link")), "rb") as file:
        (tmp_path / "a").unlink()
        with open(open_regular(f"/proc/self/fd/{file.fileno()}"), "rb") as again:
            assert again.read() == file.read() == b"program"
    with pytest.raises(FileNotFoundError):
        open_regular(str(tmp_path / "link"), os.O_NOFOLLOW)
