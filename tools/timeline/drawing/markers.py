"""What programs wrote into the trace (``trace_marker``, atrace): sections by thread, asynchronous ones, counters."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from whystall.tools.timeline.drawing.lanes import COUNTERS, LANES, MARKER_GROUP, MARKER_LANES, SLICES, shape
from whystall.tools.timeline.drawing.names import Names
from whystall.tools.timeline.drawing.profile import levels

_SLICE = pl.Schema({"key": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String, "args": pl.String})
_OPEN = '{"open":"end"}'


class Picture(NamedTuple):
    """Parts of a `drawing.build.Drawing`."""

    lanes: pl.DataFrame
    slices: pl.DataFrame
    instants: pl.DataFrame
    counters: pl.DataFrame


def draw(markers: pl.DataFrame, names: Names, end_ns: int) -> Picture:
    """Draw the table ``markers``: a lane per thread, and one per process and name of asynchronous sections.

    An end belongs to the thread's innermost open section, as for every reader of atrace's format. A section without an
    end lasts to `end_ns`; an end without a begin has no name and is left out.
    """
    rows = names.last(markers, "tid", "label")
    slices = _sections(rows, end_ns)
    parts = [_leveled(lane) for lane in slices.partition_by("key", maintain_order=True)]
    placed = pl.concat(parts or [slices.with_columns(level=pl.lit(0, pl.Int32))])
    instants = rows.filter(pl.col("kind") == "instant").select(
        start_ns="at_ns", end_ns="at_ns", key="label", name="name", args=pl.lit("{}"), level=pl.lit(0, pl.Int32)
    )
    lanes = pl.concat([one.select("key", "level") for one in (placed, instants)]).unique().sort("key", "level")
    again = pl.format("{} #{}", "key", pl.col("level") + 1)
    lanes = lanes.with_row_index("lane").with_columns(
        lane=pl.col("lane").cast(pl.Int64) + MARKER_LANES,
        label=pl.when(pl.col("level") > 0).then(again).otherwise("key"),
    )
    counters = rows.filter(pl.col("kind") == "counter").select(
        "at_ns", "value", group=pl.lit(MARKER_GROUP), name=pl.format("{} ({})", "name", "pid")
    )
    drawn = [
        shape(one.join(lanes, on=["key", "level"], maintain_order="left").with_columns(cat=pl.lit("marker")), SLICES)
        for one in (placed, instants)
    ]
    lanes = shape(lanes.select("lane", "label", group=pl.lit(MARKER_GROUP), key="label"), LANES)
    return Picture(lanes, drawn[0], drawn[1], shape(counters, COUNTERS))


def _sections(rows: pl.DataFrame, end_ns: int) -> pl.DataFrame:
    open_of: dict[str, list[tuple[int, str]]] = {}
    pending: dict[tuple[str, int], int] = {}
    found: list[tuple[str, int, int, str, str]] = []
    for at, label, kind, pid, name, value in rows.select("at_ns", "label", "kind", "pid", "name", "value").iter_rows():
        asynchronous = f"{name} ({pid})"
        if kind == "begin":
            open_of.setdefault(label, []).append((at, name))
        elif kind == "end" and open_of.get(label):
            start, begun = open_of[label].pop()
            found.append((label, start, at, begun, "{}"))
        elif kind == "async_begin":
            pending.setdefault((asynchronous, value), at)
        elif kind == "async_end" and (asynchronous, value) in pending:
            found.append((asynchronous, pending.pop((asynchronous, value)), at, name, "{}"))
    found += [(label, start, end_ns, name, _OPEN) for label, left in open_of.items() for start, name in left]
    found += [(key, start, end_ns, key.rpartition(" ")[0], _OPEN) for (key, _), start in pending.items()]
    return pl.DataFrame(found, schema=_SLICE, orient="row")


def _leveled(lane: pl.DataFrame) -> pl.DataFrame:
    return levels(lane.sort("start_ns", "end_ns", descending=[False, True])).cast({"level": pl.Int32})
