"""Cut out the step that loses most in waiting, with its operations, on the common clock."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.analysis.analyse import JobAnalysis


@dataclass(frozen=True)
class WorstStep:
    """`spans`: rank, start_ns, end_ns of the step; `operations`: rank, start_ns, end_ns, wait_ns (of it, waiting for
    the last rank to enter), label (operation and group). Instants count from the first rank's start, on the common
    clock, which is right within `blur_ns`."""

    step: int
    spans: pl.DataFrame
    operations: pl.DataFrame
    blur_ns: int


def worst_step(analysis: JobAnalysis) -> WorstStep | None:
    """Return the step with the most waiting of all ranks together, else the longest; None without a common clock."""
    own, clocks = analysis.own, analysis.clocks
    ranks = sorted(clocks.offset_ns)
    if own.is_empty() or not ranks:
        return None
    sums = own.group_by("step").agg(pl.col("wait_ns", "step_ns").sum())
    step = int(sums.sort("wait_ns", "step_ns", "step", descending=[True, True, False])["step"][0])
    on_clock = pl.col("rank").is_in(ranks)
    common = [clocks.common("start_ns"), clocks.common("end_ns")]
    spans = analysis.steps.filter((pl.col("step") == step) & on_clock)
    spans = spans.select("rank", start_ns=common[0], end_ns=common[1]).sort("rank")
    if spans.is_empty():
        return None
    origin = int(str(spans["start_ns"].min()))
    rows = analysis.matched.filter((pl.col("step") == step) & (pl.col("op") != "send") & on_clock)
    waits = analysis.waits.select("instance", "rank", "wait_ns")
    rows = rows.join(waits, on=["instance", "rank"], how="left").join(_labels(analysis), on="group", how="left")
    operations = rows.sort("rank", "start_ns").select(
        "rank",
        start_ns=common[0] - origin,
        end_ns=common[1] - origin,
        wait_ns=pl.col("wait_ns").fill_null(0),
        label=pl.format("{} {}", "op", pl.col("name").fill_null("")).str.strip_chars(),
    )
    spans = spans.with_columns(pl.col("start_ns", "end_ns") - origin)
    return WorstStep(step, spans, operations, max(clocks.residual_ns.values(), default=0))


def _labels(analysis: JobAnalysis) -> pl.DataFrame:
    """Return the name of each group: what the program calls it, else its number."""
    described = pl.col("description").is_in(["", "undefined"])
    groups = analysis.job.table("groups").sort("description", descending=True).unique("group", keep="first")
    return groups.select("group", name=pl.when(described).then("name").otherwise("description"))
