"""Sum up per profiler step how long the device was idle, and what the dispatch thread did meanwhile."""

from __future__ import annotations

from typing import Any

import polars as pl

from whystall.tools.host.host_bound.activity import READY
from whystall.tools.host.host_bound.data import StepRow
from whystall.tools.host.host_bound.gaps import OFF_HOST, Bubbles
from whystall.tools.host.host_bound.intervals import overlay

_LENGTH = pl.col("end_ns") - pl.col("start_ns")


def step_rows(steps: pl.DataFrame, found: Bubbles, history: pl.DataFrame | None) -> list[StepRow]:
    """Return one row per step and device, most host-caused idle time first.

    `history`: of the thread whose shares are shown, None without one.
    """
    spans = _without_overlap(steps)
    devices = pl.DataFrame({"device": list(found.spans)}, {"device": pl.Int32})
    marks = spans.join(devices, how="cross")
    parts = overlay(found.parts.drop("gap"), marks, "device").filter(pl.col("number").is_not_null())
    parts = parts.with_columns(ns=_LENGTH)
    ours = ~pl.col("reason").is_in(OFF_HOST)
    idle = parts.group_by("number", "device").agg(
        pl.col("ns").sum().alias("idle"), pl.col("ns").filter(ours).sum().alias("host")
    )
    reasons = (
        parts.filter(ours).group_by("number", "device", "reason", "by").agg(pl.col("ns").sum()).sort("ns", "reason")
    )
    main = reasons.group_by("number", "device").last()
    rows = marks.join(idle, on=["number", "device"], how="left").join(main, on=["number", "device"], how="left")
    rows = rows.join(_shares(spans, history), on="number", how="left").sort("host", descending=True, nulls_last=True)
    return [_row(row) for row in rows.iter_rows(named=True)]


def _without_overlap(steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps in order without overlap: the first of those that do (several threads may mark the same steps)."""
    kept, end = [], -1
    for start, stop, number in steps.sort("start_ns", "end_ns").select("start_ns", "end_ns", "step").iter_rows():
        if start >= end and stop > start:
            kept.append((start, stop, number))
            end = stop
    return pl.DataFrame(
        kept, {"start_ns": pl.Int64, "end_ns": pl.Int64, "step": pl.Int32}, orient="row"
    ).with_row_index("number")


def _shares(spans: pl.DataFrame, history: pl.DataFrame | None) -> pl.DataFrame:
    empty = {"number": pl.get_index_type(), "running": pl.Int64, "ready": pl.Int64}
    if history is None:
        return pl.DataFrame(schema=empty)
    one = pl.lit(0).alias("all")
    marks = history.select("start_ns", "end_ns", "what", "state", one)
    pieces = overlay(spans.select("number", "start_ns", "end_ns", one), marks, "all").with_columns(ns=_LENGTH)
    lost = pl.col("what").is_in(READY) | ((pl.col("what") == "interrupt") & (pl.col("state") == "runnable"))
    return pieces.group_by("number").agg(
        pl.col("ns").filter(pl.col("what") == "running").sum().alias("running"),
        pl.col("ns").filter(lost).sum().alias("ready"),
    )


def _row(r: dict[str, Any]) -> StepRow:
    length = r["end_ns"] - r["start_ns"]

    def pct(ns: float | None) -> float:
        return 100.0 * (ns or 0.0) / float(length)

    return StepRow(
        step=r["step"],
        device=r["device"],
        start_ms=r["start_ns"] / 1e6,
        duration_ms=length / 1e6,
        idle_pct=pct(r["idle"]),
        host_pct=pct(r["host"]),
        running_pct=pct(r["running"]) if r["running"] is not None else None,
        ready_pct=pct(r["ready"]) if r["ready"] is not None else None,
        reason=r["reason"] or "",
        who=r["by"] or "",
    )
