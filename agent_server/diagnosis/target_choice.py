"""Which process of a host to look at when nobody was named."""

from __future__ import annotations

import os

import polars as pl

from whystall.tools.recording.store import Recording

# A process below this share of the window, held up or on a CPU, is not worth a closer look.
_WORTH_PCT = 5.0
_KTHREADD = 2


def choose_process(recording: Recording) -> int | None:
    """The process with the thread that is held up longest, else the one that uses most CPU; None on an idle host.

    Held up: waiting in the kernel where it cannot be interrupted, or for a file (as `switches` saw it, where it was
    recorded, else as the kernel counted waiting for block I/O). Our own process is left out, and kernel threads: they
    work for others.
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
    """By process, how long its worst thread was held up (`waited`, ns)."""
    return (
        recording.table("switches.totals")
        .filter((pl.col("state") == "D") | (pl.col("file") >= 0))
        .group_by("pid", "tid")
        .agg(pl.col("total_ns").sum().alias("waited"))
        .group_by("pid")
        .agg(pl.col("waited").max())
    )
