"""Files of trace events are read in pieces: any layout, any damage, memory for one piece."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.profile_reading import trace_events as profile_json
from whystall.tools.timeline.profile_reading.trace_events import Event, EventFile, content_before_events

NASTY = 'a "quoted" },{"ph": "X"}, {"x":1} \\ ]}, "traceEvents":[ {'


class Nested(Event, gc=False):
    """With an argument that holds objects of its own."""

    args: dict[str, Any] | None = None


def _events(count: int) -> list[dict[str, Any]]:
    """Events with everything that looks like a place between two of them."""
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"{NASTY}{i}",
            "pid": 1,
            "tid": 2,
            "ts": i,
            "dur": 1,
            "args": {"list": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}], "text": NASTY},
        }
        for i in range(count)
    ]


def _read(path: Path) -> tuple[list[Nested], EventFile[Nested]]:
    file = EventFile(path, Nested)
    return [event for piece in file.pieces() for event in piece], file


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_json, "_PIECE", 3000)
    # `file.read` takes a MiB at least: let it take what the piece needs
    monkeypatch.setattr(profile_json, "_BLOCK", 1000)


LAYOUTS: dict[str, Callable[[Any], str]] = {
    "one line": json.dumps,
    "tight": lambda content: json.dumps(content, separators=(",", ":")),
    "pretty": lambda content: json.dumps(content, indent=2),
    "tabs": lambda content: json.dumps(content, indent="\t"),
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["base last", "base first", "long tail", "bare list"])
def test_every_layout_gives_every_event_once(tmp_path: Path, layout: str, order: str) -> None:
    events = _events(200)
    content: Any = {
        "base last": {"schemaVersion": 1, "traceEvents": events, "traceName": NASTY, "base": 5},
        "base first": {"base": 5, "meta": [{"traceEvents": 1}, {"x": NASTY}], "traceEvents": events},
        "long tail": {"traceEvents": events, "frames": [{"name": NASTY, "at": i} for i in range(400)], "base": 5},
        "bare list": events,
    }[order]
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS[layout](content))
    found, file = _read(path)
    assert [msgspec.to_builtins(event) for event in found] == events
    assert file.odd == 0
    assert file.top.get("base") == (None if order == "bare list" else 5)


@pytest.mark.usefixtures("small_pieces")
def test_gzip_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": _events(100)}).encode()))
    assert len(_read(path)[0]) == 100


@pytest.mark.parametrize("content", ['{"traceEvents": []}', '{"traceEvents":[ ],"base":1}', "[]", " [ ] "])
def test_no_events_are_no_error_here(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    assert _read(path)[0] == []


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ('"memory bandwidth (GB/s)": inf', True),
        ('"a": [NaN, -Infinity, 1]', True),
        ('"Call stack": "one\ntwo\tthree"', True),
        ('"name2": "Library("_test", "IMPL")"', False),
        ('"path": "C:\\Users"', False),
    ],
)
def test_a_broken_event_costs_at_most_itself(tmp_path: Path, broken: str, mended: bool) -> None:
    events = [json.dumps(event) for event in _events(60)]
    odd = '{"ph": "X", "name": "odd", "ts": 7, "args": {' + broken + "}}"
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ", ".join([*events[:30], odd, *events[30:]]) + '], "base": 5}')
    found, file = _read(path)
    assert [event.name for event in found if event.name != "odd"] == [event["name"] for event in _events(60)]
    assert (len(found), file.odd) == ((61, 0) if mended else (60, 1))
    assert file.top["base"] == 5


def test_bytes_that_are_no_utf8_cost_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'[{"ph": "X", "name": "caf\xe9", "ts": 1}, {"ph": "X", "name": "b", "ts": 2}]')
    found, file = _read(path)
    assert ([event.name for event in found], file.odd) == (["caf�", "b"], 0)


@pytest.mark.parametrize("deep", ["[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000])
def test_nesting_without_end_is_no_crash(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X", "name": "deep", "args": {"x": ' + deep + '}}, {"ph": "X", "name": "good"}]')
    found, file = _read(path)
    assert ([event.name for event in found], file.odd) == (["good"], 1)


def test_a_field_of_another_type_costs_its_event_only(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": ["no", "text"]}, 5, {"ph": "X", "name": "good"}]))
    found, file = _read(path)
    assert ([event.name for event in found], file.odd) == (["good"], 2)


def test_absolute_decimals_are_kept_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph":"M","name":"m"},{"ph":"X","name":"a","ts":1736408883704643.213,"dur":0.125}]')
    found, _ = _read(path)
    assert (found[1].ts, found[1].dur) == ("1736408883704643.213", "0.125")


def _cut(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


WHOLE = json.dumps({"traceEvents": _events(50), "base": 1}).encode()
BAD = {
    "cut": _cut(WHOLE),
    "cut gzip": _cut(gzip.compress(WHOLE)),
    "damaged gzip": gzip.compress(WHOLE)[:-40] + bytes(40),
    "cut list": _cut(json.dumps(_events(50)).encode()),
    "empty": b"",
    "empty gzip": gzip.compress(b""),
    "blank": b"  \n ",
    "text": b"hello",
    "other JSON": b'{"a": [1, 2, 3]}',
    "number": b"5",
    "events that are no list": b'{"traceEvents": {"a": 1}}',
    "pickle": b"\x80\x04\x95",
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_whole_file_of_events_is_reported(tmp_path: Path, case: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(BAD[case])
    with pytest.raises(ToolError) as caught:
        _read(path)
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError) as caught:
        _read(tmp_path / "pipe")
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_a_missing_file_and_one_without_permission_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        _read(tmp_path / "missing.json")
    assert caught.value.code is ErrorCode.IO_ERROR
    with pytest.raises(ToolError) as caught:
        _read(tmp_path)
    assert caught.value.code is ErrorCode.IO_ERROR


def test_a_bomb_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_json, "_LIMIT", 4 << 20)
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [{"ph": "X", "name": "')
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ToolError) as caught:
            _read(path)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_what_stands_before_the_events_without_reading_on() -> None:
    text = b'{"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": [ {"cut'
    expected = {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": []}
    assert content_before_events(text) == expected
    assert content_before_events(b"[{}]") is None
