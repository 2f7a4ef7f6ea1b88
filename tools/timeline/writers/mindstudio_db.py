"""Write a drawing as the SQLite database that MindStudio Insight imports.

The tables are those of its text-trace database and of its ftrace tools (github.com/Ascend/msinsight, June 2026:
``process``, ``thread``, ``slice``, ``counter``, and ``flow`` as its parser of Chrome's format fills it), in integer
nanoseconds. Insight detects the type by the file's name, which must contain ``ftrace_data`` and end in ``.db``;
computed columns (`depth`) stay empty. Its summary of context switches counts slices of no length called
``sched_switch``. Checked against those public sources only: Insight could not be run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from whystall.tools.timeline.drawing.build import Drawing
from whystall.tools.timeline.drawing.lanes import CPU_LANES, SLICES, shape
from whystall.tools.timeline.drawing.names import Names, json_object, json_text
from whystall.tools.timeline.sched import SchedTrace

NAME_PART = "ftrace_data"
_SCHEMA = """
CREATE TABLE process (pid TEXT PRIMARY KEY, process_name TEXT, label TEXT, process_sort_index INTEGER,
    parentPid TEXT DEFAULT '0');
CREATE TABLE thread (track_id INTEGER PRIMARY KEY, tid TEXT, pid TEXT, thread_name TEXT, thread_sort_index INTEGER);
CREATE TABLE slice (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER, duration INTEGER, name TEXT,
    depth INTEGER, track_id INTEGER, cat TEXT, args TEXT, cname TEXT, end_time INTEGER, flag_id TEXT);
CREATE TABLE flow (id INTEGER PRIMARY KEY AUTOINCREMENT, flow_id TEXT, name TEXT, cat TEXT, track_id INTEGER,
    timestamp INTEGER, type TEXT);
CREATE TABLE counter (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, pid TEXT, timestamp INTEGER, cat TEXT,
    args TEXT);
"""
_INDICES = """
CREATE INDEX track_id_cat_index ON slice (track_id, cat);
CREATE INDEX track_id_timestamp_end_time_index ON slice (timestamp, end_time, track_id);
CREATE INDEX flow_track_id_timestamp_index ON flow (track_id, timestamp);
"""
_SLICE = "INSERT INTO slice (timestamp, duration, name, track_id, cat, args, end_time) VALUES (?,?,?,?,?,?,?)"
_FLOW = "INSERT INTO flow (flow_id, name, cat, track_id, timestamp, type) VALUES (?,?,?,?,?,?)"


def write(drawing: Drawing, path: Path, switches: Iterable[pl.DataFrame] = ()) -> int:
    """Create the database at `path`, which must not exist, and return the number of slices. `switches`: more slices
    (see `switch_slices`). Raises `sqlite3.Error`, also when there is no space."""
    database = sqlite3.connect(path)
    try:
        # the file is new and counts only as a whole, so there is nothing to roll back to
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
        _write_lanes(database, drawing)
        for frame in (*drawing.batches(), drawing.instants, *switches):
            rows = frame.select(
                "start_ns", pl.col("end_ns") - pl.col("start_ns"), "name", "lane", "cat", "args", end="end_ns"
            )
            _insert(database, _SLICE, rows)
        _write_flows(database, drawing)
        counters = drawing.counters.select(
            "name", "group", "at_ns", cat=pl.lit("marker"), args=json_object(value=pl.col("value").cast(pl.String))
        )
        _insert(database, "INSERT INTO counter (name, pid, timestamp, cat, args) VALUES (?,?,?,?,?)", counters)
        database.executescript(_INDICES)
        count: int = database.execute("SELECT count(*) FROM slice").fetchone()[0]
        database.commit()
    finally:
        database.close()
    return count


def switch_slices(trace: SchedTrace, drawing: Drawing, names: Names) -> Iterable[pl.DataFrame]:
    """Yield each switch on a lane of `drawing` as a slice of no length, for Insight's summary of context switches."""
    drawn = pl.col("cpu").cast(pl.Int64).is_in(drawing.lanes["lane"].implode())
    for batch in trace.table("switches").filter(drawn).iter_slices(200_000):
        rows = names.last(names.last(batch, "prev_tid", "prev"), "next_tid", "next")  # the labels of their lanes
        args = {}
        for side in ("prev", "next"):
            args[f"{side}_comm"] = json_text(pl.col(side).str.replace(r":\d+$", ""))
            args[f"{side}_pid"] = json_text(pl.col(side).str.extract(r"(\d+)$"))
            args[f"{side}_prio"] = json_text(pl.col(f"{side}_prio").cast(pl.String))
        args["prev_state"] = json_text(pl.col("prev_state").replace("R+", "R"))  # what counts as involuntary
        rows = rows.select(
            lane=pl.col("cpu").cast(pl.Int64) + CPU_LANES, start_ns="at_ns", end_ns="at_ns",
            name=pl.lit("sched_switch"), cat=pl.lit("switch"), args=json_object(**args),
        )  # fmt: skip
        yield shape(rows, SLICES)


def _write_lanes(database: sqlite3.Connection, drawing: Drawing) -> None:
    groups = drawing.lanes["group"].unique(maintain_order=True)
    database.executemany(
        "INSERT INTO process (pid, process_name, label, process_sort_index) VALUES (?,?,?,?)",
        [(group, group, drawing.notes.get(group), order) for order, group in enumerate(groups)],
    )
    lanes = drawing.lanes.with_row_index("order").select("lane", "key", "group", "label", "order")
    _insert(
        database, "INSERT INTO thread (track_id, tid, pid, thread_name, thread_sort_index) VALUES (?,?,?,?,?)", lanes
    )


def _write_flows(database: sqlite3.Connection, drawing: Drawing) -> None:
    flows = drawing.flows.with_row_index("id", offset=1).with_columns(pl.col("id").cast(pl.String))
    for end, kind in (("from", "s"), ("to", "f")):
        rows = flows.select("id", pl.col("cat").alias("name"), "cat", f"{end}_lane", f"{end}_ns", kind=pl.lit(kind))
        _insert(database, _FLOW, rows)


def _insert(database: sqlite3.Connection, statement: str, rows: pl.DataFrame) -> None:
    for batch in rows.iter_slices(100_000):
        values: Iterable[tuple[Any, ...]] = batch.rows()
        database.executemany(statement, values)
