"""Remove the processes outside of the target from a recording."""

from __future__ import annotations

import polars as pl

from whystall.tools.recording.store import Recording

_FOLLOWED = "switches.followed"
_SAMPLES, _SAMPLED_THREADS = "samples.samples", "samples.threads"


def of_target(recording: Recording) -> Recording:
    """Return `recording` without the switches and samples of processes that were followed because they wake threads of
    the target: tools that did not request them (``follow_wakers``) judge the target alone."""
    tables = recording.tables()
    if _FOLLOWED not in tables or tables[_FOLLOWED].is_empty():
        return recording
    others = tables[_FOLLOWED]["pid"].unique().to_list()
    for name in ("switches.segments", "switches.totals"):
        tables[name] = tables[name].filter(~pl.col("pid").is_in(others))
    if _SAMPLES in tables:
        threads = tables[_SAMPLED_THREADS]
        theirs = threads.filter(pl.col("pid").is_in(others))["thread"].to_list()
        tables[_SAMPLES] = tables[_SAMPLES].filter(~pl.col("thread").is_in(theirs))
    return Recording(recording.manifest, tables)
