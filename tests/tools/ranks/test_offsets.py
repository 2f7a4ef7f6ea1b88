"""Clocks of ranks, against those the simulated jobs were given."""

from __future__ import annotations

import statistics

import polars as pl
import pytest
from rank_jobs import MS, Fault, Plan, simulate

from whystall.tools.ranks.job import MATCHED, Clocks, job_of
from whystall.tools.ranks.matching.clock_offsets import estimate
from whystall.tools.ranks.matching.operations import match

pytestmark = pytest.mark.thorough

US = 1000
HOURS = 3.6e6


def error_ns(plan: Plan) -> tuple[dict[int, int], Clocks]:
    """How far each rank's clock is from where it should be, beside the median rank's."""
    simulated = simulate(plan)
    clocks = estimate(match(job_of(simulated.recording)).frame)
    errors = {rank: offset - simulated.truth.offset_ns[rank] for rank, offset in clocks.offset_ns.items()}
    middle = statistics.median_low(errors.values())
    return {rank: error - middle for rank, error in errors.items()}, clocks


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(clock_ms=2 * HOURS),
        Plan(clock_ms=HOURS, lost=0.1, faults=(Fault("compute", (1,), ms=30.0),)),
        Plan(clock_ms=HOURS, missing=(0,)),
        # ranks that share no group are linked through those that do
        Plan(ranks=16, tensor=4, clock_ms=HOURS, lost=0.03),
        Plan(ranks=16, tensor=2, stages=2, world_reduce=True, clock_ms=HOURS),
        Plan(clock_ms=HOURS, has_seq=False, has_steps=False, equal_bytes=True),
    ],
)
def test_clocks_hours_apart_are_found_within_microseconds(plan: Plan, seed: int) -> None:
    errors, clocks = error_ns(Plan(**{**vars(plan), "seed": seed}))
    assert set(errors) == set(range(plan.ranks)) - set(plan.missing)
    assert max(map(abs, errors.values())) < 20 * US
    assert max(clocks.residual_ns.values()) < 10 * US
    assert clocks.spread_ns == max(clocks.offset_ns.values()) - min(clocks.offset_ns.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stages_that_share_only_messages_are_linked_within_the_residual(seed: int) -> None:
    errors, clocks = error_ns(Plan(ranks=8, stages=4, clock_ms=HOURS, seed=seed))
    assert set(errors) == set(range(8))
    for rank, error in errors.items():
        assert abs(error) < 20 * US + 2 * clocks.residual_ns[rank]


def test_a_clock_that_runs_at_another_speed_is_corrected() -> None:
    plan = Plan(drift_ppm=100.0, steps=40, clock_ms=HOURS)
    simulated = simulate(plan)
    matched = match(job_of(simulated.recording)).frame
    clocks = estimate(matched)
    assert clocks.drift
    assert max(clocks.residual_ns.values()) < 10 * US
    ends = matched.with_columns(at=clocks.common("end_ns")).group_by("instance")
    spread = ends.agg(spread=pl.col("at").max() - pl.col("at").min())["spread"]
    assert spread.max() < 100 * US  # 100 ppm of 2 s would be 200
    back = matched.with_columns(at=clocks.common("end_ns")).with_columns(again=clocks.local("at"))
    assert (back["again"] - back["end_ns"]).abs().max() <= 2


def test_a_clock_that_jumps_shows_in_the_residual() -> None:
    matched = match(job_of(simulate(Plan(steps=40)).recording)).frame
    middle = matched["end_ns"].median()
    jump = pl.when((pl.col("rank") == 2) & (pl.col("end_ns") > middle)).then(5 * MS).otherwise(0)
    clocks = estimate(matched.with_columns(end_ns=pl.col("end_ns") + jump))
    assert clocks.residual_ns[2] > 0.5 * MS
    assert clocks.residual_ns[1] < 0.1 * MS


def test_ends_that_scatter_show_in_the_residual() -> None:
    _, clocks = error_ns(Plan(end_jitter_us=2000.0))
    assert all(200 * US < residual < 2000 * US for residual in clocks.residual_ns.values())


def test_the_larger_part_is_kept_where_nothing_links_the_parts() -> None:
    job = job_of(simulate(Plan(ranks=6, tensor=1)).recording)
    matched = match(job).frame
    apart = matched.with_columns(
        group=pl.when(pl.col("rank") < 2).then(pl.lit("a")).otherwise(pl.lit("b")),
        instance=2 * pl.col("instance") + (pl.col("rank") < 2),
    )
    clocks = estimate(apart)
    assert set(clocks.offset_ns) == {2, 3, 4, 5}
    assert apart.select(clocks.common("end_ns").is_null().alias("unknown"), "rank").filter("unknown")[
        "rank"
    ].unique().sort().to_list() == [0, 1]


def test_one_way_messages_alone_tell_no_clock() -> None:
    matched = match(job_of(simulate(Plan(ranks=2, stages=2)).recording)).frame
    forth = matched.filter(
        (pl.col("op") == "send") & (pl.col("rank") == 0) | (pl.col("op") == "recv") & (pl.col("rank") == 1)
    )
    assert forth.height > 100
    assert estimate(forth) == Clocks({}, {}, 0)
    assert estimate(MATCHED.to_frame()) == Clocks({}, {}, 0)
