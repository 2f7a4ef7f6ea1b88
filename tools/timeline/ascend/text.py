"""Read JSON timelines of the Ascend profilers: ``trace_view.json`` of torch_npu, ``msprof_*.json`` of msprof.

A bare list of events. Processes are sections - Python, CANN, Ascend Hardware, HCCL (later Communication), Overlap
Analysis - named by events anywhere in the list; ``ts`` is text, absolute microseconds. A section's process id holds the
host's process, the section's place and the device: ``pid << 10 | place << 5 | device``.

    {"ph": "X", "name": "MatMulV2", "pid": 3263987904, "tid": 2, "ts": "1736413971559012.912", "dur": 1.92,
     "args": {"Task Type": "AI_CORE", "Physic Stream Id": 2, "Task Id": 30, "connection_id": 4295}}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.timeline.ascend.collectives import DETAILS, with_collectives
from whystall.tools.timeline.ascend.groups import Communicators
from whystall.tools.timeline.ascend.info import Info
from whystall.tools.timeline.ascend.measured import of_json
from whystall.tools.timeline.ascend.rows import NO_ID, cann_kind, host_kind, task_kind, with_streams
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.build import NAME_LIMIT, Found, Names, finished
from whystall.tools.timeline.profile_reading.groups import ELEMENT_LIMIT, number, text
from whystall.tools.timeline.profile_reading.numbers import nanoseconds, whole
from whystall.tools.timeline.profile_reading.trace_events import Event, EventFile

_HARDWARE, _COMMUNICATION, _CALLS, _HOST = "hardware", "communication", "cann", "host"
_SECTIONS = {
    "Ascend Hardware": _HARDWARE,
    "Task Scheduler": _HARDWARE,  # before CANN 7
    "HCCL": _COMMUNICATION,
    "Communication": _COMMUNICATION,
    "CANN": _CALLS,
    "AscendCL": _CALLS,
}
_PLANE = "plane"


class _Args(msgspec.Struct, gc=False):
    name: str = ""
    sort_index: int | str = -1
    connection: int | str = msgspec.field(name="connection_id", default=-1)
    task: str = msgspec.field(name="Task Type", default="")
    plane: str = msgspec.field(name="task type", default="")
    stream: int | str | None = msgspec.field(name="Physic Stream Id", default=None)
    # of collectives
    count: Any = None
    dtype: Any = msgspec.field(name="data_type", default="")


class _Event(Event, gc=False):
    id: int | str = 0
    args: _Args | None = None


_NONE = _Args()


@dataclass
class _Sections:
    """Names and places of the processes, and the flows from operators to tasks."""

    names: dict[int, str] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    flows: list[pl.DataFrame] = field(default_factory=list)
    details: list[pl.DataFrame] = field(default_factory=list)


def read(paths: Sequence[Path], info: Info, source: str) -> Profile:
    """Return the profile in one timeline, or one cut into files. Raises `ToolError` (bad_trace, io_error)."""
    found, sections = Found(), _Sections()
    for path in paths:
        file = EventFile(path, _Event)
        for events in file.pieces():
            _take(events, found, sections)
        found.odd += file.odd
    found.owners = _owners(found, sections)
    _place(found, sections)
    found.rows = with_streams(found.rows)
    listed = f"{_COMMUNICATION}|" in {label for label, _ in found.names}
    kind = partial(_kind, listed=listed)
    profile = finished(paths[0], found, kind, source=source, rank=info.rank, bridges=info.bridges)
    details = pl.concat(sections.details)
    groups, measured = Communicators(info.groups), of_json(paths[0].absolute().parent)
    return with_collectives(profile, details, measured, groups, info, listed=listed)


def _take(events: list[_Event], found: Found, sections: _Sections) -> None:
    for event in events:
        if event.ph == "M" and event.args is not None and isinstance(event.pid, int):
            if event.name == "process_name":
                sections.names[event.pid] = event.args.name
            elif event.name == "process_sort_index" and isinstance(event.args.sort_index, int):
                sections.places[event.pid] = event.args.sort_index
    sections.flows.append(_flows([event for event in events if event.cat == "async_npu"]))
    events = [event for event in events if event.ph == "X"]
    args = [event.args or _NONE for event in events]
    names, start = found.names, nanoseconds([event.ts for event in events])
    what = [
        names[event.cat or (_PLANE if arg.plane else arg.task), event.name]
        for event, arg in zip(events, args, strict=True)
    ]
    frame = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + nanoseconds([event.dur for event in events]).clip(0),
            "what": pl.Series(what, dtype=pl.UInt32),
            "pid": whole([event.pid for event in events]),
            "tid": whole([event.tid for event in events]),
            "device": pl.Series([-1] * len(events), dtype=pl.Int64),
            "stream": whole([-1 if arg.stream is None else arg.stream for arg in args]),
            "correlation": whole([arg.connection for arg in args]),
        }
    )
    counted = [i for i, arg in enumerate(args) if arg.count is not None]
    sections.details.append(_details([events[i].name for i in counted], [args[i] for i in counted], start[counted]))
    none = pl.col("correlation") == NO_ID
    found.add(frame.with_columns(pl.when(none).then(-1).otherwise("correlation").alias("correlation")))


def _details(names: list[str], args: list[_Args], start: pl.Series) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "start_ns": start,
            "name": pl.Series([clean(name, NAME_LIMIT) for name in names], dtype=pl.String),
            "group_name": pl.Series([""] * len(names), dtype=pl.String),
            "count": pl.Series([number(arg.count, ELEMENT_LIMIT) for arg in args], dtype=pl.Int64),
            "dtype": pl.Series([text(arg.dtype) for arg in args], dtype=pl.String),
        },
        schema=DETAILS,
    )


def _flows(events: list[_Event]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": pl.Series([str(event.id) for event in events], dtype=pl.String),
            "begins": pl.Series([event.ph == "s" for event in events], dtype=pl.Boolean),
            "at_ns": nanoseconds([event.ts for event in events]),
            "pid": whole([event.pid for event in events]),
            "tid": whole([event.tid for event in events]),
        }
    )


def _owners(found: Found, sections: _Sections) -> pl.DataFrame:
    """Return the operator of tasks by correlation: the one whose flow arrives where the task begins."""
    if not found.rows:
        return found.owners
    flows = pl.concat(sections.flows)
    tasks = pl.concat(
        [rows.filter(pl.col("correlation") >= 0).select("pid", "tid", "start_ns", "correlation") for rows in found.rows]
    )
    begins = flows.filter("begins").select("id", "at_ns", owner_pid="pid", owner_tid="tid")
    ends = flows.filter(~pl.col("begins")).select("id", "pid", "tid", start_ns="at_ns")
    owned = ends.join(begins, on="id").join(tasks, on=["pid", "tid", "start_ns"])
    return owned.sort("at_ns").unique("correlation", keep="first", maintain_order=True).select(found.owners.columns)


def _place(found: Found, sections: _Sections) -> None:
    """Label rows with their section; set the host's process and the device."""
    pairs, placed = list(found.names), Names()
    rows = []
    for frame in found.rows:
        for (pid,), part in frame.partition_by("pid", as_dict=True).items():
            where = _SECTIONS.get(sections.names.get(pid, ""), _HOST)
            part = part.with_columns(
                pl.col("what").replace_strict(
                    {what: placed[f"{where}|{pairs[what][0]}", pairs[what][1]] for what in part["what"].unique()},
                    return_dtype=pl.UInt32,
                )
            )
            if where != _HOST:
                known = sections.places.get(pid) == pid >> 5 & 31
                part = part.with_columns(pl.lit(pid >> 10 if known else -1, pl.Int64).alias("pid"))
            if where in (_HARDWARE, _COMMUNICATION):
                lane = pl.col("tid") if where == _HARDWARE else -1
                part = part.with_columns(
                    pl.lit(pid & 31 if known else 0, pl.Int64).alias("device"),
                    pl.when(pl.col("stream") < 0).then(lane).otherwise("stream").alias("stream"),
                )
            rows.append(part)
    found.names, found.rows = placed, rows


def _kind(label: str, name: str, *, listed: bool) -> str:
    where, _, what = label.partition("|")
    if where == _HARDWARE:
        return task_kind(what, name, listed=listed)
    if where == _COMMUNICATION:
        return "" if what == _PLANE else "collective"  # the planes repeat the tasks of the hardware
    if where == _CALLS:
        level, at, call = name.partition("@")
        return cann_kind(level if at else "", call or level)
    return host_kind(what, name) if what else ""
