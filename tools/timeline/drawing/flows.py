"""Arrows of a drawing: wakeups, and migrations between CPUs."""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.drawing.lanes import CPU_LANES, FLOWS, THREAD_LANES, shape
from whystall.tools.timeline.sched import SchedTrace


def wakeups(trace: SchedTrace, of_thread: pl.DataFrame, interrupts: pl.DataFrame) -> pl.DataFrame:
    """Return arrows from the waker to where the woken thread becomes ready: from the waker's running slice, or from the
    interrupt that recorded the wakeup. Without such a slice there is no arrow."""
    ready = of_thread.filter((pl.col("state") == "runnable") & (pl.col("woken_ns") == pl.col("start_ns")))
    ready = ready.filter(pl.col("woken_ns") > 0).select("tid", "waker_tid", "waker_context", "woken_ns")
    running = of_thread.filter(pl.col("state") == "running").select(waker_tid="tid", since="start_ns", until="end_ns")
    by_thread = _covered(ready.filter(pl.col("waker_tid") > 0), running, "waker_tid")
    by_thread = by_thread.with_columns(from_lane=pl.col("waker_tid").cast(pl.Int64) + THREAD_LANES)
    recorded = trace.table("wakeups").filter(pl.col("context").is_in(["hardirq", "softirq"]))
    recorded = recorded.select("tid", "cpu", woken_ns="at_ns").unique(["tid", "woken_ns"], keep="first")
    ready = ready.filter(pl.col("waker_context").is_in(["hardirq", "softirq"])).join(recorded, on=["tid", "woken_ns"])
    by_interrupt = []
    for soft, context in ((False, "hardirq"), (True, "softirq")):
        within = interrupts.filter(pl.col("soft") == soft).select("cpu", since="start_ns", until="end_ns")
        by_interrupt.append(_covered(ready.filter(waker_context=context), within, "cpu"))
    in_interrupt = pl.concat(by_interrupt).with_columns(from_lane=pl.col("cpu").cast(pl.Int64) + CPU_LANES)
    columns = ["tid", "woken_ns", "from_lane"]
    rows = pl.concat([by_thread.select(columns), in_interrupt.select(columns)])
    return shape(
        rows.with_columns(
            cat=pl.lit("wakeup"),
            from_ns="woken_ns",
            to_lane=pl.col("tid").cast(pl.Int64) + THREAD_LANES,
            to_ns="woken_ns",
        ),
        FLOWS,
    )


def migrations(of_thread: pl.DataFrame, on_cpu: pl.DataFrame) -> pl.DataFrame:
    """Return arrows from the end of a thread's time on one CPU to its next on another, in the lanes of the CPUs."""
    runs = of_thread.filter(pl.col("state") == "running").sort("tid", "start_ns", maintain_order=True)
    # the last instant within the slice: viewers bind its very end to the following slice
    runs = runs.with_columns(left_ns=pl.col("end_ns").shift(1) - 1, left=pl.col("cpu").shift(1))
    same = (pl.col("tid").shift(1) == pl.col("tid")) & (pl.col("left") == pl.col("from_cpu"))
    moved = runs.filter(same & (pl.col("from_cpu") >= 0)).with_columns(
        cat=pl.lit("migration"),
        from_lane=pl.col("from_cpu").cast(pl.Int64) + CPU_LANES,
        from_ns="left_ns",
        to_lane=pl.col("cpu").cast(pl.Int64) + CPU_LANES,
        to_ns="start_ns",
    )
    drawn = on_cpu["cpu"].unique().implode()
    # different clocks can make a slice of a thread's lane begin later than that of the CPU's lane
    there = on_cpu.filter(pl.col("tid") > 0).select("cpu", "tid", to_ns="start_ns")
    return shape(
        moved.filter(pl.col("from_cpu").is_in(drawn)).join(there, on=["cpu", "tid", "to_ns"], how="semi"), FLOWS
    )


def _covered(rows: pl.DataFrame, slices: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return `rows` whose `woken_ns` lies in a slice (since, until) of the same `key`; its slices do not overlap."""
    rows = rows.sort("woken_ns", maintain_order=True).join_asof(
        slices.sort("since"), left_on="woken_ns", right_on="since", by=key, check_sortedness=False
    )
    return rows.filter(pl.col("woken_ns") < pl.col("until"))
