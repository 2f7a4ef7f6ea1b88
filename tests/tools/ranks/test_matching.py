"""Which operation of one rank is which of another: against the truth of simulated jobs."""

from __future__ import annotations

import random

import polars as pl
import pytest
from rank_jobs import Fault, Plan, Simulated, simulate

from whystall.tools.ranks.job import MATCHED, Job, job_of
from whystall.tools.ranks.matching.operations import Matched, match

EXTRA = (Fault("compute", (0,), ms=10.0),)


def jobs(simulated: Simulated) -> Job:
    return job_of(simulated.recording)


def with_truth(matched: Matched, simulated: Simulated) -> pl.DataFrame:
    truth = simulated.truth.operations.select("rank", "start_ns", "end_ns", true="instance")
    return matched.frame.join(truth, on=["rank", "start_ns", "end_ns"], validate="1:1")


def wrong(matched: Matched, simulated: Simulated) -> int:
    """Instances that hold rows of several true operations."""
    both = with_truth(matched, simulated)
    assert both.height == matched.frame.height
    return both.group_by("instance").agg(pl.col("true").n_unique()).filter(pl.col("true") > 1).height


def possible(simulated: Simulated) -> int:
    """Rows that at least one other rank recorded too."""
    rows = simulated.truth.operations
    return rows.filter(pl.col("instance").is_duplicated()).height


WHOLE = {
    "numbered": Plan(),
    "numbered, some lost": Plan(lost=0.05, clock_ms=1e6),
    "by place in the step": Plan(has_seq=False),
    "some lost, all alike": Plan(has_seq=False, lost=0.05, equal_bytes=True, clock_ms=3.6e6),
    "no steps, clocks drift": Plan(
        has_seq=False, has_steps=False, lost=0.05, equal_bytes=True, clock_ms=3.6e6, drift_ppm=30.0, ragged=2
    ),
    "one group, not named": Plan(has_seq=False, groups="none"),
    "one group, not named, no steps": Plan(has_seq=False, has_steps=False, groups="none", lost=0.02, clock_ms=1e5),
    "one group listed": Plan(has_seq=False, groups="listed", end_jitter_us=300.0, overlap=True),
    "tensor groups without ranks": Plan(
        ranks=8, tensor=2, has_seq=False, groups="names", ragged=3, lost=0.03, clock_ms=1e6, drift_ppm=50.0
    ),
    "pipeline": Plan(ranks=8, stages=4, lost=0.03, clock_ms=1e5),
    "pipeline, no steps": Plan(ranks=8, stages=4, has_steps=False, has_seq=False, lost=0.02, clock_ms=1e5),
    "two ranks without a trace": Plan(missing=(0, 2)),
    "beside the work": Plan(overlap=True, device=False, lost=0.02, has_seq=False),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("seed", [1, 2])
def test_all_that_two_ranks_recorded_is_matched_and_nothing_wrongly(name: str, seed: int) -> None:
    simulated = simulate(Plan(**{**vars(WHOLE[name]), "seed": seed}))
    matched = match(jobs(simulated))
    assert wrong(matched, simulated) == 0
    assert matched.frame.schema == MATCHED
    assert matched.frame.height >= 0.97 * possible(simulated)
    counts = matched.counts
    left = ("alone", "mismatch", "ambiguous", "group_unknown", "unfinished", "single")
    assert counts["rows"] == counts["matched"] + sum(counts[why] for why in left)


THOROUGH = [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1020, 1060)]


def drawn(seed: int) -> Plan:
    """Any job at all, of the worst traces."""
    chance = random.Random(seed)
    ranks = chance.choice([2, 4, 8])
    tensor = chance.choice([1, 1, 2]) if ranks > 2 else 1
    return Plan(
        ranks=ranks,
        tensor=tensor,
        stages=chance.choice([1, 1, 2]) if ranks // tensor > 1 else 1,
        seed=seed,
        steps=chance.choice([6, 12]),
        layers=chance.choice([2, 4]),
        groups=chance.choice(["full", "names", "none", "listed"]),
        has_seq=chance.random() < 0.3,
        has_steps=chance.random() < 0.5,
        lost=chance.choice([0, 0.02, 0.1]),
        ragged=chance.choice([0, 0, 3]),
        clock_ms=chance.choice([0, 1, 1e6]),
        drift_ppm=chance.choice([0, 0, 50]),
        jitter=chance.choice([0.005, 0.02, 0.1]),
        equal_bytes=chance.random() < 0.5,
        overlap=chance.random() < 0.5,
        world_reduce=chance.random() < 0.3,
        end_jitter_us=chance.choice([8, 8, 200]),
        faults=EXTRA if chance.random() < 0.5 else (),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(1000, 1020), *THOROUGH])
def test_whatever_the_traces_lack_nothing_is_matched_wrongly(seed: int) -> None:
    simulated = simulate(drawn(seed))
    assert wrong(match(jobs(simulated)), simulated) == 0


