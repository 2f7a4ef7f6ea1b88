"""Find the steps that all ranks have, on each rank's own clock; without steps in the traces, equal runs of operations.

Ranks may work through several of a profiler's steps before they synchronise (gradient accumulation): a lead of one step
is waited for in another, and only together they show which rank is slow. Steps without a synchronising operation are
joined with the next that has one, and have its number.

A substitute step ends where an operation ends that occurs once in each round of the job: of the operations that most
ranks share the rarest one that recurs (an optimizer's norm, the largest bucket). Where all operations are alike, each
is a round if they come at even distances (a step with several of them has longer ones before its first), else
`_ROUND` of them are. As an operation ends for all ranks together, its end is one instant on the common clock, and
cuts every rank's time there.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.job import Clocks, Job
from whystall.tools.timeline.collectives import SYNCHRONISING
from whystall.tools.timeline.rank_data.tables import STEPS

_I = pl.Int64
_RECURS = 3
"""Occurrences from which on an operation recurs."""
_ROUND = 8
_EVEN, _STEP_NS = 2.0, 5_000_000
"""Distances are even if none but one is above so many times the median, and nine tenths are above the inverse: a step
of several operations has a longer distance before its first. Operations of layers follow each other within less than
`_STEP_NS`, and all layers of one step are one moment."""
_WITHIN, _FLOOR_NS = 6, 30_000
"""The operation that ends a step may end so many residuals or ns later on some ranks. Another one that ends within that
time carries no weight: its rank can have worked at most so long since."""


@dataclass(frozen=True)
class Steps:
    """`frame`: `rank_data.tables.STEPS`, only steps that all ranks have, joined up to their synchronisation. `derived`:
    operations are used instead."""

    frame: pl.DataFrame
    derived: bool


def steps_of(job: Job, matched: pl.DataFrame, clocks: Clocks) -> Steps:
    """Return the steps of `job`; empty when it has neither steps nor operations that recur."""
    recorded = job.table("steps").filter(pl.col("step") >= 0)
    recorded = recorded.unique(["rank", "step"], keep="first", maintain_order=True)
    common = recorded.group_by("step").len().filter(pl.col("len") == len(job.present))
    if common.height:
        whole = recorded.join(common, on="step", how="semi").sort("rank", "step")
        return Steps(_until_met(whole, job.table("collectives")), derived=False)
    return Steps(_derived(job, matched, clocks), derived=True)


def _until_met(steps: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Join `steps` without synchronising operations with the next that has some; behind the last there is none. Without
    any synchronisation, and where numbers are missing in between, nothing is joined."""
    meets = operations.filter(pl.col("op").is_in(SYNCHRONISING) & (pl.col("end_ns") > 0))["step"].unique()
    numbers = steps.select(pl.col("step").unique().sort()).with_columns(met=pl.col("step").is_in(meets.implode()))
    if numbers["met"].all() or not numbers["met"].any():
        return steps
    breaks = (pl.col("step").diff() != 1).fill_null(value=False).cum_sum()
    until = pl.when("met").then("step").backward_fill().over(breaks)
    numbers = numbers.with_columns(until=until).drop_nulls("until")
    each = steps.join(numbers.select("step", "until"), on="step").sort("rank", "step")
    sums = ("compute_ns", "comm_ns", "exposed_comm_ns", "gap_ns", "loader_ns", "work_count")
    span = pl.col("end_ns") - pl.col("start_ns")
    delay = pl.col("launch_delay_ns")
    joined = each.group_by("rank", "until", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        *(pl.when((pl.col(name) >= 0).all()).then(pl.col(name).sum()).otherwise(-1).alias(name) for name in sums),
        delay.filter(delay >= 0).median().fill_null(-1).alias("launch_delay_ns"),
        between=pl.col("end_ns").max() - pl.col("start_ns").min() - span.sum(),
    )
    # a host also works between two steps
    idle = pl.when(pl.col("gap_ns") >= 0).then(pl.col("gap_ns") + pl.col("between").clip(0)).otherwise(-1)
    joined = joined.with_columns(gap_ns=idle).rename({"until": "step"})
    return joined.select(pl.col(name).cast(dtype) for name, dtype in STEPS.items()).sort("rank", "step")


