"""Convert traces and profiles to recordings and back: the collectors ``ftrace`` and ``profile``.

A recording's instants count from its start; a trace's and a profile's are those of their clock. Selected CPUs are bits
of the collector's option ``cpus``, CPU 0 the lowest (0 or absent: all were traced).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.timeline import sched
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import SchedTrace

if TYPE_CHECKING:
    from whystall.tools.timeline.alignment.align import Alignment

FILE = "file"
"""Engine of a collector that was read from a trace file."""
UNKNOWN_START = "1970-01-01T00:00:00.000Z"
"""`Manifest.started` of a trace without wall-clock time."""

_CLOCKS = {"mono": "CLOCK_MONOTONIC", "mono_raw": "CLOCK_MONOTONIC_RAW", "boot": "CLOCK_BOOTTIME"}
_TRACER_CLOCKS = {name: clock for clock, name in _CLOCKS.items()}
_INSTANTS = ("at_ns", "start_ns", "end_ns", "prev_arrived_ns")
# Tables about the trace, not of events.
_NO_EVENTS = frozenset({"holes", "names", "clocks"})


def trace_of(recording: Recording, *, absolute: bool = False) -> SchedTrace:
    """Return the trace in `recording`: from 0 to its window's end, or with `absolute` on its own clock.

    Raises `ToolError` (missing_collector) if it has none. Unreadable lines and events without a table are only blind
    spots in a recording.
    """
    if not recording.has("ftrace"):
        raise ToolError(
            ErrorCode.MISSING_COLLECTOR,
            "this recording has no trace of the scheduler",
            "record with `whystall record --trace`, or give a trace file",
        )
    manifest, found = recording.manifest, recording.tables()
    start = manifest.start_ns if absolute else 0
    tables = {
        name: _shifted(found.get(f"ftrace.{name}", schema.to_frame()), start) for name, schema in sched.TABLES.items()
    }
    entry = manifest.collectors["ftrace"]
    return SchedTrace(
        tables=tables,
        start_ns=start,
        end_ns=start + manifest.window_ns,
        cpus=_cpus(manifest.cpus, entry, tables),
        clock=_TRACER_CLOCKS.get(manifest.clock, manifest.clock),
        notes=tuple((spot.code, spot.detail) for spot in entry.not_seen),
    )


def recording_of(trace: SchedTrace, *, name: str = "trace", host: str = "", kernel: str = "") -> Recording:
    """Return a trace as a recording, in memory, of the whole host; `name` becomes its id.

    `Manifest.started` comes from the trace's clocks, else it is `UNKNOWN_START`. The collector counts as proven if the
    trace has any context switch.
    """
    window = max(trace.end_ns - trace.start_ns, 0)
    tables = {table: _relative(frame, trace.start_ns, window) for table, frame in trace.tables.items()}
    events = sum(frame.height for table, frame in tables.items() if table not in _NO_EVENTS)
    holes = tables["holes"].filter(pl.col("why") == "lost")["lost"]
    lost = int(holes.clip(1).sum())  # a loss without a count is at least one event
    count = max(trace.cpus, default=0) + 1
    chosen = {} if trace.cpus == tuple(range(count)) else {"cpus": sum(1 << cpu for cpu in trace.cpus)}
    spots = [BlindSpot(code=code, detail=detail) for code, detail in trace.notes]
    if trace.odd.count:
        spots.append(BlindSpot(code="odd_lines", detail=str(trace.odd.count)))
    entry = CollectorManifest(
        engine=FILE,
        options=chosen,
        hooks=[table for table, frame in tables.items() if table not in _NO_EVENTS and frame.height],
        seen=events + sum(trace.others.values()) + lost,
        kept=events,
        lost=lost,
        proven=tables["switches"].height > 0,
        not_seen=spots,
    )
    manifest = Manifest(
        id=name,
        host=host,
        kernel=kernel,
        machine="",
        cpus=count,
        target=Target(everything=True),
        started=_started(trace),
        clock=_CLOCKS.get(trace.clock, trace.clock),
        start_ns=trace.start_ns,
        window_ns=window,
        requested_ns=window,
        collectors={"ftrace": entry},
    )
    return Recording.in_memory(manifest, {f"ftrace.{table}": frame for table, frame in tables.items()})


def with_profile(recording: Recording, profile: Profile, alignment: Alignment | None = None) -> Recording:
    """Return a copy of `recording` that also holds `profile`, moved to the recording's clock by `alignment` (None: it
    is on that clock).

    Activities are cut at the window's edges; those outside, and steps that are not entirely inside, are left out and
    counted in a blind spot. Raises `ToolError` (no_overlap) when nothing lies in the window.
    """
    options: dict[str, int] = {}
    spots: list[BlindSpot] = []
    if alignment is not None:
        from whystall.tools.timeline.alignment.align import apply

        profile = apply(profile, alignment)  # adds its notes to the profile's
        options["residual_ns"] = alignment.residual_ns
        spots.append(BlindSpot(code="alignment", detail=f"{alignment.residual_ns / 1e3:g} us, {alignment.method}"))
    spots += [BlindSpot(code=code, detail=detail) for code, detail in profile.notes]
    start, window = recording.manifest.start_ns, recording.manifest.window_ns
    begin, end = pl.col("start_ns") - start, pl.max_horizontal("start_ns", "end_ns") - start
    activities = profile.activities.filter((begin <= window) & (end >= 0))
    steps = profile.steps.filter((begin >= 0) & (end <= window))
    if activities.is_empty() and steps.is_empty():
        raise ToolError(
            ErrorCode.NO_OVERLAP,
            "the profile has nothing within the time of the trace",
            "give a profile and a trace that were taken at the same time on the same host",
        )
    outside = [profile.activities.height - activities.height, profile.steps.height - steps.height]
    if any(outside):
        spots.append(BlindSpot(code="profile_outside", detail=f"{outside[0]} activities, {outside[1]} steps"))
    manifest = recording.manifest.model_copy(deep=True)
    manifest.collectors["profile"] = CollectorManifest(
        engine=profile.source,
        options=options,
        seen=profile.activities.height,
        kept=activities.height,
        proven=True,
        not_seen=spots,
    )
    inside = [begin.clip(0, window).alias("start_ns"), end.clip(0, window).alias("end_ns")]
    tables = {"activities": activities.with_columns(inside), "steps": steps.with_columns(inside)}
    return Recording.in_memory(manifest, recording.tables() | {f"profile.{t}": frame for t, frame in tables.items()})


def _relative(frame: pl.DataFrame, start_ns: int, window_ns: int) -> pl.DataFrame:
    """Convert instants of the trace's clock to those of a recording; unknown and earlier ones become 0."""
    columns = [name for name in _INSTANTS if name in frame.columns]
    return frame.with_columns((pl.col(name) - start_ns).clip(0, window_ns) for name in columns)