def changed(job: Job, rows: pl.DataFrame) -> Job:
    return Job({**job.tables, "collectives": rows}, job.present, job.missing, job.world_size)


def test_the_same_number_of_different_operations_is_a_mismatch_and_no_match() -> None:
    job = jobs(simulate(Plan(steps=5)))
    every = job.table("collectives")
    odd = (pl.col("rank") == 2) & (pl.col("seq") == 7)
    for column, value in (("bytes", 99), ("op", "all_gather"), ("dtype", "float64")):
        other = pl.when(odd).then(pl.lit(value, dtype=every.schema[column])).otherwise(pl.col(column))
        matched = match(changed(job, every.with_columns(other.alias(column))))
        assert matched.counts["mismatch"] == 4
        assert matched.counts["operations"] == 5 * 4 - 1


def test_what_one_side_does_not_know_is_not_compared() -> None:
    job = jobs(simulate(Plan(steps=5)))
    rows = job.table("collectives").with_columns(
        bytes=pl.when(pl.col("rank") == 1).then(-1).otherwise("bytes"),
        dtype=pl.when(pl.col("rank") == 3).then(pl.lit("")).otherwise("dtype"),
    )
    assert match(changed(job, rows)).counts["matched"] == rows.height


def test_operations_under_one_number_are_distinguished_by_their_order() -> None:
    simulated = simulate(Plan(steps=5))
    job = jobs(simulated)
    rows = job.table("collectives").with_columns(seq=pl.col("seq") // 2)
    matched = match(changed(job, rows))
    assert matched.counts["matched"] == rows.height
    assert wrong(matched, simulated) == 0
    first = (pl.col("rank") == 1) & (pl.col("seq") == 3)
    lost = rows.filter(~(first & first.cum_sum().eq(1)))
    fewer = match(changed(job, lost))
    assert fewer.counts["mismatch"] == 7  # which of the two rank 1 has is not known
    assert wrong(fewer, simulated) == 0


def test_a_job_as_regular_as_a_clock_is_left_alone() -> None:
    """Shifted by a step, every end would fit as well."""
    regular = Plan(has_seq=False, has_steps=False, jitter=1e-6, ragged=2, clock_ms=100.0, end_jitter_us=8.0)
    matched = match(jobs(simulate(regular)))
    assert matched.frame.is_empty()
    assert matched.counts["ambiguous"] > 100


def test_operations_that_never_ended_are_not_matched() -> None:
    job = jobs(simulate(Plan(steps=5)))
    hung = pl.col("seq") == 19
    rows = job.table("collectives").with_columns(end_ns=pl.when(hung).then(0).otherwise("end_ns"))
    matched = match(changed(job, rows))
    assert matched.counts["unfinished"] == 4
    assert matched.counts["operations"] == 19


def test_groups_are_inferred_where_only_the_candidates_are_named() -> None:
    plan = Plan(ranks=8, tensor=2, has_seq=False, groups="listed", steps=24)
    simulated = simulate(plan)
    matched = match(jobs(simulated))
    assert wrong(matched, simulated) == 0
    assert matched.counts["inferred"] > 0.9 * matched.counts["rows"]
    assert set(matched.frame["size"].unique()) == {2, 4}
    pairs = matched.frame.filter(pl.col("size") == 2).group_by("instance").agg(pl.col("rank").sort())
    assert set(map(tuple, pairs["rank"].to_list())) == {(0, 1), (2, 3), (4, 5), (6, 7)}


def test_a_name_that_several_groups_share_is_no_identity() -> None:
    """Both tensor groups are called the same, of two ranks each, and number their operations alike."""
    simulated = simulate(Plan(ranks=4, tensor=2))
    job = jobs(simulated)
    small = pl.col("bytes") == 1 << 18
    rows = job.table("collectives").with_columns(group=pl.when(small).then(pl.lit("tp")).otherwise("group"))
    none = pl.lit([], dtype=pl.List(pl.Int32))
    tensor = pl.col("description").str.starts_with("TENSOR")
    groups = job.table("groups").with_columns(
        group=pl.when(tensor).then(pl.lit("tp")).otherwise("group"), ranks=pl.when(tensor).then(none).otherwise("ranks")
    )
    shared = Job({**job.tables, "collectives": rows, "groups": groups}, job.present, job.missing, job.world_size)
    matched = match(shared)
    assert wrong(matched, simulated) == 0


def test_without_collectives_there_is_nothing() -> None:
    matched = match(jobs(simulate(Plan(collectives=False))))
    assert matched.frame.is_empty()
    assert matched.frame.schema == MATCHED
    assert not any(matched.counts.values())


def test_ranks_without_a_trace_leave_operations_partial() -> None:
    matched = match(jobs(simulate(Plan(steps=5, missing=(1,)))))
    assert matched.counts["partial"] == matched.counts["operations"] == 20
    assert (matched.frame["size"] == 4).all()
    assert (matched.frame["present"] == 3).all()
