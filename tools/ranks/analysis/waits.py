"""Compute which rank waited for which, and each rank's own time per step, without the waiting.

In an operation that none leaves before all have entered, the rank with the shortest duration came last, and the others'
longer durations are waiting: no common clock is needed. If the trace of a rank is missing, or lacks the operation, the
others waited at least so long. A receive waits until its sender sends, which needs a common clock: waits below the
clocks' residual are not counted. A sender's wait for its receiver is not counted: sends run beside the work.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from whystall.tools.ranks.analysis.steps import Steps
from whystall.tools.ranks.job import AWAITED, OWN, WAITS, Clocks, Peers
from whystall.tools.timeline.collectives import SYNCHRONISING


def waits(matched: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return `job.WAITS` of the operations in `matched` (`job.MATCHED`), sorted by instance and rank."""
    found = pl.concat([_together(matched), _received(matched, clocks)])
    return found.sort("instance", "rank")


def _together(matched: pl.DataFrame) -> pl.DataFrame:
    shared = matched.filter(pl.col("op").is_in(SYNCHRONISING))
    shared = shared.with_columns(took=pl.col("end_ns") - pl.col("start_ns"))
    shortest = pl.col("took").min().over("instance")
    return shared.with_columns(
        wait_ns=pl.col("took") - shortest,
        transfer_ns=shortest,
        last=pl.col("rank").sort_by("took", "rank").first().over("instance"),
    ).select(WAITS.names())


def _received(matched: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    sent = matched.filter(pl.col("op") == "send").select("instance", last="rank", sent="start_ns")
    got = matched.filter(pl.col("op") == "recv").join(sent, on="instance")
    residual = [
        pl.col(rank).replace_strict(dict(clocks.residual_ns), default=0, return_dtype=pl.Int64)
        for rank in ("rank", "last")
    ]
    took = pl.col("end_ns") - pl.col("start_ns")
    got = (
        got.with_columns(late=clocks.common("sent", "last") - clocks.common("start_ns"))
        .drop_nulls("late")
        .with_columns(
            wait_ns=pl.when(pl.col("late") > residual[0] + residual[1])
            .then(pl.min_horizontal(pl.col("late"), took))
            .otherwise(0)
        )
    )
    return got.with_columns(transfer_ns=took - pl.col("wait_ns")).select(WAITS.names())


def awaited(steps: Steps, matched: pl.DataFrame, waited: pl.DataFrame) -> pl.DataFrame:
    """Return `job.AWAITED`: of each step of each rank, the union of its waits, split by the rank it waited for.

    Where waits for several ranks overlap, the one that began first counts. An operation that runs beside the rank's own
    work costs only the exposed part. The tables have that part for all communication of a step, not per operation:
    waiting is at most that, and counted first. Where transfers are exposed and waits hidden, waiting is overestimated
    by at most the exposed transfers.
    """
    spans = steps.frame.filter(pl.col("end_ns") > pl.col("start_ns"))
    starts = matched.select("instance", "rank", "op", "start_ns").filter(pl.col("op") != "send").drop("op")
    parts = waited.filter((pl.col("wait_ns") > 0) & (pl.col("rank") != pl.col("last")))
    parts = parts.join(starts, on=["instance", "rank"])
    parts = parts.select("rank", "last", low="start_ns", high=pl.col("start_ns") + pl.col("wait_ns")).sort("low")
    # waits are disjoint or overlap in few steps: each is assigned to the step it begins in and the one it ends in
    edges = spans.select("rank", "step", "start_ns", "end_ns", "exposed_comm_ns").sort("start_ns")
    inside = [
        parts.sort(side).join_asof(edges, left_on=side, right_on="start_ns", by="rank", check_sortedness=False)
        for side in ("low", "high")
    ]
    laid = pl.concat(inside).drop_nulls("step").unique()
    laid = laid.with_columns(low=pl.max_horizontal("low", "start_ns"), high=pl.min_horizontal("high", "end_ns")).filter(
        pl.col("high") > pl.col("low")
    )
    before = pl.col("high").cum_max().shift(1).over("rank", "step").fill_null(0)
    laid = laid.sort("rank", "step", "low", "last").with_columns(
        new=(pl.col("high") - pl.max_horizontal(pl.col("low"), before)).clip(0)
    )
    whole = pl.col("new").sum().over("rank", "step")
    limited = (pl.col("new") * (pl.col("exposed_comm_ns") / whole).clip(0, 1)).floor()
    sums = laid.with_columns(wait_ns=limited).group_by("rank", "step", "last").agg(pl.col("wait_ns").sum())
    sums = sums.filter(pl.col("wait_ns") > 0)
    return sums.select(pl.col(name).cast(dtype) for name, dtype in AWAITED.items()).sort("rank", "step", "last")


def own(steps: Steps, waits_of: pl.DataFrame) -> pl.DataFrame:
    """Return `job.OWN`: of each step of each rank, its waits (`waits_of`: `job.AWAITED`), and the rest."""
    spans = steps.frame.filter(pl.col("end_ns") > pl.col("start_ns"))
    sums = waits_of.group_by("rank", "step").agg(pl.col("wait_ns").sum())
    table = spans.join(sums, on=["rank", "step"], how="left").with_columns(
        step_ns=pl.col("end_ns") - pl.col("start_ns"), wait_ns=pl.col("wait_ns").fill_null(0)
    )
    table = table.with_columns(own_ns=pl.col("step_ns") - pl.col("wait_ns"))
    return table.select(pl.col(name).cast(dtype) for name, dtype in OWN.items()).sort("rank", "step")


def awaited_in_sums(steps: Steps, peers: Iterable[Peers]) -> pl.DataFrame:
    """Return `job.AWAITED` where only sums of each step are known: the rank that came last communicates shortest beside
    no work, and what its peers communicate longer is waiting. Ranks that do other work are not compared."""
    label = {rank: number for number, one in enumerate(peers) for rank in one.ranks}
    exposed, of = pl.col("exposed_comm_ns"), ("step", "peers")
    found = steps.frame.with_columns(peers=pl.col("rank").replace_strict(label, default=-1, return_dtype=pl.Int64))
    found = found.with_columns(
        wait_ns=exposed - exposed.min().over(of), last=pl.col("rank").sort_by(exposed, "rank").first().over(of)
    )
    found = found.filter((pl.col("peers") >= 0) & (pl.col("wait_ns") > 0))
    return found.select(pl.col(name).cast(dtype) for name, dtype in AWAITED.items()).sort("rank", "step", "last")


def wait_matrix(waits_of: pl.DataFrame) -> pl.DataFrame:
    """Return the total wait of each rank (``waiter``) for each other (``last``), ``wait_ns``; of `job.AWAITED`: a
    rank's waits add up to those of `job.OWN`."""
    return waits_of.group_by(waiter="rank", last="last").agg(pl.col("wait_ns").sum()).sort("waiter", "last")