def placed(matched: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """Return `matched` with the substitute step, where there are no steps: the one it ends in."""
    if not steps.derived or matched.is_empty():
        return matched
    spans = steps.frame.select("rank", pl.col("start_ns").alias("from"), "end_ns", number="step").sort("from")
    rows = matched.sort("end_ns").join_asof(
        spans.rename({"end_ns": "to"}),
        left_on="end_ns",
        right_on="from",
        by="rank",
        strategy="backward",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    inside = pl.when(pl.col("end_ns") <= pl.col("to")).then("number")
    rows = rows.with_columns(number=inside)
    # ends agree within the residual only: an operation at the border belongs to one step on all of its ranks
    step = pl.col("number").min().over("instance").fill_null(-1).cast(pl.Int32)
    return rows.with_columns(step=step).select(matched.columns).sort("instance", "rank")


def _derived(job: Job, matched: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    together = matched.filter(pl.col("op").is_in(SYNCHRONISING)).with_columns(at=clocks.common("end_ns"))
    together = together.drop_nulls("at")
    ends = together.group_by("instance").agg(
        pl.col("group").first(),
        pl.col("op").first(),
        size=pl.col("bytes").max(),
        at=pl.col("at").median().round().cast(_I),
        ranks=pl.col("rank").n_unique(),
    )
    kinds = ends.group_by("group", "op", "size").agg(count=pl.len(), ranks=pl.col("ranks").max())
    kinds = kinds.filter(pl.col("count") >= _RECURS)
    kinds = kinds.filter(pl.col("ranks") == pl.col("ranks").max())
    if kinds.is_empty() or not clocks.offset_ns.keys() >= set(job.present):
        return STEPS.to_frame()
    chosen = kinds.sort("count", "size", "group", "op", descending=[False, True, False, False]).head(1)
    cuts = ends.join(chosen, on=["group", "op", "size"], how="semi").sort("at")["at"]
    if matched.select("group", "op", "bytes").n_unique() == 1:  # all operations are alike
        cuts = cuts.gather_every(_ROUND) if len(cuts) > 2 * _ROUND and not _even(cuts) else cuts
    if len(cuts) < 2:
        return STEPS.to_frame()
    spans = pl.DataFrame({"step": range(len(cuts) - 1), "from": cuts[:-1], "to": cuts[1:]})
    ranks = pl.DataFrame({"rank": job.present}, schema={"rank": pl.Int32})
    spans = ranks.join(spans, how="cross").with_columns(start_ns=clocks.local("from"), end_ns=clocks.local("to"))
    late = max(_FLOOR_NS, _WITHIN * max(clocks.residual_ns.values(), default=0))
    return _summed(spans, job.table("collectives"), late)


def _even(instants: pl.Series) -> bool:
    apart: list[int] = sorted(instants.diff().drop_nulls().to_list())
    if len(apart) < _RECURS:
        return False
    usual = apart[len(apart) // 2]
    return usual >= _STEP_NS and apart[-2] <= _EVEN * usual and apart[len(apart) // 10] >= usual / _EVEN


def _summed(spans: pl.DataFrame, operations: pl.DataFrame, late_ns: int) -> pl.DataFrame:
    """Return `spans` as steps: a rank's work in them is known from the time before each operation and beside it. An
    operation that ends at most `late_ns` after a step's end belongs to the step."""
    # from one synchronising operation to the next; a message between them repeats part of that
    rows = operations.filter((pl.col("end_ns") > 0) & pl.col("op").is_in(SYNCHRONISING)).sort("end_ns")
    starts = spans.select("rank", "step", "start_ns", "end_ns").sort("start_ns")
    worked = pl.col("before_compute_ns") + pl.col("beside_compute_ns")
    rows = rows.select("rank", "before_gap_ns", at=pl.col("end_ns") - late_ns, worked_ns=worked).join_asof(
        starts.rename({"end_ns": "to", "start_ns": "from"}),
        left_on="at",
        right_on="from",
        by="rank",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    sums = (
        rows.filter(pl.col("at") <= pl.col("to"))
        .group_by("rank", "step")
        .agg(compute_ns=pl.col("worked_ns").sum(), gap_ns=pl.col("before_gap_ns").sum())
    )
    span = pl.col("end_ns") - pl.col("start_ns")
    steps = spans.join(sums, on=["rank", "step"], how="left").with_columns(
        compute_ns=pl.min_horizontal(pl.col("compute_ns").fill_null(0), span)
    )
    steps = steps.with_columns(gap_ns=pl.min_horizontal(pl.col("gap_ns").fill_null(0), span - pl.col("compute_ns")))
    comm = span - pl.col("compute_ns") - pl.col("gap_ns")
    steps = steps.with_columns(comm_ns=comm, exposed_comm_ns=comm, loader_ns=-1, work_count=-1, launch_delay_ns=-1)
    return steps.select(pl.col(name).cast(dtype) for name, dtype in STEPS.items()).sort("rank", "step")
