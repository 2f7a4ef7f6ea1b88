"""Counters of a window from looks that are seconds apart."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import pytest

from whystall.tools.collect.continuous_proc import ProcLooks
from whystall.tools.collect.proc_window import proc_capture
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import PROC
from whystall.tools.collect.tables import PROC as SCHEMAS

S = 1_000_000_000


def look(at: int, **rows: list[list[Any]]) -> Entry:
    return Entry(PROC, at * S, at * S, zlib.compress(json.dumps(rows).encode()))


def host(at: int, value: float) -> Entry:
    return look(at, host=[[at * S, "psi_cpu_some_us", value], [at * S, "new", float(at)]])


def readings(entries: list[Entry], start: float, end: float) -> list[tuple[float, float]]:
    capture = proc_capture(entries, int(start * S), int(end * S))
    assert capture is not None
    table = capture.tables["host"]
    return [(at / S, value) for at, name, value in table.iter_rows() if name == "psi_cpu_some_us"]


def test_counters_are_interpolated_at_both_ends() -> None:
    entries = [host(10, 100.0), host(20, 200.0), host(30, 1200.0)]
    assert readings(entries, 12, 14) == [(12, 120.0), (14, 140.0)]
    assert readings(entries, 15, 25) == [(15, 150.0), (20, 200.0), (25, 700.0)]
    assert readings(entries, 10, 30) == [(10, 100.0), (20, 200.0), (30, 1200.0)]


def test_beyond_the_looks_nothing_is_made_up() -> None:
    entries = [host(10, 100.0), host(20, 200.0)]
    assert readings(entries, 5, 15) == [(10, 100.0), (15, 150.0)]
    assert readings(entries, 15, 25) == [(15, 150.0), (20, 200.0)]
    assert readings(entries[:1], 5, 8) == []
    assert proc_capture([], 0, S) is None


def test_unknown_numbers_and_texts_are_not_interpolated() -> None:
    row = [0, "/job", 2, 5, -1, 7, 100_000, 100_000, 50, -1, 0]
    later = [0, "/job", 2, 15, 3, 17, 100_000, 100_000, 150, -1, 0]
    entries = [
        look(10, host=[[10, "x", 1.0]], cgroups=[[10 * S, *row[1:]]]),
        look(20, cgroups=[[20 * S, *later[1:]]]),
    ]
    capture = proc_capture(entries, 12 * S, 15 * S)
    assert capture is not None
    first, last = capture.tables["cgroups"].rows()
    assert first[1:8] == ("/job", 2, 7, -1, 9, 100_000, 100_000)
    assert last[3] == 10


def test_other_tables_have_what_held_at_the_start_and_the_changes() -> None:
    affinity = [[[at * S, 1, 1, "train", cpus, ""]] for at, cpus in ((1, "0-3"), (5, "0"), (9, "1"))]
    entries = [look(at, host=[[at * S, "x", 1.0]], affinity=rows) for at, rows in zip((1, 5, 9), affinity, strict=True)]
    capture = proc_capture(entries, 3 * S, 8 * S)
    assert capture is not None
    assert capture.tables["affinity"]["cpus"].to_list() == ["0-3", "0"]


@pytest.mark.parametrize("data", [b"", b"x", zlib.compress(b"[1"), zlib.compress(b"[1]"), zlib.compress(b'{"host":7}')])
def test_damaged_looks_are_left_out(data: bytes) -> None:
    assert proc_capture([Entry(PROC, 0, 0, data)], 0, S) is None
    assert readings([host(0, 1.0), Entry(PROC, 0, 0, data), host(2, 3.0)], 0, 2) == [(0, 1.0), (2, 3.0)]


def test_looks_have_rows_of_the_tables() -> None:
    looks = ProcLooks()
    entries = [Entry(PROC, at * S, at * S, looks.look([os.getpid()], always=True)) for at in (1, 2)]
    assert looks.look([os.getpid()]) == b""
    capture = proc_capture(entries, S, 2 * S)
    assert capture is not None
    assert set(capture.tables) == set(SCHEMAS)
    assert os.getpid() in capture.tables["processes"]["pid"].to_list()
    assert os.getpid() in capture.tables["threads"]["pid"].to_list()
    assert not capture.tables["cpus"].is_empty()
