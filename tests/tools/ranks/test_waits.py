"""Waits, own times and stand-in steps, against the truth of simulated jobs."""

from __future__ import annotations

import polars as pl
import pytest
from rank_jobs import MS, Fault, Plan, Simulated, simulate

from whystall.tools.ranks.analysis.analyse import JobAnalysis, analyse
from whystall.tools.ranks.analysis.waits import wait_matrix, waits
from whystall.tools.ranks.job import OWN, WAITS, Clocks, job_of
from whystall.tools.ranks.matching.clock_offsets import estimate
from whystall.tools.ranks.matching.operations import match
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

US = 1000
SLOW = (Fault("compute", (2,), ms=8.0),)


def looked(plan: Plan) -> tuple[JobAnalysis, Simulated]:
    simulated = simulate(plan)
    return analyse(job_of(simulated.recording)), simulated


def true_waits(found: JobAnalysis, simulated: Simulated) -> pl.DataFrame:
    """The waits that were found, each beside the true one."""
    rows = found.matched.select("instance", "rank", "start_ns", "end_ns").join(
        simulated.truth.operations.select("rank", "start_ns", "end_ns", true="wait_ns"),
        on=["rank", "start_ns", "end_ns"],
    )
    return found.waits.join(rows, on=["instance", "rank"])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(faults=SLOW),
        Plan(device=False, overlap=True, faults=SLOW, clock_ms=1e6),
        Plan(ranks=8, tensor=2, world_reduce=True, faults=SLOW, clock_ms=1e6, drift_ppm=20.0),
        Plan(ranks=8, stages=2, tensor=2, world_reduce=True, faults=SLOW, clock_ms=1e6),
    ],
)
def test_each_wait_is_the_true_one_within_what_ends_scatter(plan: Plan, seed: int) -> None:
    found, simulated = looked(Plan(**{**vars(plan), "seed": seed}))
    assert found.waits.schema == WAITS
    both = true_waits(found, simulated)
    assert both.height == found.waits.height > 100
    assert (both["wait_ns"] - both["true"]).abs().max() < 50 * US
    # the last is a rank that arrived last, or as good as
    last = both.filter(pl.col("rank") == pl.col("last"))
    assert last["true"].max() < 20 * US


def test_waits_need_no_common_clock_but_those_for_a_sender_do() -> None:
    simulated = simulate(Plan(ranks=4, stages=2, clock_ms=1e6))
    matched = match(job_of(simulated.recording)).frame
    none = Clocks({}, {}, 0)
    assert set(waits(matched, none)["op"].unique()) == {"all_reduce"}
    clocks = estimate(matched)
    recorded = waits(matched, clocks).filter(pl.col("op") == "recv")
    assert set(recorded["last"].unique()) == {0, 1, 2, 3}
    # nothing is claimed below the residual
    blurred = Clocks(clocks.offset_ns, dict.fromkeys(clocks.offset_ns, MS), 1, clocks.drift, clocks.origin_ns)
    few = waits(matched, blurred).filter((pl.col("op") == "recv") & (pl.col("wait_ns") > 0))
    assert few["wait_ns"].min() > 2 * MS
    assert 0 < few.height < recorded.filter(pl.col("wait_ns") > 0).height


def test_where_a_rank_lost_an_operation_the_others_waited_at_least_so_long() -> None:
    found, simulated = looked(Plan(lost=0.1, has_seq=False, faults=SLOW))
    whole = found.matched.filter(pl.col("present") == pl.col("size"))["instance"].unique()
    both = true_waits(found, simulated).with_columns(whole=pl.col("instance").is_in(whole.implode()))
    assert (both["wait_ns"] - both["true"]).max() < 50 * US
    exact = both.filter("whole")
    assert 0 < exact.height < both.height
    assert (exact["wait_ns"] - exact["true"]).abs().max() < 50 * US


def test_ranks_without_a_trace_do_not_keep_the_others_from_being_compared() -> None:
    found, _ = looked(Plan(missing=(0,), faults=SLOW))
    assert found.waits["instance"].n_unique() == found.counts["operations"] == found.counts["partial"]
    assert found.waits.group_by("last").len().sort("len")["last"].to_list()[-1] == 2


