"""Find ranks whose traces lack operations that they took part in: their waiting is unknown.

Unrecorded waits appear as own time, and a rank that loses the same operation in every step (no communication kernels in
its trace, a buffer that is always full at the end) would seem to hold all others back.
"""

from __future__ import annotations

import polars as pl

from whystall.tools.ranks.job import Job
from whystall.tools.timeline.collectives import SYNCHRONISING

# Share of what ranks that do the same have. Events lost at random are lost on all ranks, and are left out step by step.
_CLEARLY = 0.9


def incomplete_ranks(job: Job, matched: pl.DataFrame, own: pl.DataFrame) -> frozenset[int]:
    """Return the ranks of `job` that have clearly fewer of the synchronising operations of their groups than the rank
    that has most of its own, in the steps of `own` (`job.OWN`). `matched`: `job.MATCHED`."""
    inside = pl.col("step").is_in(own["step"].unique().implode())
    rows = matched.filter(pl.col("op").is_in(SYNCHRONISING) & inside)
    if rows.is_empty():
        return frozenset()
    groups = rows.group_by("group").agg(
        pl.col("size").max(), observed=pl.col("rank").unique(), operations=pl.col("instance").n_unique()
    )
    listed = job.table("groups").group_by("group").agg(ranks=pl.col("ranks").sort_by(pl.col("ranks").list.len()).last())
    groups = groups.join(listed, on="group", how="left")
    # a group as large as the job has all ranks in it
    everybody = (
        pl.when(pl.col("size") >= len(job.present)).then(pl.lit(pl.Series([list(job.present)]))).otherwise("observed")
    )
    members = pl.when(pl.col("ranks").list.len() > 0).then("ranks").otherwise(everybody)
    expected = groups.select("group", "operations", rank=members.list.eval(pl.element().cast(pl.Int32))).explode("rank")
    expected = expected.filter(pl.col("rank").is_in(job.present)).group_by("rank").agg(pl.col("operations").sum())
    had = rows.group_by("rank").agg(had=pl.col("instance").n_unique())
    shares = expected.join(had, on="rank", how="left").select("rank", share=pl.col("had").fill_null(0) / "operations")
    return frozenset(shares.filter(pl.col("share") < _CLEARLY * pl.col("share").max())["rank"].to_list())
