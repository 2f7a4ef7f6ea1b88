"""The lanes of an accelerator profile, next to those of the scheduler."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from whystall.tools.timeline.drawing.lanes import FLOWS, LANES, PROFILE_LANES, SLICES, shape
from whystall.tools.timeline.drawing.names import Names, json_object
from whystall.tools.timeline.profile import Profile


class Picture(NamedTuple):
    """Parts of a `drawing.build.Drawing`. `threads`: lane, pid, tid of the lanes of threads."""

    lanes: pl.DataFrame
    threads: pl.DataFrame
    slices: pl.DataFrame
    flows: pl.DataFrame


def draw(profile: Profile, names: Names) -> Picture:
    """Draw steps and host calls by thread, device work by stream, and arrows from launches to their device work.

    `profile` is on the trace's clock. Slices that overlap without nesting get a lane of their own.
    """
    placed = _placed(_everything(profile), names)
    lanes = placed.select("order", "group", "base", "level").unique().sort("order", "group", "base", "level")
    lanes = lanes.with_row_index("lane").with_columns(lane=pl.col("lane").cast(pl.Int64) + PROFILE_LANES)
    again = pl.col("level") > 0
    lanes = lanes.with_columns(
        key=pl.when(again).then(pl.format("{} #{}", "base", pl.col("level") + 1)).otherwise("base")
    )
    placed = placed.join(lanes, on=["order", "group", "base", "level"], maintain_order="left")
    args = json_object(
        step=pl.when(pl.col("step") >= 0).then(pl.col("step").cast(pl.String)),
        correlation=pl.when(pl.col("correlation") >= 0).then(pl.col("correlation").cast(pl.String)),
    )
    slices = shape(placed.with_columns(cat="kind", args=args), SLICES)
    own = (pl.col("device") < 0) & (pl.col("kind") != "step") & (pl.col("level") == 0) & (pl.col("tid") >= 0)
    threads = placed.filter(own).select("lane", "pid", "tid").unique("lane", maintain_order=True)
    return Picture(shape(lanes.with_columns(label="key"), LANES), threads, slices, _launches(placed))


def _everything(profile: Profile) -> pl.DataFrame:
    """Return activities and steps of non-zero length."""
    nothing = pl.lit(-1)
    steps = profile.steps.with_columns(
        kind=pl.lit("step"), name=pl.format("step {}", "step"), device=nothing, stream=nothing, correlation=nothing
    )
    both = pl.concat([shape(profile.activities, profile.activities.schema), shape(steps, profile.activities.schema)])
    return both.filter(pl.col("end_ns") > pl.col("start_ns"))


def _placed(rows: pl.DataFrame, names: Names) -> pl.DataFrame:
    """Return `rows` with their lane: `order`, `group`, `base`, and `level` among those that would overlap."""
    rows = names.last(rows, "tid", "label")
    on_device = pl.col("device") >= 0
    thread = (
        pl.when(pl.col("kind") == "step")
        .then(pl.format("steps of {}", "pid"))
        .otherwise(pl.coalesce("label", pl.format("process {}", "pid")))
    )
    rows = rows.with_columns(
        order=pl.when(on_device).then(1).otherwise(0),
        group=pl.when(on_device).then(pl.format("Profile: device {}", "device")).otherwise(pl.lit("Profile: host")),
        base=pl.when(on_device).then(pl.format("stream {}", "stream")).otherwise(thread),
    )
    rows = rows.sort("group", "base", "start_ns", "end_ns", descending=[False, False, False, True])
    return pl.concat(
        [levels(lane) for lane in rows.partition_by("group", "base", maintain_order=True)]
        or [rows.with_columns(level=0)]
    )


def levels(lane: pl.DataFrame) -> pl.DataFrame:
    """Return `lane` (by start, longest first) with `level`: the first sub-lane where each slice nests."""
    if bool((lane["start_ns"] >= lane["end_ns"].cum_max().shift(1).fill_null(0)).all()):
        return lane.with_columns(level=0)
    open_ends: list[list[int]] = []
    levels = []
    for start, end in lane.select("start_ns", "end_ns").iter_rows():
        for level, ends in enumerate(open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                levels.append(level)
                break
        else:
            levels.append(len(open_ends))
            open_ends.append([end])
    return lane.with_columns(level=pl.Series(levels, dtype=pl.Int32))


def _launches(placed: pl.DataFrame) -> pl.DataFrame:
    """Return arrows from a launch to each piece of device work of the same correlation and process."""
    linked = placed.filter(pl.col("correlation") >= 0)
    from_host = linked.filter((pl.col("kind") == "launch") & (pl.col("device") < 0))
    from_host = from_host.unique(["pid", "correlation"], keep="first", maintain_order=True)
    to_device = linked.filter(pl.col("device") >= 0)
    rows = from_host.select("pid", "correlation", from_lane="lane", from_ns="start_ns").join(
        to_device.select("pid", "correlation", to_lane="lane", to_ns="start_ns"), on=["pid", "correlation"]
    )
    return shape(rows.with_columns(cat=pl.lit("launch")), FLOWS)
