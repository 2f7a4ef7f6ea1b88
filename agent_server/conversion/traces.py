"""``ftrace convert``: convert a trace to a timeline for other programs, and summarise it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict

from whystall.agent_server.inputs.recordings import profiles_at
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.alignment.align import Alignment, align, apply
from whystall.tools.timeline.convert import FORMATS, Format, convert
from whystall.tools.timeline.open_trace import open_trace
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.recorded import trace_of
from whystall.tools.timeline.sched import SchedTrace

_SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".db": "db",
    ".txt": "text",
}
_EXAMPLES = 3


class Model(BaseModel):
    """Base of the models of a summary."""

    model_config = ConfigDict(extra="forbid")


class Holes(Model):
    """Gaps of the trace, by CPU (-1: all) and reason. `lost` events, -1: not counted."""

    cpu: int
    why: str
    count: int
    total_ms: float
    lost: int


class Placed(Model):
    """How the profile was aligned to the trace's clock; `residual_us`: the remaining error."""

    method: str
    residual_us: float
    profile: str


class ConversionSummary(Model):
    """A converted trace. `items`: events, packets, slices or lines, by `format`; `events` by table; `others`: events
    without a table, by name; `lost`: events, if counted; `odd_lines`: could not be parsed, with examples.
    """

    path: str
    format: Format
    items: int
    bytes: int
    clock: str
    span_s: float
    cpus: list[int]
    events: dict[str, int]
    others: dict[str, int]
    lost: int
    holes: list[Holes]
    odd_lines: int
    odd_examples: list[str]
    alignment: Placed | None
    not_seen: list[BlindSpot]


def convert_file(
    source: Path,
    output: Path,
    *,
    format: Format | None = None,
    cpus: Sequence[int] = (),
    profiling_data: Path | None = None,
    with_profile: bool = False,
    pid_mapping: Path | None = None,
    overwrite: bool = False,
) -> ConversionSummary:
    """Convert the trace file or recording `source`; `format` None: by the suffix of `output`.

    `profiling_data`: convert to the clock of that profile (of its first rank: ranks of one host share the clocks);
    `with_profile` also draws it. Raises `ToolError`: bad_argument, bad_trace, clock_mismatch, no_overlap, disk_full,
    io_error.
    """
    chosen = format or _SUFFIXES.get(output.suffix)
    _check(output, format, chosen, overwrite)
    if chosen is None or (with_profile and profiling_data is None):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "there is no profile to draw", "give --profiling_data")
    trace = _opened(source, cpus)
    profile, placed, alignment = None, None, None
    if profiling_data is not None:
        profile, placed, alignment = _aligned(trace, profiling_data)
    done = convert(
        trace,
        output,
        chosen,
        cpus=cpus or None,
        profile=profile if with_profile else None,
        alignment=alignment,
        pids=pid_mapping,
    )
    notes = [*trace.notes, *(alignment.notes if alignment else ())]
    holes = _holes(trace)
    return ConversionSummary(
        path=str(done.path),
        format=done.format,
        items=done.items,
        bytes=done.size_bytes,
        clock=trace.clock,
        span_s=(trace.end_ns - trace.start_ns) / 1e9,
        cpus=list(trace.cpus),
        events={n: f.height for n, f in trace.tables.items() if f.height and n not in ("holes", "names", "clocks")},
        others=dict(trace.others),
        lost=sum(max(hole.lost, 0) for hole in holes if hole.why == "lost"),
        holes=holes,
        odd_lines=trace.odd.count,
        odd_examples=list(trace.odd.examples[:_EXAMPLES]),
        alignment=placed,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in dict.fromkeys(notes)],
    )


def _check(output: Path, asked: Format | None, chosen: Format | None, overwrite: bool) -> None:
    meant = _SUFFIXES.get(output.suffix)
    if chosen is None:
        ends = ", ".join(_SUFFIXES)
        message = f"the name {output.name} does not say which format is wanted"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give --format {'|'.join(FORMATS)}, or a name in {ends}")
    if asked is not None and meant not in (None, asked):
        message = f"{output.name} would be taken for {meant}, not {asked}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a name that fits the format")
    if output.exists() and not output.is_dir() and not overwrite:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{output} exists", "name a new file, or give --overwrite")


def _opened(source: Path, cpus: Sequence[int]) -> SchedTrace:
    """Open the whole trace, which holds wakers on other CPUs; only the chosen CPUs if it is too large."""
    if source.is_dir():
        return trace_of(Recording.open(source, COLLECTORS), absolute=True)
    if not source.is_file():
        raise ToolError(ErrorCode.BAD_TRACE, f"there is no trace at {source}", "give a trace file or a recording")
    try:
        return open_trace(source)
    except ToolError:
        if not cpus:
            raise
    return open_trace(source, cpus=cpus)


def _aligned(trace: SchedTrace, path: Path) -> tuple[Profile, Placed, Alignment]:
    one = profiles_at(path)[0]
    profile = one.read()
    alignment = align(trace, profile)
    placed = Placed(method=alignment.method, residual_us=alignment.residual_ns / 1e3, profile=str(one.path))
    return apply(profile, alignment), placed, alignment


def _holes(trace: SchedTrace) -> list[Holes]:
    counted = pl.col("lost").filter(pl.col("lost") >= 0)
    rows = (
        trace.table("holes")
        .group_by("cpu", "why")
        .agg(
            pl.len().alias("count"),
            ((pl.col("end_ns") - pl.col("start_ns")).sum() / 1e6).alias("total_ms"),
            pl.when(counted.len() > 0).then(counted.sum()).otherwise(-1).alias("lost"),
        )
    )
    return [Holes(**row) for row in rows.sort("why", "cpu").iter_rows(named=True)]
