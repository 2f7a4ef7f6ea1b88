"""Make profiles, one per rank, of the rows of tables."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from whystall.tools.timeline.collectives import COLLECTIVES, GROUPS, SAME_WORK
from whystall.tools.timeline.profile import ACTIVITIES, STEPS, SUMS, SUMS_ONLY, Profile, Run

_EPOCH_NS = 10**18
_BASE_NS = 1_000_000_000
"""Where instants begin that are not of the epoch: 0 means unknown."""
_OWN = {"compute": "operator", "data": "annotation"}


def profiles_of(
    rows: pl.DataFrame,
    source: str,
    notes: Iterable[tuple[str, str]] = (),
    *,
    clock_of_step: bool = False,
    whole_groups: bool = False,
) -> list[Profile]:
    """Return the profiles of the ranks in `rows` (`rows.ROWS`), ascending. `clock_of_step`: each step counts from its
    own start, on all ranks. `whole_groups`: all ranks of a group are in `rows`."""
    rows, begins = _on_one_clock(rows, clock_of_step)
    timed = rows.filter(pl.col("start_ns").is_not_null())
    instants = timed["start_ns"].to_list()[:1]
    clock = "real" if instants and instants[0] >= _EPOCH_NS else ""
    if (
        timed.is_empty()
        and rows.filter(pl.col("requested_ns").is_not_null()).is_empty()
        and (rows["phase"] != "metric").any()
    ):
        source += SUMS_ONLY
    talks = rows.filter(pl.col("group") != "")
    members = dict(talks.group_by("group").agg(pl.col("rank").unique().sort()).rows()) if whole_groups else {}
    of_rank = rows.partition_by("rank", as_dict=True, maintain_order=True)
    return [_profile(rank, of_rank[rank,], source, tuple(notes), clock, begins, members) for (rank,) in sorted(of_rank)]


def _profile(
    rank: int,
    rows: pl.DataFrame,
    source: str,
    notes: tuple[tuple[str, str], ...],
    clock: str,
    begins: dict[int, int],
    members: dict[str, list[int]],
) -> Profile:
    timed = rows.filter(pl.col("start_ns").is_not_null()).with_columns(end_ns=pl.col("start_ns") + pl.col("length_ns"))
    talks = rows.filter(
        pl.col("phase").is_in(["communication", "wait"])
        & (pl.col("start_ns").is_not_null() | pl.col("requested_ns").is_not_null())
    )
    collectives = _collectives(talks)
    sums = sums_of(rows.filter(pl.col("start_ns").is_null() & pl.col("requested_ns").is_null()), collectives)
    hosts = rows.filter(pl.col("host") != "")["host"].unique()
    tables = {"activities": _activities(timed), "steps": _steps(timed, begins)}
    return Profile(
        tables=tables,
        clock=clock,
        source=source,
        rank=rank,
        notes=notes,
        collectives=collectives,
        groups=_groups(rows, rank, members),
        run=Run(host=hosts[0] if len(hosts) == 1 else ""),
        sums=sums,
    )


def _on_one_clock(rows: pl.DataFrame, clock_of_step: bool) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return `rows` with instants above 0, steps one after the other; and where each step begins, if it is known."""
    end = pl.col("start_ns") + pl.col("length_ns")
    spans = rows.drop_nulls("start_ns").group_by("step").agg(low=pl.col("start_ns").min(), high=end.max()).sort("step")
    begins: dict[int, int] = {}
    # steps of one clock may overlap a bit, steps that begin at 0 do entirely
    if (
        clock_of_step
        and spans.height > 1
        and bool((spans["low"].diff() < spans["high"].shift(1) - spans["low"].shift(1)).any())
    ):
        shifts, at = {}, _BASE_NS
        for step, low, high in spans.rows():
            begins[step] = at
            shifts[step] = at - low
            at += high - low
        shift = pl.col("step").replace_strict(shifts, default=0, return_dtype=pl.Int64)
    else:
        lows = [number for number in (spans["low"].min(), rows["requested_ns"].min()) if isinstance(number, int)]
        shift = pl.lit(0 if not lows or min(lows) > 0 else _BASE_NS - min(lows), pl.Int64)
    return rows.with_columns(pl.col("start_ns", "requested_ns") + shift), begins


def _activities(timed: pl.DataFrame) -> pl.DataFrame:
    """Return the work and the waiting for data, as a host's operators and its loader's ranges."""
    own = timed.filter(pl.col("phase").is_in(list(_OWN)))
    data = pl.col("phase") == "data"
    return (
        own.sort("start_ns", maintain_order=True)
        .select(
            "start_ns",
            "end_ns",
            pl.col("phase").replace_strict(_OWN, return_dtype=pl.String).alias("kind"),
            pl.when(data).then(pl.format("DataLoader: {}", "name")).otherwise("name").alias("name"),
            pl.lit(1, pl.Int32).alias("pid"),
            # a loader may work beside the rest: within a thread, the inner of two ranges counts
            pl.when(data).then(2).otherwise(1).cast(pl.Int32).alias("tid"),
            pl.lit(-1, pl.Int32).alias("device"),
            pl.lit(-1, pl.Int64).alias("stream"),
            pl.lit(-1, pl.Int64).alias("correlation"),
            "step",
        )
        .select(ACTIVITIES.names())
    )


