"""Convert a trace to the file format of a viewer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.output_file import aside
from whystall.tools.timeline.alignment import pid_mapping
from whystall.tools.timeline.alignment.align import Alignment, apply
from whystall.tools.timeline.drawing.build import draw
from whystall.tools.timeline.drawing.names import Names
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import SchedTrace
from whystall.tools.timeline.writers import chrome as write_chrome
from whystall.tools.timeline.writers import ftrace as ftrace_write
from whystall.tools.timeline.writers import mindstudio_db as write_mindstudio_db
from whystall.tools.timeline.writers import perfetto as write_perfetto

Format = Literal["json", "perfetto", "db", "text"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Converted:
    """What was written: `items` are events (json), packets (perfetto), slices (db) or lines (text). `beyond_doubles`:
    viewers that read numbers as doubles lose nanoseconds of the JSON's instants (see `writers.chrome`)."""

    path: Path
    format: Format
    items: int
    size_bytes: int
    beyond_doubles: bool = False


def convert(
    trace: SchedTrace,
    output: Path,
    format: Format,
    *,
    cpus: Collection[int] | None = None,
    profile: Profile | None = None,
    alignment: Alignment | None = None,
    pids: Path | None = None,
) -> Converted:
    """Write `trace` to `output`: ``json`` (`writers.chrome`), ``perfetto`` (`writers.perfetto`), ``db``
    (`writers.mindstudio_db`) or ``text`` (`writers.ftrace`).

    `cpus`: only these, and the threads that ran on them. `profile`: added, its instants on the trace's clock.
    `alignment`: everything is written on the clock of its profile, so that a viewer can show it with the profile's own
    files. `pids`: a file that maps thread ids to those in a container (see `alignment.pid_mapping`).

    Raises `ToolError`: bad_argument, disk_full, io_error. `output` is replaced as a whole, or left as it was.
    """
    output = Path(output)
    _check(trace, output, format, cpus)
    numbers = pid_mapping.read(pids, _tids(trace)) if pids is not None else {}
    if alignment is not None:
        trace, profile = _on_profile_clock(trace, profile, alignment)
    beyond_doubles = False
    with aside(output) as path:
        if format == "db":
            drawing = draw(trace, cpus=cpus, profile=profile, numbers=numbers)
            switches = write_mindstudio_db.switch_slices(trace, drawing, Names(trace, numbers))
            items = write_mindstudio_db.write(drawing, path, switches)
        else:
            with path.open("xb") as out:
                if format == "json":
                    drawing = draw(trace, cpus=cpus, profile=profile, numbers=numbers)
                    items = write_chrome.write(drawing, out)
                    beyond_doubles = write_chrome.beyond_doubles(drawing)
                elif format == "perfetto":
                    items = write_perfetto.write(trace, out, cpus=cpus, profile=profile, numbers=numbers)
                else:
                    items = ftrace_write.write_to(trace, out, cpus=cpus)
        size = path.stat().st_size
    return Converted(output, format, items, size, beyond_doubles)


def _check(trace: SchedTrace, output: Path, format: str, cpus: Collection[int] | None) -> None:
    if format not in FORMATS:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"no format {format!r}", f"choose one of {', '.join(FORMATS)}")
    if format == "db" and not (write_mindstudio_db.NAME_PART in output.name and output.suffix == ".db"):
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"MindStudio Insight does not take {output.name} for a trace",
            f"let the name hold {write_mindstudio_db.NAME_PART} and end in .db, as {write_mindstudio_db.NAME_PART}.db",
        )
    if output.is_dir():
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{output} is a directory", "name a file to write")
    if cpus is not None and not set(cpus) & set(trace.cpus):
        there = ", ".join(map(str, trace.cpus)) or "none"
        raise ToolError(ErrorCode.BAD_ARGUMENT, "none of these CPUs is in the trace", f"choose of {there}")


def _tids(trace: SchedTrace) -> set[int]:
    switches = trace.table("switches")
    return {*switches["prev_tid"].unique(), *switches["next_tid"].unique(), *trace.table("names")["tid"].unique()}


def _on_profile_clock(
    trace: SchedTrace, profile: Profile | None, alignment: Alignment
) -> tuple[SchedTrace, Profile | None]:
    """Return both, moved from the trace's clock to the profile's."""
    drift = alignment.drift_ppt
    back = replace(
        alignment,
        profile_ns=alignment.trace_ns,
        trace_ns=alignment.profile_ns,
        drift_ppt=-drift * 10**12 // (10**12 + drift),
    )
    tables = {}
    for name, frame in trace.tables.items():
        instants = [column for column in ("at_ns", "start_ns", "end_ns") if column in frame.columns]
        moved = [back.expression(column) for column in instants]
        if "prev_arrived_ns" in frame.columns:
            known = pl.col("prev_arrived_ns") > 0
            moved.append(pl.when(known).then(back.expression("prev_arrived_ns")).otherwise(0).alias("prev_arrived_ns"))
        tables[name] = frame.with_columns(moved)
    tables["clocks"] = tables["clocks"].clear()  # they belong to the old clock
    trace = replace(
        trace, tables=tables, start_ns=back.at(trace.start_ns), end_ns=back.at(trace.end_ns), clock="profile"
    )
    return trace, apply(profile, back) if profile is not None else None
