"""A disk that is really full: the conversion is refused with its code, what was there stays, nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from machine import Machine

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.convert import FORMATS, Format, convert


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk(small_disk: Callable[[str], Path], format: Format) -> None:
    disk = small_disk("64k")
    output = disk / "ftrace_data.db"
    output.write_bytes(b"before")
    with pytest.raises(ToolError) as caught:
        convert(Machine(1, steps=4000).trace(), output, format)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert output.read_bytes() == b"before"
    assert [path.name for path in disk.iterdir()] == [output.name]