def _steps(timed: pl.DataFrame, begins: dict[int, int]) -> pl.DataFrame:
    """Return the steps: their own rows, else from the end of the step before to the last end of their rows. So the time
    before a step's first row belongs to that step, and steps leave nothing out."""
    timed = timed.filter(pl.col("step") >= 0)
    spans = timed.filter(pl.col("phase") == "step")
    if spans.is_empty() and timed.height:
        spans = timed.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
        ends = pl.col("end_ns").cum_max()
        known = pl.col("step").replace_strict(begins, default=None, return_dtype=pl.Int64)
        follows = pl.col("step") == pl.col("step").shift(1) + 1
        before = pl.when(follows).then(ends.shift(1))
        spans = spans.with_columns(start_ns=pl.coalesce(known, before, "start_ns"), end_ns=ends)
        spans = spans.filter(pl.col("end_ns") > pl.col("start_ns"))
    place = [pl.lit(-1, pl.Int32).alias(name) for name in ("pid", "tid")]
    return spans.select("start_ns", "end_ns", "step", *place).select(STEPS.names()).sort("start_ns")


def _collectives(talks: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("start_ns").is_not_null()
    return talks.select(
        start_ns=pl.col("start_ns").fill_null(0),
        end_ns=pl.when(known).then(pl.col("start_ns") + pl.col("length_ns")).otherwise(0),
        op=pl.when(pl.col("phase") == "wait").then(pl.lit("other")).otherwise("op"),
        group="group",
        seq="seq",
        bytes=pl.col("bytes"),
        dtype=pl.lit(""),
        peer="peer",
        launch_ns=pl.col("requested_ns").fill_null(0),
        step="step",
        device=pl.lit(-1),
        lane=pl.lit(-1),
        state=pl.when(known).then(pl.lit("completed")).otherwise(pl.lit("scheduled")),
        vendor_wait_ns=pl.lit(-1),
    ).cast(COLLECTIVES).sort("start_ns", "launch_ns", maintain_order=True)  # fmt: skip


def sums_of(rows: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the sums (`profile.SUMS`) of rows without instants, steps one after the other; with `collectives` each
    step ends with its last one, so that all lie in their step."""
    rows = rows.filter((pl.col("step") >= 0) & (pl.col("phase") != "metric"))
    if rows.is_empty():
        return SUMS.to_frame()
    rows = rows.rename({"step": "number"})
    wide = rows.group_by("number", "phase").agg(pl.col("length_ns").sum())
    wide = wide.pivot("phase", index="number", values="length_ns").sort("number")
    phases = ("step", "compute", "data", "communication", "overlapped", "all_communication", "wait", "idle", "busy")
    wide = wide.with_columns(pl.lit(None, pl.Int64).alias(name) for name in phases if name not in wide.columns)
    compute, data = pl.col("compute"), pl.col("data").fill_null(0)
    exposed = pl.coalesce("communication", "all_communication", pl.lit(0)) + pl.col("wait").fill_null(0)
    busy = pl.max_horizontal("busy", compute.fill_null(0) + exposed)
    total = pl.coalesce("step", busy + pl.col("idle").fill_null(0) + data)
    wide = wide.with_columns(total=total, exposed=pl.min_horizontal(exposed, total))
    ends = collectives.filter(pl.col("end_ns") > 0).group_by(number="step").agg(last_ns=pl.col("end_ns").max())
    wide = wide.join(ends, on="number", how="left", maintain_order="left")
    end = pl.coalesce("last_ns", _BASE_NS + pl.col("total").cum_sum())
    rest = (pl.col("total") - compute - pl.col("exposed")).clip(0)
    return wide.select(
        start_ns=end - pl.col("total"),
        end_ns=end,
        step="number",
        compute_ns=compute.fill_null(-1),
        comm_ns=pl.coalesce("all_communication", pl.col("exposed") + pl.col("overlapped").fill_null(0)),
        exposed_comm_ns="exposed",
        gap_ns=pl.when(compute.is_not_null()).then(rest).otherwise(-1),
        loader_ns=pl.col("data").fill_null(-1),
    ).cast(SUMS).select(SUMS.names())  # fmt: skip


def _groups(rows: pl.DataFrame, rank: int, members: dict[str, list[int]]) -> pl.DataFrame:
    """Return the groups in which the rank communicates, and the stage that it works for."""
    names = rows.filter(pl.col("group") != "")["group"].unique().sort().to_list()
    found = [(name, name, "", members.get(name, []), len(members.get(name, [])) or -1) for name in names]
    stages = rows.filter(pl.col("stage") != "")["stage"].unique().to_list()
    receives = int(rows.filter(pl.col("phase") == "receive")["length_ns"].sum())
    if len(stages) == 1:
        found.append((f"{SAME_WORK} {stages[0]}", stages[0], SAME_WORK, [], -1))
    elif receives:  # it is of a pipeline, and nothing says of which stage
        found.append((f"{SAME_WORK} of rank {rank}", f"rank {rank}", SAME_WORK, [], -1))
    return pl.DataFrame(found, schema=GROUPS, orient="row")
