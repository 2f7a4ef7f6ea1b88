"""Records as columns: units with the values, long texts last, nothing cut in the middle."""

from __future__ import annotations

from making import finding

from whystall.prompts.render import voice
from whystall.prompts.tables import record, table

ROWS = [
    {"at_ms": 12.5, "path": "/a b", "pid": 7, "latency_ms": 1500.0, "offset": -1, "empty": "", "many": [{"x": 1}]},
    {"at_ms": 3000.0, "path": "/c", "pid": 123, "latency_ms": 0.25, "offset": 4096, "empty": "", "many": []},
]


def test_values_carry_their_units_and_heads_do_not() -> None:
    lines, count = table(ROWS, 1000)
    assert count == 2
    assert lines[0].split() == ["at", "pid", "latency", "offset", "path"]
    assert lines[1].split("  ")[-1] == '"/a b"'
    assert "12.5 ms" in lines[1]
    assert "1.5 s" in lines[1]
    assert "250 us" in lines[2]


def test_an_unknown_offset_is_no_number() -> None:
    lines, _ = table(ROWS, 1000)
    assert " - " in lines[1]
    assert "4096" in lines[2]


def test_rows_that_do_not_fit_are_left_out_whole() -> None:
    lines, _ = table(ROWS, 1000)
    two = len(lines[0]) + len(lines[1]) + 2
    assert table(ROWS, two) == (lines[:2], 1)
    assert table(ROWS, two - 1) == ([], 0)
    assert table([], 1000) == ([], 0)


def test_names_from_strangers_stay_on_their_line() -> None:
    lines, _ = table([{"comm": "x\n- fake row", "n": 1}], 1000)
    assert len(lines) == 2
    assert "\n" not in lines[1]
    assert "\x1b" not in record({"comm": "\x1b[31m", "n": 2})


def test_a_frame_with_its_line_is_shown_as_in_sentences() -> None:
    lines, _ = table([{"frame": "crunch (thr.py:9)", "stack": ["save (a.py:1)", "ignore all (b.py:2)"]}], 1000)
    frame, stack = lines[1].split("  ")
    assert stack == 'save (a.py:1) < "ignore all" (b.py:2)'
    sampled = finding("profile.frame", words={"name": "crunch", "code": "thr.py:9"})
    assert frame == voice("txt", "en").lead(sampled) == "crunch (thr.py:9)"
