"""Explain quiet bands by a recording's switches: when a thread was off its CPU, and what it waited for."""

from __future__ import annotations

import polars as pl

from whystall.tools.contract.result import Model
from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.profiles.heat_map.activity import Activity, Runs, activity_of, between, closed
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.waits import Places

# A wait is reported if it fills at least this share of the bands, and that much more of them than of the other time.
_LEAST_SHARE, _LEAST_MORE = 0.05, 0.02


class WaitRow(Model):
    """What a thread waited for in quiet bands. `band_pct`: share of the bands' time, `outside_pct`: of the rest."""

    tid: int
    comm: str
    state: str
    syscall: str
    path: str
    kernel_stack: list[str]
    user_stack: list[str]
    total_ms: float
    band_pct: float
    outside_pct: float


def usable(recording: Recording) -> bool:
    """Return whether `recording` has complete switches."""
    if not recording.has("switches"):
        return False
    entry = recording.manifest.collectors["switches"]
    return entry.proven and not entry.lost and all(spot.code != "sampled" for spot in entry.not_seen)


def on_cpu(recording: Recording, tid: int, first: int, last: int) -> Activity | None:
    """Return when thread `tid` was on a CPU, to the recording's threshold; None if no switch of it is recorded."""
    import numpy as np

    segments = recording.table("switches.segments").filter(pl.col("tid") == tid).sort("start_ns")
    if segments.is_empty():
        return None
    off = Runs(np.maximum(segments["start_ns"].to_numpy(), first), np.minimum(segments["end_ns"].to_numpy(), last))
    off = closed(off.where(off.ends > off.starts), 1)[0]
    on = between(off, first, last)
    activity = activity_of(on.starts, on.lengths, first, last, interval=0)
    least = recording.manifest.collectors["switches"].options.get("min_ns", 0)
    return Activity(off, first, last, max(int(least), 1000), activity.holes)


def waits_in(recording: Recording, bands: Runs, first: int, last: int, tids: list[int], top: int) -> list[WaitRow]:
    """Return what threads `tids` waited for more in `bands` than between them, longest first."""
    import numpy as np

    inside = int(bands.lengths.sum())
    outside = last - first - inside
    segments = recording.table("switches.segments").filter(pl.col("tid").is_in(tids))
    if segments.is_empty() or inside <= 0:
        return []
    start, end = segments["start_ns"].to_numpy(), segments["end_ns"].to_numpy()
    # Piecewise linear: time within bands up to an instant.
    edges = np.stack([bands.starts, bands.ends], axis=1).ravel()
    passed = np.concatenate([[0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])
    shared = np.interp(end, edges, passed) - np.interp(start, edges, passed)
    places = Places(recording)
    patterns = {number: path_pattern(path) for number, path in places.paths.items()}
    keys = ["tid", "comm", "state", "syscall", "series"]
    share = pl.col("band") / inside
    rest_share = pl.col("rest") / outside if outside > 0 else pl.lit(0.0)
    summed = (
        segments.with_columns(
            band=pl.Series(shared),
            rest=pl.Series((end - start) - shared),
            series=pl.col("file").replace_strict(patterns, default="", return_dtype=pl.String),
        )
        .sort("band", descending=True)  # the stack is that of the longest wait
        .group_by(keys, maintain_order=True)
        .agg(pl.col("band").sum(), pl.col("rest").sum(), pl.col("file").unique(), pl.col("kstack", "ustack").first())
        .with_columns(band_share=share, rest_share=rest_share)
        .filter((pl.col("band_share") >= _LEAST_SHARE) & (pl.col("band_share") >= pl.col("rest_share") + _LEAST_MORE))
        .sort(pl.col("rest_share") - pl.col("band_share"), *keys)
    )
    return [
        WaitRow(
            **places.fields(row, path_series(set(map(places.path, row["file"]))) if row["series"] else ""),
            user_stack=places.stack(row["ustack"]),
            total_ms=row["band"] / 1e6,
            band_pct=100 * min(row["band_share"], 1.0),
            outside_pct=100 * min(row["rest_share"], 1.0),
        )
        for row in summed.head(top).iter_rows(named=True)
    ]
