"""Conversions as a whole: what is refused, what stays behind, and on whose clock it is."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from machine import Machine, trace_of
from profiles import profile_of

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline import convert as module
from whystall.tools.timeline.alignment.align import Alignment
from whystall.tools.timeline.convert import FORMATS, Format, convert
from whystall.tools.timeline.open_trace import open_trace
from whystall.tools.timeline.sched import SchedTrace

NAMES = {"json": "trace.json", "perfetto": "trace.pftrace", "db": "ftrace_data.db", "text": "trace.txt"}


@pytest.fixture
def trace() -> SchedTrace:
    return Machine(1).trace()


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_there_is_replaced_as_a_whole(trace: SchedTrace, tmp_path: Path, format: Format) -> None:
    output = tmp_path / NAMES[format]
    output.write_bytes(b"x" * 10_000_000)
    converted = convert(trace, output, format)
    assert converted.path == output
    assert not converted.beyond_doubles
    assert converted.size_bytes == output.stat().st_size < 10_000_000
    assert converted.items > (0 if format == "perfetto" else 500)  # a packet holds many events
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


@pytest.mark.parametrize("format", FORMATS)
def test_a_failure_leaves_what_was_there(
    trace: SchedTrace, tmp_path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / NAMES[format]
    output.write_bytes(b"before")

    def fails(*arguments: object, **more: object) -> int:
        raise RuntimeError("in the middle")

    for writer, name in ((module.write_chrome, "write"), (module.write_perfetto, "write"),
                         (module.write_mindstudio_db, "write"), (module.ftrace_write, "write_to")):  # fmt: skip
        monkeypatch.setattr(writer, name, fails)
    with pytest.raises(RuntimeError):
        convert(trace, output, format)
    assert output.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


@pytest.mark.parametrize(
    ("name", "format", "word"),
    [("trace.db", "db", "ftrace_data"), ("ftrace_data.sqlite", "db", "ftrace_data"),
     ("t.json", "svg", "json, perfetto"), (".", "json", "name a file")],
)  # fmt: skip
def test_refused(trace: SchedTrace, tmp_path: Path, name: str, format: Format, word: str) -> None:
    with pytest.raises(ToolError) as caught:
        convert(trace, tmp_path / name, format)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert word in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_cpus_that_were_not_traced(trace: SchedTrace, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="none of these CPUs") as caught:
        convert(trace, tmp_path / "t.json", "json", cpus=[9, 10])
    assert "0, 1, 2" in caught.value.remedy


@pytest.mark.parametrize("format", FORMATS)
def test_a_place_that_is_not_there(trace: SchedTrace, tmp_path: Path, format: Format) -> None:
    with pytest.raises(ToolError) as caught:
        convert(trace, tmp_path / "nowhere" / NAMES[format], format)
    assert caught.value.code is ErrorCode.IO_ERROR
    assert list(tmp_path.iterdir()) == []


def test_text_can_be_opened_as_a_trace(trace: SchedTrace, tmp_path: Path) -> None:
    convert(trace, tmp_path / "t.txt", "text")
    assert open_trace(tmp_path / "t.txt").table("wakeups").equals(trace.table("wakeups"))


def test_on_the_profiles_clock(tmp_path: Path) -> None:
    """The trace's clock runs 100 ppm faster, and stood at 5e9 when the profile's stood at 1e18."""
    alignment = Alignment(profile_ns=10**18, trace_ns=5 * 10**9, drift_ppt=100_000_000, method="", residual_ns=0)
    at = [alignment.at(10**18 + after) for after in (0, 10_000_000_000, 20_000_000_000)]
    switches = [(at[0], 0, 0, 120, "R", True, 0, 7, 120), (at[1], 0, 7, 120, "S", False, at[0], 0, 120)]
    profile = profile_of((at[0], at[1], "operator", "op", 7, 7, -1, -1, -1, -1))
    trace = trace_of(switches=switches, start=at[0], end=at[2])
    assert convert(trace, tmp_path / "t.json", "json", profile=profile, alignment=alignment).beyond_doubles
    events = [event for event in json.loads((tmp_path / "t.json").read_text()) if event["ph"] == "X"]
    drawn = {event["name"]: [round(Decimal(event[key]) * 1000) for key in ("ts", "dur")] for event in events}
    second = 10**10
    assert drawn["op"] == pytest.approx([10**18, second], abs=2, rel=0)
    assert drawn["Running"] == pytest.approx([10**18, second], abs=2, rel=0)
    assert drawn["Sleeping"] == pytest.approx([10**18 + second, second], abs=2, rel=0)


def test_numbers_of_a_container_from_a_file(tmp_path: Path) -> None:
    mapping = tmp_path / "pid_mapping.json"
    mapping.write_text('{"7": {"NSpid": "1"}}')
    trace = trace_of(switches=[(100, 0, 7, 120, "S", False, 0, 0, 120)], names=[(0, 7, 7, "train")])
    convert(trace, tmp_path / "t.json", "json", pids=mapping)
    lanes = {event.get("tid") for event in json.loads((tmp_path / "t.json").read_text())}
    assert "train:1" in lanes
