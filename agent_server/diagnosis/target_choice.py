"""Choose the process of a host to observe when no target was named."""

from __future__ import annotations

import os

import polars as pl

from whystall.tools.recording.store import Recording

# A process is chosen only if it was blocked, or used CPU, for at least this share of the window.
_WORTH_PCT = 5.0
_KTHREADD = 2


def choose_process(recording: Recording) -> int | None:
    """Return the pid of the process with the longest blocked thread, else with most CPU time; None on an idle host.

    Blocked: in uninterruptible sleep or waiting for a file, as `switches` recorded, else the kernel's count of block
    I/O waits. Our own process and kernel threads are left out.
    """
    kernel = (pl.col("pid") == _KTHREADD) | (pl.col("ppid") == _KTHREADD)
    rows = recording.table("proc.processes").filter((pl.col("pid") != os.getpid()) & ~kernel)
    cpu = pl.col("user_ns") + pl.col("system_ns")
    spent = (
        rows.sort("at_ns")
        .group_by("pid", "start_ticks")
        .agg(
            (pl.col("block_io_ns").last() - pl.col("block_io_ns").first()).alias("held"),
            (cpu.last() - cpu.first()).alias("cpu"),
        )
    )
    if recording.has("switches"):
        spent = spent.join(_held_up(recording), on="pid", how="left").with_columns(
            pl.max_horizontal("held", pl.col("waited").fill_null(0)).alias("held")
        )
    least = recording.manifest.window_ns * _WORTH_PCT / 100
    for measure in ("held", "cpu"):
        top = spent.filter(pl.col(measure) >= least).sort(measure, descending=True).head(1)
        if top.height:
            return int(top["pid"][0])
    return None


def _held_up(recording: Recording) -> pl.DataFrame:
    """Return, by process, how long its worst thread was blocked (`waited`, ns)."""
    return (
        recording.table("switches.totals")
        .filter((pl.col("state") == "D") | (pl.col("file") >= 0))
        .group_by("pid", "tid")
        .agg(pl.col("total_ns").sum().alias("waited"))
        .group_by("pid")
        .agg(pl.col("waited").max())
    )
