"""A communicating job on several hosts, each of which observed its own ranks in its own window on its own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone

import polars as pl
from collective_windows import MS, PID, Job

from whystall.tools.recording.store import Recording

STARTED = datetime(2026, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
INSTANTS = ("start_ns", "end_ns", "queued_ns", "at_ns")


def windows(
    job: Job,
    ranks: Mapping[str, Sequence[int]],
    *,
    begins_ms: Sequence[float] = (0, 130, 310, 75),
    skews_s: Sequence[float] = (0, -30, 30, 7),
    window_ms: float | None = None,
) -> dict[str, Recording]:
    """What each host observed of `job`, from its begin on, for `window_ms` (None: as long as all can); the processes
    of its `ranks` have the same numbers on all hosts. Its clock is wrong by its skew."""
    whole = job.recording()
    longest = whole.manifest.window_ns - int(max(begins_ms) * MS)
    window_ns = int(window_ms * MS) if window_ms else longest
    found = {}
    for place, (host, here) in enumerate(ranks.items()):
        begin = int(begins_ms[place % len(begins_ms)] * MS)
        pids = {PID + rank: PID + local for local, rank in enumerate(here)}
        tables = {name: _cut(frame, pids, begin, window_ns) for name, frame in whole.tables().items()}
        manifest = whole.manifest.model_copy(deep=True)
        manifest.host, manifest.window_ns = host, window_ns
        started = STARTED + timedelta(milliseconds=begin / MS, seconds=skews_s[place % len(skews_s)])
        manifest.started = started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        manifest.start_ns = (place + 1) * 10**15 + begin  # since it was booted
        found[host] = Recording.in_memory(manifest, tables)
    return found


def _cut(frame: pl.DataFrame, pids: Mapping[int, int], begin: int, length: int) -> pl.DataFrame:
    """What the window sees: calls that began before are left out, those that end later are open."""
    if "pid" in frame.columns:
        frame = frame.filter(pl.col("pid").is_in(list(pids)))
        frame = frame.with_columns(pl.col("pid").replace_strict(dict(pids), return_dtype=frame.schema["pid"]))
    if "tid" in frame.columns:
        frame = frame.with_columns(tid=pl.col("pid"))
    if "queued_ns" in frame.columns:
        frame = frame.filter(pl.col("queued_ns").is_between(begin, begin + length - 1, closed="right"))
        frame = frame.with_columns(open=pl.col("open") | (pl.col("end_ns") > begin + length))
    elif "start_ns" in frame.columns:
        frame = frame.filter((pl.col("end_ns") > begin) & (pl.col("start_ns") < begin + length))
    moved = [(pl.col(name) - begin).clip(0, length) for name in INSTANTS if name in frame.columns]
    return frame.with_columns(moved)
