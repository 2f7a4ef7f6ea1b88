"""MindStudio Insight's database: its tables, and the same content as Chrome's format."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from machine import Machine, trace_of

from whystall.tools.timeline.convert import convert
from whystall.tools.timeline.drawing.build import draw
from whystall.tools.timeline.writers import chrome as write_chrome

# github.com/Ascend/msinsight: scripts/ftrace_tools/exporters.py; ``flow`` as its server makes it of Chrome's format.
TABLES = {
    "process": {"pid", "process_name", "label", "process_sort_index", "parentPid"},
    "thread": {"track_id", "tid", "pid", "thread_name", "thread_sort_index"},
    "slice": {
        "id",
        "timestamp",
        "duration",
        "name",
        "depth",
        "track_id",
        "cat",
        "args",
        "cname",
        "end_time",
        "flag_id",
    },
    "flow": {"id", "flow_id", "name", "cat", "track_id", "timestamp", "type"},
    "counter": {"id", "name", "pid", "timestamp", "cat", "args"},
}


@pytest.fixture
def machine() -> Machine:
    return Machine(6)


@pytest.fixture
def database(machine: Machine, tmp_path: Path) -> sqlite3.Connection:
    converted = convert(machine.trace(), tmp_path / "ftrace_data.db", "db")
    database = sqlite3.connect(f"file:{converted.path}?mode=ro", uri=True)
    assert converted.items == rows(database, "SELECT count(*) FROM slice")[0][0]
    return database


def rows(database: sqlite3.Connection, query: str) -> list[Any]:
    return database.execute(query).fetchall()


def test_it_is_whole_and_has_the_tables(database: sqlite3.Connection) -> None:
    assert rows(database, "PRAGMA integrity_check") == [("ok",)]
    there = {name for (name,) in rows(database, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert there - {"sqlite_sequence"} == set(TABLES)
    for table, columns in TABLES.items():
        assert {row[1] for row in rows(database, f"PRAGMA table_info({table})")} == columns


def test_the_same_is_drawn_as_in_chromes_format(database: sqlite3.Connection, machine: Machine) -> None:
    out = io.BytesIO()
    write_chrome.write(draw(machine.trace()), out)
    events = json.loads(out.getvalue())
    expected = Counter(
        (e["pid"], e["tid"], e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000), json.dumps(e["args"]))
        for e in events
        if e["ph"] == "X"
    )
    found = Counter(
        (*row[:5], json.dumps(json.loads(row[5])))
        for row in rows(
            database,
            "SELECT thread.pid, tid, name, timestamp, duration, args FROM slice JOIN thread USING (track_id) "
            "WHERE duration > 0",
        )
    )
    assert found == expected
    assert rows(database, "SELECT count(*) FROM slice WHERE end_time != timestamp + duration") == [(0,)]
    arrows = Counter((e["ph"], e["id"], e["pid"], e["tid"], round(e["ts"] * 1000)) for e in events if e["ph"] in "sf")
    assert arrows == Counter(
        rows(database, "SELECT type, CAST(flow_id AS INT), pid, tid, timestamp FROM flow JOIN thread USING (track_id)")
    )


def test_every_thread_has_its_process(database: sqlite3.Connection) -> None:
    assert rows(database, "SELECT pid, process_sort_index FROM process ORDER BY 2") == [
        ("Process Scheduling", 0), ("CPU Scheduling", 1),
    ]  # fmt: skip
    assert rows(database, "SELECT count(*) FROM thread WHERE pid NOT IN (SELECT pid FROM process)") == [(0,)]
    assert rows(database, "SELECT count(*) FROM slice WHERE track_id NOT IN (SELECT track_id FROM thread)") == [(0,)]


def test_insight_can_count_the_switches_of_each_thread(tmp_path: Path) -> None:
    """It looks up the thread by ``comm:pid`` as the slice's arguments say it, and takes R for involuntary."""
    switches = [(100, 0, 7, 110, "R+", True, 0, 8, 120), (200, 0, 8, 120, "S", False, 0, 0, 120)]
    names = [(0, 7, 7, "a:b"), (0, 8, 8, "c")]
    convert(trace_of(switches=switches, names=names), tmp_path / "my_ftrace_data_1.db", "db")
    database = sqlite3.connect(tmp_path / "my_ftrace_data_1.db")
    found = rows(database, "SELECT timestamp, duration, args FROM slice WHERE name = 'sched_switch'")
    assert [(at, duration, json.loads(args)) for at, duration, args in found] == [
        (100, 0, {"prev_comm": "a:b", "prev_pid": "7", "prev_prio": "110", "next_comm": "c", "next_pid": "8",
                  "next_prio": "120", "prev_state": "R"}),
        (200, 0, {"prev_comm": "c", "prev_pid": "8", "prev_prio": "120", "next_comm": "<idle>", "next_pid": "0",
                  "next_prio": "120", "prev_state": "S"}),
    ]  # fmt: skip
    assert {tid for (tid,) in rows(database, "SELECT tid FROM thread")} == {"CPU 000", "a:b:7", "c:8"}
    states = rows(database, "SELECT name, args FROM slice JOIN thread USING (track_id) WHERE tid = 'a:b:7'")
    assert {(name, json.loads(args)["cpu"]) for name, args in states} == {("Running", "0"), ("Runnable", "0")}
