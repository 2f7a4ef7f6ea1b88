"""What is laid beside a trace must tell what ran: dumps of a hanging job's collectives do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_dumps import Rank, write

from whystall.agent_server.inputs.recordings import profiles_at
from whystall.tools.contract.errors import ErrorCode, ToolError

TIMELINE = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1}]}'


def dumps(directory: Path) -> Path:
    return write(directory, *(Rank(rank, {"0": ("default_pg", (0, 1))}).does("0") for rank in range(2)))


def test_a_dump_is_refused_with_what_it_is_good_for(tmp_path: Path) -> None:
    for place in (dumps(tmp_path), tmp_path / "_dump_1"):
        with pytest.raises(ToolError, match=r"holds the collectives of a rank \(flight_recorder\)") as caught:
            profiles_at(place)
        assert caught.value.code is ErrorCode.BAD_TRACE
        assert "--traces" in caught.value.remedy


def test_dumps_beside_a_profile_are_passed_over(tmp_path: Path) -> None:
    (dumps(tmp_path) / "trace.json").write_text(TIMELINE)
    assert [one.path.name for one in profiles_at(tmp_path)] == ["trace.json"]