def by_rank(own: pl.DataFrame) -> dict[int, float]:
    return dict(own.group_by("rank").agg(pl.col("own_ns").mean() / MS).iter_rows())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(faults=SLOW),
        Plan(ranks=8, tensor=2, clock_ms=1e6, faults=(Fault("gap", (3,), ms=8.0),)),
        Plan(ranks=8, stages=4, ends_differ=True, clock_ms=1e5, faults=(Fault("compute", (5,), ms=8.0),)),
        Plan(ranks=8, stages=2, tensor=2, world_reduce=True, stage_factor={1: 1.5}),
        Plan(collectives=False, faults=SLOW),
    ],
)
def test_a_steps_own_time_is_the_true_one(plan: Plan, seed: int) -> None:
    found, simulated = looked(Plan(**{**vars(plan), "seed": seed}))
    assert found.own.schema == OWN
    assert not found.derived
    assert found.own.height == plan.ranks * plan.steps
    for row in found.own.iter_rows(named=True):
        assert row["own_ns"] == pytest.approx(simulated.truth.own_ns[row["rank"], row["step"]], abs=0.3 * MS)
        assert row["own_ns"] + row["wait_ns"] == row["step_ns"]


def test_waits_that_work_hides_are_not_counted_as_lost() -> None:
    """All of communication that no work hides bounds them: own time is too short by at most exposed transfers."""
    plan = Plan(overlap=True, faults=SLOW)
    found, simulated = looked(plan)
    for row in found.own.iter_rows(named=True):
        true = simulated.truth.own_ns[row["rank"], row["step"]]
        assert true - 2 * plan.transfer_ms * MS - 0.5 * MS <= row["own_ns"] <= true + 0.5 * MS
    hidden = found.waits.group_by("rank").agg(pl.col("wait_ns").sum())
    total = found.own.group_by("rank").agg(counted=pl.col("wait_ns").sum())
    both = hidden.join(total, on="rank").filter(pl.col("rank") != 2)
    assert (both["wait_ns"] > 2 * both["counted"]).all()


def test_only_steps_that_all_ranks_have() -> None:
    found, _ = looked(Plan(ragged=3, seed=4))
    ranges = found.job.table("steps").group_by("rank").agg(first=pl.col("step").min(), last=pl.col("step").max())
    assert ranges["first"].n_unique() > 1
    common = set(range(ranges["first"].max(), ranges["last"].min() + 1))
    assert set(found.own["step"].unique()) == common
    assert found.own.height == 4 * len(common)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(faults=SLOW),
        Plan(faults=SLOW, clock_ms=1e6, drift_ppm=20.0, lost=0.03),
        Plan(overlap=True, faults=SLOW, clock_ms=1e6),
        Plan(ranks=8, tensor=2, faults=SLOW, clock_ms=1e6),
        Plan(ranks=8, stages=2, world_reduce=True, faults=SLOW, clock_ms=1e6),
    ],
)
def test_without_steps_equal_runs_of_operations_stand_in(plan: Plan) -> None:
    without = Plan(**{**vars(plan), "has_steps": False})
    found, _ = looked(without)
    recorded, _ = looked(plan)
    assert found.derived
    assert 0.8 * plan.steps <= found.own["step"].n_unique() <= plan.steps
    assert found.own.group_by("step").len()["len"].unique().to_list() == [plan.ranks]
    own_rows, expected_side = by_rank(found.own), by_rank(recorded.own)
    for rank in own_rows:
        assert own_rows[rank] == pytest.approx(expected_side[rank], rel=0.15)
    assert max(own_rows, key=lambda rank: own_rows[rank]) == 2
    # operations are counted to them too
    assert set(found.waits["step"].unique()) - {-1} <= set(found.own["step"].unique())
    assert found.waits.filter(pl.col("step") >= 0).height > 0.8 * found.waits.height
    sums = found.own["compute_ns"] + found.own["gap_ns"] + found.own["exposed_comm_ns"]
    assert (sums - found.own["step_ns"]).abs().max() < MS


