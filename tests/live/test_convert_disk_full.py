"""A disk that is really full: the conversion is refused with its code, what was there stays, nothing is left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.convert import FORMATS, Format, convert


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "whystall-test", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk(small_disk: Path, format: Format) -> None:
    output = small_disk / "ftrace_data.db"
    output.write_bytes(b"before")
    with pytest.raises(ToolError) as caught:
        convert(Machine(1, steps=4000).trace(), output, format)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert output.read_bytes() == b"before"
    assert [path.name for path in small_disk.iterdir()] == [output.name]
