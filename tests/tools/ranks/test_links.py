"""Slow transfers by what equal ones take elsewhere: groups, pairs, and what a profiler measured itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import polars as pl
import pytest
from rank_jobs import Fault, Plan, simulate

from whystall.tools.ranks.analysis.analyse import analyse
from whystall.tools.ranks.job import Job, job_of
from whystall.tools.ranks.slow_node_check.links import Links, links
from whystall.tools.ranks.slow_node_check.tool import Params, judge
from whystall.tools.timeline.rank_data.tables import RANK_LINKS

STEP_NS = 50e6


def judged(job: Job) -> Links:
    seen = analyse(job)
    return links(job, seen.matched, seen.waits, STEP_NS)


def measured(job: Job, slow: frozenset[frozenset[int]], factor: float = 4.0, steps: int = 12) -> Job:
    """`job` whose profiler recorded every pair: 8 MB each in 1 ms, `factor` times that for `slow` pairs."""
    rows = [
        {"rank": source, "step": step, "source": source, "target": target, "transport": "HCCS", "bytes": 8_000_000}
        | {"transit_ns": int((1 + 0.01 * (step % 3)) * 1e6 * (factor if {source, target} in slow else 1))}
        for step in range(steps)
        for source, target in permutations(job.present, 2)
    ]
    return replace(job, tables={**job.tables, "links": pl.DataFrame(rows, schema=RANK_LINKS)})


def pairs_of(rank: int, ranks: int) -> frozenset[frozenset[int]]:
    return frozenset(frozenset((rank, other)) for other in range(ranks) if other != rank)


def test_the_rank_that_all_slow_pairs_share() -> None:
    found = judged(measured(job_of(simulate(Plan(ranks=8)).recording), pairs_of(5, 8)))
    assert found.compared
    assert found.suspects == (5,)
    slowest = found.rows[0]
    assert (slowest.group, slowest.op, slowest.bytes) == ("HCCS", "link", 8_000_000)
    assert slowest.ratio == pytest.approx(4, rel=0.05)
    assert slowest.gb_per_s == pytest.approx(2, rel=0.05)
    assert len(found.slow) == 14


def test_one_slow_pair_names_both_of_its_ends() -> None:
    found = judged(measured(job_of(simulate(Plan(ranks=4)).recording), frozenset({frozenset((1, 2))})))
    assert found.suspects == (1, 2)


def test_equal_pairs_and_different_bytes_are_no_slow_link() -> None:
    job = measured(job_of(simulate(Plan(ranks=4)).recording), frozenset())
    table = job.tables["links"].with_columns(
        # twice the bytes take twice as long
        bytes=pl.when(pl.col("source") == 1).then(2 * pl.col("bytes")).otherwise("bytes"),
        transit_ns=pl.when(pl.col("source") == 1).then(2 * pl.col("transit_ns")).otherwise("transit_ns"),
    )
    found = judged(replace(job, tables={**job.tables, "links": table}))
    assert found.compared
    assert (found.slow, found.suspects, found.cost_ns) == ([], (), 0.0)


def test_groups_are_compared_within_their_kind() -> None:
    found = judged(job_of(simulate(Plan(ranks=8, tensor=2, faults=(Fault("link", (3,), factor=6),))).recording))
    assert found.suspects == (3,)
    assert {row.ranks for row in found.slow} == {(2, 3), (1, 3, 5, 7)}
    assert {row.description for row in found.slow} == {"TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP"}


def test_a_slow_message_between_stages() -> None:
    plan = Plan(ranks=8, stages=2, faults=(Fault("transfer", (2, 6), factor=8),))
    found = judged(job_of(simulate(plan).recording))
    assert found.suspects == (2, 6)
    assert {row.op for row in found.slow} == {"send"}


def test_one_group_has_nothing_to_compare_with() -> None:
    found = judged(job_of(simulate(Plan(ranks=4, faults=(Fault("link", (2,), factor=6),))).recording))
    assert (found.compared, found.slow, found.suspects) == (False, [], ())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_even_groups_have_no_slow_link(seed: int) -> None:
    for plan in (Plan(ranks=8, tensor=2, seed=seed, jitter=0.2), Plan(ranks=8, stages=2, seed=seed, jitter=0.2)):
        found = judged(job_of(simulate(plan).recording))
        assert found.compared
        assert found.cost_ns < 0.1 * STEP_NS


def test_a_group_that_lost_its_name_is_still_of_its_kind() -> None:
    """An operation whose group was inferred from its ranks alone."""
    job = job_of(simulate(Plan(ranks=8, tensor=2, faults=(Fault("link", (3,), factor=6),))).recording)
    seen = analyse(job)
    unnamed = seen.matched.with_columns(group=pl.col("group").str.replace(r"^[^|]*\|2,3$", "|2,3"))
    assert unnamed.filter(pl.col("group") == "|2,3").height
    assert links(job, unnamed, seen.waits, STEP_NS).suspects == (3,)


def test_both_directions_of_a_pair_are_distinguished() -> None:
    rows = judge(simulate(Plan(ranks=4, stages=2)).recording, Params()).data.links
    assert {row.ranks for row in rows if row.op == "send"} == {"0 to 2", "2 to 0", "1 to 3", "3 to 1"}


def test_a_groups_row_names_its_members() -> None:
    rows = judge(simulate(Plan(ranks=8, tensor=2)).recording, Params()).data.links
    assert {"0-1", "0, 2, 4, 6"} <= {row.ranks for row in rows}
