"""Ranks (or stages) that do the same work in a table: one row per step, one column per rank, nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.statistics.probability import median


@dataclass(frozen=True)
class Grid:
    """`own`: a step without waiting for others. `wait`: the rest of it. `work`: computing and gaps, measured by what
    ran between collectives instead of by their durations; None if unknown.

    The frames have a column per rank, named by its number, and a row per step; `steps` are the steps' numbers. Cells
    are null where a rank's trace lost operations of the step: its waiting in them is unknown.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    own: pl.DataFrame
    wait: pl.DataFrame
    work: pl.DataFrame | None
    step_ns: float

    def part(self, first: int) -> Grid:
        """Return it without the rows before row `first`."""
        work = self.work.slice(first) if self.work is not None else None
        return Grid(self.ranks, self.steps[first:], self.own.slice(first), self.wait.slice(first), work, self.step_ns)

    def only(self, ranks: Iterable[int]) -> Grid:
        """Return it with only these ranks."""
        kept = tuple(sorted(ranks))
        names = [str(rank) for rank in kept]
        work = self.work.select(names) if self.work is not None else None
        return Grid(kept, self.steps, self.own.select(names), self.wait.select(names), work, self.step_ns)

    def others(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks that are not among `ranks`."""
        return tuple(sorted(set(self.ranks) - set(ranks)))


def grid(own: pl.DataFrame, ranks: Sequence[int], *, has_work: bool = False, lost: pl.DataFrame | None = None) -> Grid:
    """Return the rows of `OWN` of `ranks`, for their common steps. `lost`: rank and step of cells to leave out."""
    chosen = own.filter(pl.col("rank").is_in(list(ranks)))
    full = chosen.group_by("step").len().filter(pl.col("len") == len(ranks))["step"]
    chosen = chosen.filter(pl.col("step").is_in(full.implode())).sort("step", "rank")
    step_ns = median(chosen["step_ns"].to_list())
    chosen = chosen.with_columns(work_ns=pl.col("compute_ns") + pl.col("gap_ns"))
    if lost is not None:
        gone = pl.struct("rank", "step").is_in(lost.select(pl.struct("rank", "step").implode()).to_series())
        chosen = chosen.with_columns(pl.when(~gone).then(pl.col("own_ns", "wait_ns", "work_ns")))
    return Grid(
        ranks=tuple(sorted(ranks)),
        steps=tuple(full.sort().to_list()),
        own=_wide(chosen, "own_ns", ranks),
        wait=_wide(chosen, "wait_ns", ranks),
        work=_wide(chosen, "work_ns", ranks) if has_work else None,
        step_ns=step_ns,
    )


def _wide(frame: pl.DataFrame, column: str, ranks: Sequence[int]) -> pl.DataFrame:
    of_rank = frame.partition_by("rank", as_dict=True)
    none = pl.Series([], dtype=pl.Float64)
    return pl.DataFrame(
        {
            str(rank): of_rank[rank,][column].cast(pl.Float64) if (rank,) in of_rank else none
            for rank in sorted(set(ranks))
        }
    )


def lost_in(matched: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Return rank and step (of `MATCHED`) where one of `ranks`, which do the same, has fewer operations than usual
    compared with the others."""
    counts = matched.filter(pl.col("rank").is_in(list(ranks))).group_by("rank", "step").agg(count=pl.len())
    every = counts.select("step").unique().join(pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int32}), how="cross")
    every = every.join(counts, on=["rank", "step"], how="left").with_columns(pl.col("count").fill_null(0))
    every = every.with_columns(beside=pl.col("count") - pl.col("count").cast(pl.Int64).max().over("step"))
    return every.filter(pl.col("beside") < pl.col("beside").median().over("rank")).select("rank", "step")


def known(series: pl.Series) -> list[float]:
    values: list[float] = series.drop_nulls().to_list()
    return values


def highest(frame: pl.DataFrame, ranks: Iterable[int]) -> pl.Series:
    """Return per step the time of the slowest of `ranks`."""
    return frame.select(pl.max_horizontal([str(rank) for rank in ranks])).to_series()


def lowest(frame: pl.DataFrame, ranks: Iterable[int]) -> pl.Series:
    """Return per step the time of the fastest of `ranks`."""
    return frame.select(pl.min_horizontal([str(rank) for rank in ranks])).to_series()


def middle(frame: pl.DataFrame, ranks: Iterable[int]) -> pl.Series:
    """Return per step the median of `ranks`."""
    return frame.select(pl.concat_list([str(rank) for rank in ranks]).list.median()).to_series()


def ahead_of_all(frame: pl.DataFrame) -> pl.DataFrame:
    """Return per step and rank how much longer it took than the slowest other one."""
    two = pl.concat_list(pl.all()).list.sort(descending=True, nulls_last=True)
    tops = frame.select(first=two.list.get(0), second=two.list.get(1, null_on_oob=True))
    first, second = tops["first"], tops["second"]
    return frame.select(
        (pl.col(name) - pl.when(pl.col(name) == first).then(second).otherwise(first)).alias(name)
        for name in frame.columns
    )
