"""Convert a stack profile to a recording and back: the collectors ``samples``, ``samples_before`` and
``accelerator``."""

from __future__ import annotations

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.stacks.consistent import fault
from whystall.tools.stacks.model import NO_TIME, TABLES, StackProfile

NOW, BEFORE = "samples", "samples_before"
CALLS = "accelerator"
NUMBER, TIME = "accelerator-calls", "accelerator-time"
"""Calls of accelerators' libraries in a recording of the watch, and the events of that profile: how many there were,
and how long they took, ns."""
_UNKNOWN_START = "1970-01-01T00:00:00.000Z"
_CLOCKS = {"mono": "CLOCK_MONOTONIC", "mono_raw": "CLOCK_MONOTONIC_RAW", "boot": "CLOCK_BOOTTIME"}
_NAMES = {clock: name for name, clock in _CLOCKS.items()}


def stacks_of(recording: Recording, collector: str = NOW) -> StackProfile:
    """Return the stack profile in `recording`; instants since its start.

    Raises `ToolError`: missing_collector when it has none, bad_recording when its tables do not fit together.
    """
    tables = {table: recording.table(f"{collector}.{table}") for table in TABLES}
    if wrong := fault(tables):
        raise ToolError(ErrorCode.BAD_RECORDING, f"the {collector} of this recording: {wrong}", "record again")
    entry, clock = recording.manifest.collectors[collector], recording.manifest.clock
    notes = tuple((spot.code, spot.detail) for spot in entry.not_seen)
    return StackProfile(tables, entry.engine, _NAMES.get(clock, clock), notes)


def recording_of(profile: StackProfile, *, name: str = "profile", before: StackProfile | None = None) -> Recording:
    """Return `profile` as a recording, in memory; `name` becomes its id; `before`: the profile to compare it with.

    Instants then count from the first sample of each. Raises `ToolError` (bad_trace) when a profile has no samples.
    """
    parts = {NOW: profile} | ({BEFORE: before} if before is not None else {})
    tables: dict[str, pl.DataFrame] = {}
    entries, spans = {}, {}
    for collector, one in parts.items():
        if one.samples.is_empty():
            which = " of the earlier run" if collector == BEFORE else ""
            raise ToolError(
                ErrorCode.BAD_TRACE,
                f"the profile{which} is empty: it has no samples",
                "profile for longer, or while the program runs",
            )
        start, spans[collector] = _span(one)
        tables |= {f"{collector}.{table}": frame for table, frame in one.tables.items()}
        tables[f"{collector}.samples"] = one.samples.with_columns(
            pl.when(pl.col("at_ns") == NO_TIME).then(NO_TIME).otherwise(pl.col("at_ns") - start).alias("at_ns")
        )
        entries[collector] = CollectorManifest(
            engine=one.source,
            seen=one.samples.height,
            kept=one.samples.height,
            proven=True,
            not_seen=[BlindSpot(code=code, detail=detail) for code, detail in one.notes],
        )
    start, _ = _span(profile)
    manifest = Manifest(
        id=name,
        host="",
        kernel="",
        machine="",
        cpus=1,
        target=Target(everything=True),
        started=_UNKNOWN_START,
        clock=_CLOCKS.get(profile.clock, profile.clock),
        start_ns=max(start, 0),
        window_ns=spans[NOW],
        requested_ns=spans[NOW],
        collectors=entries,
    )
    return Recording.in_memory(manifest, tables)


def _span(profile: StackProfile) -> tuple[int, int]:
    """Return the first instant, and the time to the last; zeros without instants."""
    timed = profile.samples.filter(pl.col("at_ns") != NO_TIME)
    if timed.is_empty():
        return 0, 0
    first, last = timed.select(first=pl.col("at_ns").min(), last=(pl.col("at_ns") + pl.col("span_ns")).max()).row(0)
    return first, last - first
