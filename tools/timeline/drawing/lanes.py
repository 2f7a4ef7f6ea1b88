"""Schemas of lanes, slices and flows of a drawing."""

from __future__ import annotations

import polars as pl

CPU_GROUP = "CPU Scheduling"
THREAD_GROUP = "Process Scheduling"
HOLE_GROUP = "Holes"
# Lane number of a CPU or thread: its id plus one of these.
CPU_LANES = 0
THREAD_LANES = 1 << 32
HOLE_LANES = 2 << 32
PROFILE_LANES = 3 << 32
MARKER_GROUP = "Markers"
MARKER_LANES = 4 << 32

LANES = pl.Schema({"lane": pl.Int64, "group": pl.String, "key": pl.String, "label": pl.String})
"""`key`: unique within the group, ``comm:tid`` as MindStudio expects. `label`: the text to show."""
SLICES = pl.Schema(
    {
        "lane": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "name": pl.String,
        "cat": pl.String,
        # a JSON object
        "args": pl.String,
    }
)
FLOWS = pl.Schema(
    {"cat": pl.String, "from_lane": pl.Int64, "from_ns": pl.Int64, "to_lane": pl.Int64, "to_ns": pl.Int64}
)
"""Arrows between slices; the target is a slice's start, so that every viewer binds it to that slice."""

COUNTERS = pl.Schema({"group": pl.String, "name": pl.String, "at_ns": pl.Int64, "value": pl.Int64})
"""Values that hold from an instant on."""


def cpu_key(cpu: pl.Expr) -> pl.Expr:
    """Return the label ``CPU 003``."""
    return pl.format("CPU {}", cpu.cast(pl.String).str.zfill(3))


def shape(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return the columns of `schema`, in its order and types."""
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
