"""What counts as work of a rank, and where its steps begin and end.

With device work in the profile, work is what ran on the device except collectives. Without, it is the host's outermost
operators of all threads, less communication and data loading within them.
"""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.intervals import Cover
from whystall.tools.timeline.profile import STEPS, Profile

OTHERS = "(others)"
NAMES_KEPT = 200
"""Names of work kept per rank, those with the most time."""

_ON_DEVICE = ("kernel", "memcpy", "memset")
_THREAD = ("pid", "tid")
# Operators that request communication or wait for it: their time is counted from the collectives themselves.
TALKS = r"^(?:_?c10d|record_param_comms|(?:nccl|rccl|gloo|hccl|mpi|ucc|xccl):)"
_LOADS = r"DataLoader"
_WORK = pl.Schema({"start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String, "name": pl.String, "step": pl.Int32})


def on_device(profile: Profile) -> pl.DataFrame:
    """Return the work of the device, sorted by start; columns as of activities."""
    return profile.activities.filter(pl.col("kind").is_in(_ON_DEVICE) & (pl.col("device") >= 0))


def of_host(activities: pl.DataFrame) -> tuple[pl.DataFrame, Cover]:
    """Return the outermost operators of each thread that are work (start_ns, end_ns, kind, name, step, and busy_ns:
    without the non-work in them), and the time during which any of them worked."""
    ranges = activities.filter((pl.col("kind") == "operator") | loading())
    idle = (pl.col("name").str.contains(TALKS) & (pl.col("kind") == "operator")) | loading()
    ranges = ranges.select(*_WORK, *_THREAD, idle=idle).filter(pl.col("end_ns") >= pl.col("start_ns"))
    ranges = ranges.sort(*_THREAD, "start_ns", "end_ns", descending=[False, False, False, True], maintain_order=True)
    reached = pl.col("end_ns").cum_max().shift(1).over(_THREAD)
    outer = ranges.filter((pl.col("end_ns") > reached).fill_null(True) & ~pl.col("idle")).with_row_index("row")
    pieces = _working(outer, ranges.filter("idle"))
    busy = pieces.group_by("row").agg(busy_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    outer = outer.join(busy, on="row", how="left", maintain_order="left").with_columns(pl.col("busy_ns").fill_null(0))
    return outer.select(*_WORK, "busy_ns").sort("start_ns", maintain_order=True), Cover.of(pieces)


def _working(outer: pl.DataFrame, idle: pl.DataFrame) -> pl.DataFrame:
    """Return `outer` cut where `idle` ranges of the same thread lie in them: row, start_ns, end_ns."""
    plain = outer.select("row", "start_ns", "end_ns")
    if outer.is_empty() or idle.is_empty():
        return plain
    edges = [
        frame.select(*_THREAD, at=at, open=pl.lit(sign * is_work), shut=pl.lit(sign * (1 - is_work)))
        for frame, is_work in ((outer, 1), (idle, 0))
        for at, sign in (("start_ns", 1), ("end_ns", -1))
    ]
    # every thread's edges add up to zero, so that the sums need not restart with each
    swept = pl.concat(edges).sort(*_THREAD, "at").with_columns(pl.col("open", "shut").cum_sum())
    pieces = swept.with_columns(end_ns=pl.col("at").shift(-1)).filter(
        (pl.col("open") > 0) & (pl.col("shut") == 0) & (pl.col("end_ns") > pl.col("at"))
    )
    # sorted within each thread, as the search for the operator around a piece requires
    return pieces.join_asof(
        outer.select(*_THREAD, "row", at="start_ns"), on="at", by=_THREAD, check_sortedness=False
    ).select("row", start_ns="at", end_ns="end_ns")


def loading() -> pl.Expr:
    """Return whether an activity is a range in which data are fetched."""
    return pl.col("kind").is_in(["annotation", "operator"]) & pl.col("name").str.contains(_LOADS, literal=True)


def steps_of(profile: Profile) -> pl.DataFrame:
    """Return the profiler's steps on the host (start_ns, end_ns, step), each number once: the longest range."""
    longest = (pl.col("end_ns") - pl.col("start_ns")).arg_max()
    once = profile.steps.group_by("step").agg(pl.col("start_ns", "end_ns").get(longest))
    return once.filter(pl.col("step") >= 0).sort("start_ns").select(name for name in STEPS if name in once.columns)


def device_steps(
    steps: pl.DataFrame, work: pl.DataFrame, collectives: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return where `steps` of the host lie on the device, which runs behind: its step N lasts from the end of its step
    N-1 to the end of the last work launched in step N.

    So waiting of the device before a step's first work belongs to that step - its data were loaded, its kernels
    dispatched then - and steps add up without gaps. The end is that of the stream that works most: a prefetching copy
    or communication that overlaps the next step does not move it; a collective behind the last work does, up to the
    next step's first work. The first step (and one after a pause of the profiler) begins with the host's, later by as
    long as its first work was queued. A step without device work keeps the host's end.
    """
    lane = _busiest(work)
    main = (
        lane.filter(pl.col("step") >= 0)
        .group_by("step")
        .agg(
            first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max(), correlation=pl.col("correlation").first()
        )
    )
    talk = collectives.filter(pl.col("step") >= 0).group_by("step").agg(talk_ns=pl.col("end_ns").max())
    launches = calls.select("correlation", called_ns="start_ns").filter(pl.col("correlation") >= 0)
    launches = launches.unique("correlation", keep="first", maintain_order=True)
    found = steps.join(main, on="step", how="left", maintain_order="left")
    found = found.join(talk, on="step", how="left", maintain_order="left")
    found = found.join(launches, on="correlation", how="left", maintain_order="left")
    next_ns = pl.col("first_ns").shift(-1)
    behind = pl.when(pl.col("talk_ns").is_not_null()).then(pl.min_horizontal("talk_ns", next_ns))
    ends = pl.coalesce(pl.max_horizontal("last_ns", behind), "end_ns").cum_max()
    alone = (pl.col("step") != pl.col("step").shift(1) + 1).fill_null(True)
    queued = (pl.col("first_ns") - pl.col("called_ns")).clip(0)
    own = pl.coalesce(pl.col("start_ns") + queued, "first_ns", "start_ns")
    before = ends.shift(1)
    begins = pl.when(alone).then(pl.max_horizontal(own, before)).otherwise(before)
    return found.with_columns(start_ns=begins, end_ns=ends).select("step", "start_ns", "end_ns")


def _busiest(work: pl.DataFrame) -> pl.DataFrame:
    lanes = work.group_by("device", "stream").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    best = lanes.sort("ns", "device", "stream", descending=[True, False, False]).head(1)
    return work.join(best, on=["device", "stream"], how="semi", maintain_order="left")


def launch_delays(work: pl.DataFrame, busy: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return by step the median time from launch to start over `work` that found the device idle when it was launched.

    `busy`: everything that ran on the device. Steps without such work are absent.
    """
    launches = calls.filter(pl.col("correlation") >= 0).select("correlation", called_ns="start_ns")
    launches = launches.unique("correlation", keep="first", maintain_order=True)
    ran = busy.select("device", "start_ns", "end_ns").sort("start_ns", maintain_order=True)
    free = ran.select("device", "start_ns", free_ns=pl.col("end_ns").cum_max().shift(1).over("device"))
    # two that start together have one predecessor: the earlier row's
    free = free.unique(["device", "start_ns"], keep="first", maintain_order=True)
    found = work.join(launches, on="correlation", how="inner", maintain_order="left")
    found = found.join(free, on=["device", "start_ns"], how="left", maintain_order="left")
    idle = found.filter((pl.col("free_ns") <= pl.col("called_ns")).fill_null(True))
    delay = (pl.col("start_ns") - pl.col("called_ns")).median().round().clip(0)  # host and device clocks disagree a bit
    return idle.group_by("step").agg(launch_delay_ns=delay.cast(pl.Int64))


def by_name(work: pl.DataFrame, length: str) -> pl.DataFrame:
    """Return `work` by kind and name (kind, name, count, total_ns, median_ns, max_ns), those with the most time; the
    rest in one row per kind. `length`: the column of durations."""
    ns = pl.col(length)
    names = work.group_by("kind", "name").agg(
        count=pl.len().cast(pl.Int64),
        total_ns=ns.sum().cast(pl.Int64),
        median_ns=ns.median().round().cast(pl.Int64),
        max_ns=ns.max().cast(pl.Int64),
    )
    return kept_names(names)


def kept_names(names: pl.DataFrame) -> pl.DataFrame:
    """Return the names with the most time, and the rest as `OTHERS`, one row per kind."""
    names = names.sort("total_ns", "kind", "name", descending=[True, False, False])
    kept = names.head(NAMES_KEPT).filter(pl.col("name") != OTHERS)
    rest = names.join(kept, on=["kind", "name"], how="anti").with_columns(name=pl.lit(OTHERS))
    return pl.concat([kept, merged(rest)])


def merged(names: pl.DataFrame) -> pl.DataFrame:
    """Merge rows of equal kind and name: the median is that of the row with the most instances."""
    frequent = pl.col("median_ns").get(pl.col("count").arg_max())
    return (
        names.group_by("kind", "name", maintain_order=True)
        .agg(pl.col("count", "total_ns").sum(), frequent, pl.col("max_ns").max())
        .select("kind", "name", "count", "total_ns", "median_ns", "max_ns")
    )
