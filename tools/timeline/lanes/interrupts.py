"""Interrupts and softirqs as slices, and their nesting.

Entry and exit pair up in order: a handler does not interrupt itself on one CPU, since its line is masked while it runs,
and softirqs do not interrupt each other. A pair is rejected if a reported hole, or for an interrupt a context switch,
falls into it: something between them was lost. Of an unpaired half only the certain part is kept: to the edge of the
span if nothing on the CPU contradicts it, to the edge of the hole that may contain the other half, else no length.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from whystall.tools.timeline.lanes import cpu as lanes_cpu
from whystall.tools.timeline.sched import SchedTrace


def slices(trace: SchedTrace) -> pl.DataFrame:
    """Return the columns of `lanes.INTERRUPT_SLICES`, sorted by CPU and start."""
    events = trace.table("interrupts").with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    switches = trace.table("switches").select("cpu", at="at_ns")
    holes = lanes_cpu.reported_holes(trace)
    whole, entries, exits = _pair(events, switches, holes)
    others = events.select("cpu", "soft", at="at_ns")
    start, end = pl.lit(trace.start_ns, pl.Int64), pl.lit(trace.end_ns, pl.Int64)
    open_end = _limit(entries, switches, others, holes, forward=True).with_columns(
        start_ns="at_ns",
        end_ns=pl.when("is_free").then(end).otherwise(pl.coalesce("hole", "at_ns")),
        start_row="row",
        end_row="row",
        open_start=pl.lit(False),
        open_end=pl.lit(True),
    )
    open_start = _limit(exits, switches, others, holes, forward=False).with_columns(
        start_ns=pl.when("is_free").then(start).otherwise(pl.coalesce("hole", "at_ns")),
        end_ns="at_ns",
        start_row=-pl.col("row"),  # of those open at one instant the last to end began first
        end_row="row",
        open_start=pl.lit(True),
        open_end=pl.lit(False),
    )
    return _nest(pl.concat([frame.select(whole.columns) for frame in (whole, open_end, open_start)]))


def _pair(
    events: pl.DataFrame, switches: pl.DataFrame, holes: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return slices with both ends, entries without an exit, exits without an entry."""
    soft = pl.col("soft")
    lane = pl.when(soft).then(-1).otherwise("vector")  # softirqs: the very next event, of any vector
    events = events.with_columns(lane=lane).sort("cpu", "soft", "lane", "row")
    same = pl.all_horizontal(pl.col(name).shift(-1) == pl.col(name) for name in ("cpu", "soft", "vector"))
    paired = same & pl.col("entry") & ~pl.col("entry").shift(-1)
    paired &= ~soft | (pl.col("tid").shift(-1) == pl.col("tid"))
    events = events.with_columns(
        exit_ns=pl.when(paired).then(pl.col("at_ns").shift(-1)), exit_row=pl.when(paired).then(pl.col("row").shift(-1))
    )
    pairs = events.filter(pl.col("exit_ns").is_not_null()).sort("exit_ns")
    pairs = pairs.join_asof(
        switches.select("cpu", "at", switch="at"),
        left_on="exit_ns",
        right_on="at",
        by="cpu",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    pairs = pairs.join_asof(
        holes.select("cpu", "start_ns", hole="end_ns").sort("start_ns"),
        left_on="exit_ns",
        right_on="start_ns",
        by="cpu",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    torn = (~soft & (pl.col("switch") > pl.col("at_ns"))).fill_null(False)
    torn |= (pl.col("hole") > pl.col("at_ns")).fill_null(False)
    whole = pairs.filter(~torn).select(
        "cpu",
        "tid",
        "soft",
        "vector",
        "name",
        start_ns="at_ns",
        end_ns="exit_ns",
        start_row="row",
        end_row="exit_row",
        open_start=pl.lit(False),
        open_end=pl.lit(False),
    )
    halves = pairs.filter(torn)
    halves = pl.concat([halves["row"], halves["exit_row"]]).implode()
    taken = pl.col("exit_ns").is_not_null() | pl.col("exit_ns").shift(1).is_not_null()
    alone = events.filter(~taken | pl.col("row").is_in(halves))
    return whole, alone.filter("entry"), alone.filter(~pl.col("entry"))


def _limit(
    halves: pl.DataFrame, switches: pl.DataFrame, others: pl.DataFrame, holes: pl.DataFrame, *, forward: bool
) -> pl.DataFrame:
    """Return `halves` with `is_free`: nothing on the CPU contradicts that it lasted to the edge of the span; and
    `hole`: the near edge of the hole that may contain the other half, or null."""
    strategy: Literal["forward", "backward"] = "forward" if forward else "backward"
    found = []
    for soft in (False, True):
        rivals = others if not soft else others.filter("soft")
        rivals = pl.concat([rivals.select("cpu", "at"), switches]).sort("at").with_columns(rival="at")
        found.append(
            halves.filter(pl.col("soft") == soft)
            .sort("at_ns")
            .join_asof(
                rivals,
                left_on="at_ns",
                right_on="at",
                by="cpu",
                strategy=strategy,
                allow_exact_matches=False,
                check_sortedness=False,
            )
        )
    edge = "start_ns" if forward else "end_ns"
    limited = (
        pl.concat(found)
        .sort("at_ns")
        .join_asof(
            holes.select("cpu", pl.col(edge).alias("near"), hole=edge).sort("near"),
            left_on="at_ns",
            right_on="near",
            by="cpu",
            strategy=strategy,
            check_sortedness=False,
        )
    )
    rival, hole = pl.col("rival"), pl.col("hole")
    first = (hole <= rival if forward else hole >= rival) | rival.is_null()
    return limited.with_columns(
        is_free=rival.is_null() & hole.is_null(), hole=pl.when(hole.is_not_null() & first).then(hole)
    )


def _nest(slices: pl.DataFrame) -> pl.DataFrame:
    """Return `slices` with `depth` and `self_ns`; one that would outlast its parent is cut there."""
    slices = slices.with_row_index("slice")
    opened = slices.select("slice", "cpu", at="start_ns", row="start_row", step=pl.lit(1, pl.Int32))
    closed = slices.select("slice", "cpu", at="end_ns", row="end_row", step=pl.lit(-1, pl.Int32))
    steps = pl.concat([opened, closed]).sort("cpu", "at", "row", -pl.col("step"))
    steps = steps.with_columns(depth=pl.col("step").cum_sum() - 1).filter(pl.col("step") == 1).drop("row", "step")
    steps = steps.join(slices.select("slice", "start_ns", "end_ns"), on="slice", how="left", maintain_order="left")
    steps = steps.with_columns(inner=pl.lit(0, pl.Int64))
    deepest = steps["depth"].max()
    for depth in range(1, (deepest if isinstance(deepest, int) else 0) + 1):
        outer = pl.when(pl.col("depth") == depth - 1)
        steps = steps.with_columns(
            outer=outer.then("slice").forward_fill(), outer_end=outer.then("end_ns").forward_fill()
        ).with_columns(
            end_ns=pl.when(pl.col("depth") == depth)
            .then(pl.max_horizontal("start_ns", pl.min_horizontal("end_ns", "outer_end")))
            .otherwise("end_ns")
        )
        inner = (
            steps.filter(pl.col("depth") == depth)
            .group_by(slice="outer")
            .agg(more=(pl.col("end_ns") - pl.col("start_ns")).sum())
        )
        steps = steps.join(inner, on="slice", how="left", maintain_order="left")
        steps = steps.with_columns(inner=pl.col("inner") + pl.col("more").fill_null(0)).drop("more")
    steps = steps.select("slice", "depth", "end_ns", self_ns=pl.col("end_ns") - pl.col("start_ns") - pl.col("inner"))
    return slices.drop("end_ns").join(steps, on="slice").sort("cpu", "start_ns", "start_row")