def accumulating(recording: Recording) -> Recording:
    """`recording` with two steps of the profiler for each of its own; ranks meet in the second only."""
    frames = recording.tables()
    steps = frames["ranks.steps"]
    middle = (pl.col("start_ns") + pl.col("end_ns")) // 2
    sums = ["compute_ns", "comm_ns", "exposed_comm_ns", "gap_ns", "loader_ns", "work_count"]
    first = steps.with_columns(pl.col("step") * 2, pl.col(sums) // 3, end_ns=middle - 1000)
    # the host took a microsecond between them, which is of no step
    gap = pl.col("gap_ns") - pl.col("gap_ns") // 3 - 1000
    rest = [pl.col(name) - pl.col(name) // 3 for name in sums if name != "gap_ns"]
    second = steps.with_columns(pl.col("step") * 2 + 1, *rest, start_ns=middle, gap_ns=gap)
    frames["ranks.steps"] = pl.concat([first, second])
    frames["ranks.collectives"] = frames["ranks.collectives"].with_columns(pl.col("step") * 2 + 1)
    return Recording.in_memory(recording.manifest, frames)


def test_steps_in_which_no_ranks_meet_are_part_of_the_next() -> None:
    """Gradient accumulation: who leads in one step waits in another."""
    simulated = simulate(Plan(faults=SLOW, clock_ms=1e6))
    recorded, found = (analyse(job_of(one)) for one in (simulated.recording, accumulating(simulated.recording)))
    assert not found.derived
    assert found.own.with_columns((pl.col("step") - 1) // 2).equals(recorded.own)


def test_steps_are_not_joined_over_one_that_is_missing_or_where_no_ranks_meet() -> None:
    halves = accumulating(simulate(Plan(steps=6)).recording)
    frames = halves.tables()
    frames["ranks.steps"] = frames["ranks.steps"].filter(pl.col("step") != 5)
    own = analyse(job_of(Recording.in_memory(halves.manifest, frames))).own
    assert own["step"].unique().sort().to_list() == [1, 3, 7, 9, 11]
    frames["ranks.collectives"] = frames["ranks.collectives"].clear()
    assert analyse(job_of(Recording.in_memory(halves.manifest, frames))).own["step"].n_unique() == 11


def test_work_beside_operations_is_work_without_steps_too() -> None:
    """Else waits that it hides would be counted as lost, and a slow rank would cost a multiple of what it does."""
    plan = Plan(overlap=True, faults=SLOW)
    found, _ = looked(Plan(**{**vars(plan), "has_steps": False}))
    assert found.derived
    work = found.own.with_columns(own_ns=pl.col("compute_ns") + pl.col("gap_ns"))
    by_waits, by_work = (
        ranks[2] - max(ranks[rank] for rank in (0, 1, 3)) for ranks in (by_rank(found.own), by_rank(work))
    )
    assert by_work == pytest.approx(8, rel=0.1)
    assert 7.2 <= by_waits <= 8.8 + plan.layers * plan.transfer_ms
    # the operation that ends a step is this step's on all ranks, though some leave it microseconds later
    (spread,) = work.filter(pl.col("rank") == 2).select(pl.col("compute_ns").std() / pl.col("compute_ns").mean()).row(0)
    assert spread < 0.03


def test_operations_that_are_all_alike_are_taken_in_equal_rounds() -> None:
    found, _ = looked(Plan(has_steps=False, equal_bytes=True, steps=20))
    assert found.own["step"].n_unique() == 80 // 8 - 1


def test_without_steps_and_operations_there_is_no_own_time() -> None:
    found, _ = looked(Plan(collectives=False, has_steps=False))
    assert found.own.is_empty()
    assert found.waits.is_empty()


def test_the_matrix_shows_who_waited_for_whom() -> None:
    found, _ = looked(Plan(faults=SLOW))
    matrix = wait_matrix(found.awaited)
    assert matrix.columns == ["waiter", "last", "wait_ns"]
    assert (matrix["waiter"] != matrix["last"]).all()
    of_slow = matrix.filter(pl.col("last") == 2)
    assert of_slow["waiter"].to_list() == [0, 1, 3]
    assert of_slow["wait_ns"].min() > 20 * 7 * MS
    assert matrix["wait_ns"].sum() == found.waits["wait_ns"].sum()
