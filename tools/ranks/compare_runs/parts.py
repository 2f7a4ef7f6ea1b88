"""Split steps of a run into parts that add up, by rank and along the rank that the others wait for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.statistics.probability import median

PARTS = ("compute", "loader", "gap", "transfer", "communication", "rest")
"""Compute; the loader's part of the gap, and its rest; of exposed communication, transfers, and waiting for others; and
the remainder."""
OWN = ("compute", "loader", "gap")
"""Work of a rank by itself: other ranks cannot lengthen it."""
_OUTLIER = 2.0
_RARE = 0.05
"""Steps of more than twice the median, at most one in twenty (or one), are not typical of a run."""


@dataclass(frozen=True)
class Steps:
    """`rows`: rank, step, ``step_ns`` and a column per part, in ns, which add up to it. `path`: of each step the rank
    that the others wait for, the same columns. `numbers`: the steps, in order."""

    rows: pl.DataFrame
    path: pl.DataFrame

    @property
    def numbers(self) -> list[int]:
        """Numbers of the steps in the order of time."""
        found: list[int] = self.path["step"].to_list()
        return found

    def series(self, name: str) -> list[float]:
        """Return, of each step, the part `name` (or ``step_ns``) of the rank that the others wait for."""
        found: list[float] = self.path[name].cast(pl.Float64).to_list()
        return found

    def without(self, steps: Sequence[int]) -> Steps:
        """Return it without those steps."""
        kept = ~pl.col("step").is_in(list(steps))
        return Steps(self.rows.filter(kept), self.path.filter(kept))


def steps_of(own: pl.DataFrame, ranks: Sequence[int], *, loader: bool, waits: bool) -> Steps:
    """Return the steps of `ranks` in `own` (`job.OWN`).

    `loader`: whether the time of loaders is known in both runs; else it is in the gap. `waits`: whether waiting can be
    separated from transfers; else all communication is one part. If no rank waits for another (no collectives), the
    path is the mean of all ranks.
    """
    wait = pl.min_horizontal(pl.col("wait_ns"), pl.col("exposed_comm_ns")) if waits else pl.col("exposed_comm_ns")
    known = pl.col("compute_ns", "gap_ns", "exposed_comm_ns", "loader_ns", "wait_ns").clip(0)
    load = pl.min_horizontal("loader_ns", "gap_ns") if loader else pl.lit(0, pl.Int64)
    rows = (
        own.filter(pl.col("rank").is_in(list(ranks)))
        .with_columns(known)
        .select(
            "rank",
            "step",
            "step_ns",
            pl.col("wait_ns").alias("_wait"),
            compute=pl.col("compute_ns"),
            loader=load,
            gap=pl.col("gap_ns") - load,
            transfer=pl.col("exposed_comm_ns") - wait,
            communication=wait,
        )
        .with_columns(
            rest=pl.col("step_ns") - pl.sum_horizontal("compute", "loader", "gap", "transfer", "communication")
        )
    )
    values = ["step_ns", *PARTS]
    if waits and rows.filter(pl.col("_wait") > 0).height:
        first = rows.sort("step", "_wait", "rank").group_by("step", maintain_order=True).first()
        path = first.select("step", "rank", *values)
    else:
        path = rows.group_by("step").agg(pl.col("rank").first(), pl.col(values).mean()).sort("step")
    return Steps(rows.drop("_wait"), path)


def odd_steps(steps: Steps) -> list[int]:
    """Return numbers of the few steps that are far longer than the others: compilation, a checkpoint."""
    lengths = steps.series("step_ns")
    usual = median(lengths)
    odd = [number for number, length in zip(steps.numbers, lengths, strict=True) if length > _OUTLIER * usual]
    return odd if len(odd) <= max(1, math.floor(_RARE * len(lengths))) else []


def by_rank(steps: Steps) -> dict[int, pl.DataFrame]:
    """Return the rows of each rank, in the order of steps."""
    parts = steps.rows.sort("step").partition_by("rank", as_dict=True)
    return {int(rank): frame for (rank,), frame in parts.items()}


def mean_ms(values: Sequence[float]) -> float:
    """Return the mean of nanoseconds in ms; 0 of nothing."""
    return math.fsum(values) / len(values) / 1e6 if values else 0.0


def slack_ms(steps: Steps) -> dict[int, float]:
    """Return how much longer each rank could take without lengthening the step: its wait beyond that of the path."""
    path = mean_ms(steps.series("communication"))
    means = steps.rows.group_by("rank").agg(pl.col("communication").mean() / 1e6)
    return {rank: max(wait - path, 0.0) for rank, wait in means.iter_rows()}
