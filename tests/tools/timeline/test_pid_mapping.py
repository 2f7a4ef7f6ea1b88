"""Numbers of containers from files of several shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.alignment import pid_mapping

TIDS = {4000, 4001, 4002, 7}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (
            '{"4000": {"NSpid": "1", "name": "python", "Tgid": "4000", "PPid": "1"}, "4001": {"NSpid": "12"}}',
            {4000: 1, 4001: 12},
        ),
        ('{"4000": {"NSpid": "4000 25 1"}}', {4000: 1}),
        ('{"4000": {"NSpid": 9}, "4001": {"NSpid": "4001"}}', {4000: 9}),
        ('{"4000": 1, "4001": "2"}', {4000: 1, 4001: 2}),
        ('{"1": 4000, "2": 4001, "3": 4002}', {4000: 1, 4001: 2, 4002: 3}),
        ("4000 1\n4001\t2  # main\n\n# end\n", {4000: 1, 4001: 2}),
        ("1:4000\n2=4001\n3, 4002\n", {4000: 1, 4001: 2, 4002: 3}),
        ("{}", {}),
    ],
)  # fmt: skip
def test_forms(tmp_path: Path, text: str, numbers: dict[int, int]) -> None:
    path = tmp_path / "pids"
    path.write_text(text, "utf-8")
    assert pid_mapping.read(path, TIDS) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", "4000 1 2", "4000 one", "4000 -1", '{"4000": {"name": "x"}}', '{"4000": {"NSpid": ""}}',
        "[1, 2]", '{"4000": 99999999999}', '{"4000": {"NSpid": "1"}, "4001": 2}', "4000 7", '{"x": 1}', '"4000"',
        "\x00\x01\x02",
    ],
)  # fmt: skip
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    """``4000 7``: both are in the trace, so it is open which is the host's."""
    path = tmp_path / "pids"
    path.write_text(text, "utf-8")
    with pytest.raises(ToolError) as caught:
        pid_mapping.read(path, TIDS)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "NSpid" in caught.value.remedy


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="No such file") as caught:
        pid_mapping.read(tmp_path / "pids", TIDS)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
