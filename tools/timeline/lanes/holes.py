"""Effects of holes and broken chains on the waits of threads."""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.lanes import cpu as lanes_cpu


def cut(pieces: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Mark the state as unknown from the first reported hole to the last within a slice; the rest is inexact."""
    if holes.is_empty():
        return pieces.drop("recorded")
    every = lanes_cpu.merge(holes.with_columns(all=pl.lit(0)), "all").drop("all")
    pieces = pieces.with_row_index("piece")
    first = (
        pieces.select("piece", "start_ns")
        .sort("start_ns")
        .join_asof(
            every.select(hole_start="start_ns", end="end_ns"),
            left_on="start_ns",
            right_on="end",
            strategy="forward",
            allow_exact_matches=False,
        )
    )
    last = (
        pieces.select("piece", "end_ns")
        .sort("end_ns")
        .join_asof(
            every.select(start="start_ns", hole_end="end_ns"),
            left_on="end_ns",
            right_on="start",
            allow_exact_matches=False,
        )
    )
    pieces = pieces.join(first.select("piece", "hole_start"), on="piece", how="left", maintain_order="left")
    pieces = pieces.join(last.select("piece", "hole_end"), on="piece", how="left", maintain_order="left")
    cut = (pl.col("hole_start") < pl.col("end_ns")) & (pl.col("hole_end") > pl.col("start_ns"))
    cut = cut.fill_null(False) & (pl.col("state") != "unknown")
    whole = pieces.filter(~cut)
    halves = pieces.filter(cut).with_columns(
        hole_start=pl.max_horizontal("hole_start", "start_ns"), hole_end=pl.min_horizontal("hole_end", "end_ns")
    )
    # the state before a thread's first event follows from that event, so not across a hole
    state = pl.when("open_start").then(pl.lit("unknown")).otherwise("state")
    before = halves.with_columns(end_ns="hole_start", open_end=pl.lit(False), state=state)
    blank = {"waker_tid": pl.lit(-1, pl.Int32), "waker_context": pl.lit(""), "woken_ns": pl.lit(0, pl.Int64)}
    within = halves.with_columns(
        start_ns="hole_start",
        end_ns="hole_end",
        state=pl.lit("unknown"),
        inexact=pl.lit(False),
        open_start=pl.col("open_start") & (pl.col("hole_start") == pl.col("start_ns")),
        open_end=pl.col("open_end") & (pl.col("hole_end") == pl.col("end_ns")),
        preempted=pl.lit(False),
        preemptor_tid=pl.lit(-1, pl.Int32),
        **blank,
    )
    after = halves.with_columns(
        start_ns="hole_end",
        state=pl.when("recorded").then("state").otherwise(pl.lit("unknown")),
        inexact=pl.col("recorded"),
        open_start=pl.lit(False),
        preempted=pl.lit(False),
        preemptor_tid=pl.lit(-1, pl.Int32),
    )
    columns = [name for name in whole.columns if name not in ("piece", "hole_start", "hole_end", "recorded")]
    return pl.concat([frame.select(columns) for frame in (whole, before, within, after)])


def doubt_queues(pieces: pl.DataFrame, broken: pl.DataFrame) -> pl.DataFrame:
    """Mark waits in the queue of a CPU as inexact if a broken chain there may hide that the thread ran."""
    if broken.is_empty():
        return pieces
    queued = pl.col("state") == "runnable"
    pieces = pieces.sort("end_ns", maintain_order=True).join_asof(
        broken.select("cpu", from_ns="start_ns", until_ns="end_ns").sort("from_ns"),
        left_on="end_ns",
        right_on="from_ns",
        by="cpu",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    hit = (pl.col("until_ns") > pl.col("start_ns")).fill_null(False) & queued
    return pieces.with_columns(inexact=pl.col("inexact") | hit).drop("from_ns", "until_ns", strict=False)
