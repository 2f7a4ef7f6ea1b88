"""Lost events as lanes."""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.drawing.lanes import HOLE_GROUP, HOLE_LANES, LANES, SLICES, cpu_key, shape
from whystall.tools.timeline.drawing.names import json_object, json_text


def lanes(holes: pl.DataFrame) -> pl.DataFrame:
    """Return `LANES` of the table ``holes``: one per CPU, and one for holes of all CPUs."""
    key = pl.when(pl.col("cpu") < 0).then(pl.lit("all CPUs")).otherwise(cpu_key(pl.col("cpu")))
    cpus = holes.select("cpu").unique().sort("cpu")
    lane = pl.col("cpu").cast(pl.Int64) + 1 + HOLE_LANES
    return shape(cpus.select(lane=lane, group=pl.lit(HOLE_GROUP), key=key, label=key), LANES)


def slices(holes: pl.DataFrame) -> pl.DataFrame:
    """Return `SLICES` of the table ``holes``; where those of one lane overlap, the later one is cut."""
    counted = pl.col("lost") >= 0
    rows = holes.filter(pl.col("end_ns") > pl.col("start_ns")).select(
        "start_ns", "end_ns", lane=pl.col("cpu").cast(pl.Int64) + 1 + HOLE_LANES, cat=pl.lit("hole"),
        name=pl.when(counted).then(pl.format("{} ({} events)", "why", "lost")).otherwise("why"),
        args=json_object(lost=pl.when(counted).then(pl.col("lost").cast(pl.String)), why=json_text(pl.col("why"))),
    )  # fmt: skip
    rows = shape(rows, SLICES).sort("lane", "start_ns", pl.col("end_ns"), descending=[False, False, True])
    reached = pl.col("end_ns").cum_max().shift(1).over("lane")
    rows = rows.with_columns(start_ns=pl.max_horizontal("start_ns", reached))
    return rows.filter(pl.col("end_ns") > pl.col("start_ns"))
