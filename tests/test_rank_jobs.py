"""The simulated jobs are consistent: what all other tests of ranks lean on."""

from __future__ import annotations

import polars as pl
import pytest
from rank_jobs import MS, Fault, Plan, simulate

from whystall.tools.timeline.rank_data.tables import TABLES

PLANS = [
    Plan(),
    Plan(device=False, overlap=True, clock_ms=100.0),
    Plan(ranks=8, tensor=2, world_reduce=True),
    Plan(ranks=8, stages=2, tensor=2, microbatches=3, ends_differ=True),
    Plan(ranks=8, stages=4, ragged=2, lost=0.02, drift_ppm=20.0),
    Plan(collectives=False),
    Plan(has_steps=False, has_seq=False, groups="none", missing=(1,)),
]


@pytest.mark.parametrize("plan", PLANS)
def test_the_tables_are_whole_and_add_up(plan: Plan) -> None:
    job = simulate(plan)
    for name, schema in TABLES.items():
        frame = job.recording.table(f"ranks.{name}")
        assert frame.schema == schema
        assert not any(frame.null_count().row(0))
    steps = job.recording.table("ranks.steps").with_columns(span=pl.col("end_ns") - pl.col("start_ns"))
    assert steps.filter(pl.col("span") <= 0).is_empty()
    left = steps["span"] - steps["compute_ns"] - steps["exposed_comm_ns"] - steps["gap_ns"]
    assert left.abs().max() <= 0.0001 * steps["span"].max() + 8  # roundings, and drift
    rows = job.recording.table("ranks.collectives")
    assert (rows["before_compute_ns"] + rows["before_gap_ns"] <= rows["before_ns"] + 8).all()
    assert rows.height == job.truth.operations.height


@pytest.mark.parametrize("plan", PLANS[:4])
def test_the_last_to_arrive_has_the_shortest_and_all_leave_together(plan: Plan) -> None:
    truth = simulate(plan).truth
    rows = truth.operations.with_columns(
        end_ns=pl.col("end_ns") - pl.col("rank").replace_strict(truth.offset_ns, return_dtype=pl.Int64)
    )
    by = rows.group_by("instance").agg(spread=pl.col("end_ns").max() - pl.col("end_ns").min())
    assert by["spread"].max() <= plan.end_jitter_us * 1000 + 10
    last = rows.filter(pl.col("wait_ns") == 0)
    assert last["instance"].n_unique() == rows["instance"].n_unique()


def test_extra_compute_slows_all_ranks_and_is_one_ranks_own() -> None:
    slow = simulate(Plan(faults=(Fault("compute", (2,), ms=20.0, since=10),)))
    steps = slow.recording.table("ranks.steps").with_columns(span=pl.col("end_ns") - pl.col("start_ns"))
    for rank in range(4):
        mine = steps.filter(pl.col("rank") == rank)["span"]
        assert mine[15] - mine[5] == pytest.approx(20 * MS, rel=0.2)
        grown = slow.truth.own_ns[rank, 15] - slow.truth.own_ns[rank, 5]
        assert grown == pytest.approx(20 * MS if rank == 2 else 0, abs=4 * MS)
    assert slow.truth.accused == {2: "compute_slow"}


def test_ranks_take_turns() -> None:
    fault = Fault("gap", (0, 3), ms=5.0, every=2)
    assert [fault.hits(0, step) for step in range(5)] == [True, True, False, False, True]
    assert [fault.hits(3, step) for step in range(5)] == [False, False, True, True, False]


def test_the_same_seed_gives_the_same_job() -> None:
    first, second = (simulate(Plan(seed=5, lost=0.1)).recording for _ in range(2))
    assert first.table("ranks.collectives").equals(second.table("ranks.collectives"))
    assert not first.table("ranks.collectives").equals(simulate(Plan(seed=6)).recording.table("ranks.collectives"))
