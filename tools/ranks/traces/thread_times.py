"""When the threads of an observed rank ran, and how long all of them were blocked, from scheduler events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from whystall.tools.recording.store import Recording
from whystall.tools.timeline.intervals import Cover
from whystall.tools.timeline.profile import ACTIVITIES

SOURCE = "live"
"""Value of ``ranks.source`` of ranks that were observed."""
_ONE_NS = 1  # instant 0 stands for an unknown one
_SPANS = pl.Schema({"start_ns": pl.Int64, "end_ns": pl.Int64})


def on_cpu(pid: int, threads: Iterable[int], recording: Recording) -> pl.DataFrame:
    """Return when `threads` of process `pid` ran, as activities of kind ``operator``: the window without their times
    off the CPU. Empty if these were not recorded."""
    if not recording.has("switches"):
        return ACTIVITIES.to_frame()
    away = recording.table("switches.segments").filter(pl.col("pid") == pid)
    pieces = [
        _rest(away.filter(pl.col("tid") == tid), recording).with_columns(tid=pl.lit(tid, pl.Int32)) for tid in threads
    ]
    if not pieces:
        return ACTIVITIES.to_frame()
    unknown = {
        "kind": "operator",
        "name": SOURCE,
        "pid": pid,
        "device": -1,
        "stream": -1,
        "correlation": -1,
        "step": -1,
    }
    made = pl.concat(pieces).with_columns(
        pl.col("start_ns", "end_ns") + _ONE_NS, **{name: pl.lit(value) for name, value in unknown.items()}
    )
    return made.select(pl.col(name).cast(dtype) for name, dtype in ACTIVITIES.items()).sort("start_ns")


def blocked_ns(pid: int, threads: Iterable[int], calls: pl.DataFrame, recording: Recording) -> int:
    """Return how long all of `threads` were blocked at once (asleep, or waiting for a lock, a file or data) outside of
    `calls` (start_ns, end_ns), in ns of the whole window. A thread that is ready to run and waits for a CPU is not
    blocked."""
    asleep = recording.table("switches.segments").filter((pl.col("pid") == pid) & ~pl.col("state").str.starts_with("R"))
    asleep = asleep.with_columns(end_ns=pl.col("end_ns") - pl.col("runnable_ns").clip(0))
    ready = [_rest(asleep.filter(pl.col("tid") == tid), recording) for tid in threads]
    end = recording.manifest.window_ns
    busy = Cover.of(_SPANS.to_frame(), calls, *ready).within(pl.Series([0]), pl.Series([end]))
    return max(0, end - int(busy[0]))


def _rest(spans: pl.DataFrame, recording: Recording) -> pl.DataFrame:
    """Return the window without `spans` of one thread (start_ns, end_ns)."""
    spans = spans.sort("start_ns")
    edges = {
        "start_ns": [0, *spans["end_ns"].to_list()],
        "end_ns": [*spans["start_ns"].to_list(), recording.manifest.window_ns],
    }
    return pl.DataFrame(edges, _SPANS).filter(pl.col("end_ns") > pl.col("start_ns"))