def _shifted(frame: pl.DataFrame, start_ns: int) -> pl.DataFrame:
    if not start_ns:
        return frame
    plain = [pl.col(name) + start_ns for name in _INSTANTS[:-1] if name in frame.columns]
    arrived = pl.col("prev_arrived_ns")
    known = [pl.when(arrived == 0).then(0).otherwise(arrived + start_ns).alias("prev_arrived_ns")]
    return frame.with_columns(plain + (known if "prev_arrived_ns" in frame.columns else []))


def _cpus(count: int, entry: CollectorManifest, tables: Mapping[str, pl.DataFrame]) -> tuple[int, ...]:
    bits = entry.options.get("cpus", 0)
    chosen = {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}
    seen = {cpu for cpu in tables["switches"]["cpu"].unique().to_list() if cpu >= 0}
    return tuple(sorted((chosen or set(range(count))) | seen))


def _started(trace: SchedTrace) -> str:
    clocks = trace.table("clocks")
    if trace.clock not in clocks.columns or clocks.is_empty():
        return UNKNOWN_START
    first = clocks.row(0, named=True)
    real_ns = first["real"] + trace.start_ns - first[trace.clock]
    try:
        wall = datetime.fromtimestamp(real_ns / 1e9, timezone.utc)
    except (ValueError, OverflowError, OSError):  # a damaged line
        return UNKNOWN_START
    return wall.isoformat(timespec="milliseconds").replace("+00:00", "Z")
