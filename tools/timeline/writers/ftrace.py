"""Write a trace as ftrace's text, which every tool for ftrace reads, ours included.

Lines are those of the kernel's file ``trace``, with thread groups (option ``record-tgid``) where they are known, and
with nanoseconds. The text has no place for `prev_arrived_ns`, names without an event, and both the number and the name
of a system call. Holes ``unseen`` are left out, since the switches show them; for tools that do not check, they can be
written as ``LOST EVENTS``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import polars as pl

from whystall.tools.files.output_file import aside
from whystall.tools.timeline.clocks import ClockPoint
from whystall.tools.timeline.drawing.names import Names
from whystall.tools.timeline.sched import SchedTrace
from whystall.tools.timeline.writers import ftrace_lines as ftrace_write_lines

_ROWS = 400_000
"""Events per batch of text."""
_CAPTURE = "# whystall: "
_EVENTS = ("switches", "wakeups", "migrations", "interrupts", "syscalls", "tasks", "power", "block", "markers")


def write(trace: SchedTrace, path: Path, *, cpus: Collection[int] | None = None, unseen_as_lost: bool = False) -> int:
    """Write `trace` to the file `path` and return the number of lines; if given, only the events on `cpus`.

    Raises `ToolError` (disk_full, io_error); `path` is replaced as a whole, or left as it was.
    """
    with aside(path) as beside, beside.open("xb") as out:
        return write_to(trace, out, cpus=cpus, unseen_as_lost=unseen_as_lost)


def write_to(
    trace: SchedTrace, out: IO[bytes], *, cpus: Collection[int] | None = None, unseen_as_lost: bool = False
) -> int:
    """Write as `write` does, to an open file."""
    trace = trace if cpus is None else _of_cpus(trace, set(cpus))
    names = Names(trace, {})
    groups = not trace.table("names").filter(pl.col("pid") > 0).is_empty()
    points = [ClockPoint(**row).line() for row in trace.table("clocks").to_dicts()]
    about = {"version": 1, "clock": trace.clock, "cpus": list(trace.cpus)}
    head = ["# tracer: nop", _CAPTURE + json.dumps(about, separators=(",", ":")), *points[:1]]
    count = _write(out, head)
    losses = ftrace_write_lines.loss_lines(trace, unseen_as_lost)
    for tables in _windows(trace, losses):
        events = pl.concat([tables["losses"], *ftrace_write_lines.lines(tables, names, groups)])
        lines = events.sort("at_ns", "rank", maintain_order=True)["line"]
        count += _write(out, [lines.str.join("\n").item()], len(lines))
    return count + _write(out, points[1:])


def _write(out: IO[bytes], texts: list[str], lines: int | None = None) -> int:
    for text in texts:
        out.write(text.encode())
        out.write(b"\n")
    return len(texts) if lines is None else lines


def _windows(trace: SchedTrace, losses: pl.DataFrame) -> Iterator[ftrace_write_lines.Tables]:
    """Yield the tables of events, and `losses`, cut into spans of so many events."""
    tables = {name: trace.table(name) for name in _EVENTS} | {"losses": losses}
    running = trace.table("switches").select("at_ns", "cpu", running="next_tid")
    moves = tables["migrations"].join_asof(running, on="at_ns", by="cpu", check_sortedness=False)
    tables["migrations"] = moves.with_columns(pl.col("running").fill_null(0))
    instants = pl.concat([frame["at_ns"] for frame in tables.values()]).sort()
    if instants.is_empty():
        return
    cuts = [*instants.gather_every(_ROWS, offset=_ROWS).unique(maintain_order=True), None]
    starts = dict.fromkeys(tables, 0)
    for cut in cuts:
        ends = {
            name: len(frame) if cut is None else int(frame["at_ns"].search_sorted(cut, side="left"))
            for name, frame in tables.items()
        }
        yield {name: frame.slice(starts[name], ends[name] - starts[name]) for name, frame in tables.items()}
        starts = ends


def _of_cpus(trace: SchedTrace, cpus: set[int]) -> SchedTrace:
    there = pl.col("cpu").is_in([*cpus, -1])
    tables = {name: frame.filter(there) if "cpu" in frame.columns else frame for name, frame in trace.tables.items()}
    return replace(trace, tables=tables, cpus=tuple(cpu for cpu in trace.cpus if cpu in cpus))
