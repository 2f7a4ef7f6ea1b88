"""Which ranks do the same work."""

from __future__ import annotations

import polars as pl
import pytest
from rank_jobs import Fault, Plan, simulate

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.ranks.analysis.analyse import analyse
from whystall.tools.ranks.analysis.peers import peers
from whystall.tools.ranks.job import MATCHED, Job, Peers, job_of
from whystall.tools.ranks.matching.operations import match

pytestmark = pytest.mark.thorough


def found(plan: Plan, stages: str = "") -> list[Peers]:
    job = job_of(simulate(plan).recording)
    return peers(job, match(job).frame, stages)


def sets(of: list[Peers]) -> list[tuple[int, ...]]:
    return [one.ranks for one in of]


def without_names(job: Job) -> Job:
    groups = job.table("groups").with_columns(description=pl.lit(""))
    return Job({**job.tables, "groups": groups}, job.present, job.missing, job.world_size)


def test_data_parallel_ranks_are_all_alike() -> None:
    assert found(Plan()) == [Peers("all", (0, 1, 2, 3), "all")]
    assert sets(found(Plan(ranks=8, tensor=2, world_reduce=True))) == [tuple(range(8))]
    assert sets(found(Plan(collectives=False))) == [(0, 1, 2, 3)]
    assert sets(found(Plan(missing=(1,)))) == [(0, 2, 3)]


def test_a_rank_that_is_slow_or_computes_more_is_still_a_peer() -> None:
    assert sets(found(Plan(faults=(Fault("compute", (2,), ms=50.0), Fault("loader", (1,), ms=50.0))))) == [(0, 1, 2, 3)]


@pytest.mark.parametrize("plan", [Plan(ranks=8, stages=2), Plan(ranks=16, stages=2, tensor=2, world_reduce=True)])
def test_stages_are_found_by_the_names_of_groups_and_by_messages(plan: Plan) -> None:
    half = plan.ranks // 2
    expected = [tuple(range(half)), tuple(range(half, plan.ranks))]
    job = job_of(simulate(plan).recording)
    by_name = peers(job, match(job).frame)
    assert sets(by_name) == expected
    assert {one.how for one in by_name} == {"groups"}
    plain = without_names(job)
    by_message = peers(plain, match(plain).frame)
    assert sets(by_message) == expected
    assert {one.how for one in by_message} == {"pipeline"}


def test_stages_of_one_rank_each() -> None:
    assert sets(found(Plan(ranks=4, stages=4))) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("name", ["mesh_pp", "pp", "PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"])
def test_names_of_pipelines(name: str) -> None:
    assert [one.how for one in analyse(renamed(name)).peers] == ["groups"] * 2


@pytest.mark.parametrize(
    "name", ["mesh_dp", "DATA_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP", "dp_cp", "app", "upper"]
)
def test_other_names_are_no_pipelines(name: str) -> None:
    job = renamed(name)
    rows = job.table("collectives").filter(pl.col("peer") < 0)
    silent = Job({**job.tables, "collectives": rows}, job.present, job.missing, job.world_size)
    assert [one.how for one in analyse(silent).peers] == ["all"]


def renamed(name: str) -> Job:
    job = job_of(simulate(Plan(ranks=8, stages=2)).recording)
    pipeline = pl.col("description").str.starts_with("PIPELINE")
    groups = job.table("groups").with_columns(
        description=pl.when(pipeline).then(pl.lit(name)).otherwise(pl.lit("other"))
    )
    return Job({**job.tables, "groups": groups}, job.present, job.missing, job.world_size)


def test_a_ring_of_messages_is_no_pipeline() -> None:
    """Context parallelism: each passes on to the next, all do the same."""
    job = job_of(simulate(Plan(steps=2)).recording)
    one = job.table("collectives").head(1)
    ring = pl.concat(
        [
            one.with_columns(rank=pl.lit(rank, pl.Int32), op=pl.lit("send"), peer=pl.lit((rank + 1) % 4, pl.Int32))
            for rank in range(4)
        ]
    )
    job = Job({**job.tables, "collectives": ring}, job.present, job.missing, job.world_size)
    assert sets(peers(job, MATCHED.to_frame())) == [(0, 1, 2, 3)]
    chain = ring.filter(pl.col("rank") < 3)
    job = Job({**job.tables, "collectives": chain, "groups": job.table("groups").clear()}, job.present, (), 4)
    assert sets(peers(job, MATCHED.to_frame())) == [(0,), (1,), (2,), (3,)]


def test_a_message_beside_gradients_that_all_share_makes_no_stages() -> None:
    """A data-parallel job in which one rank sends another a message each step."""
    job = job_of(simulate(Plan(steps=2)).recording)
    rows = job.table("collectives")
    recorded = rows.head(1).with_columns(rank=pl.lit(0, pl.Int32), op=pl.lit("send"), peer=pl.lit(1, pl.Int32))

    def with_message(size: int) -> list[tuple[int, ...]]:
        more = pl.concat([rows, recorded.with_columns(bytes=pl.lit(size, pl.Int64))])
        talking = Job({**job.tables, "collectives": more}, job.present, job.missing, job.world_size)
        return sets(peers(talking, match(talking).frame))

    assert with_message(4000) == [(0, 1, 2, 3)]
    assert len(with_message(1 << 40)) > 1


def test_ranks_with_other_operators_are_no_peers() -> None:
    job = job_of(simulate(Plan()).recording)
    operators = job.table("operators").with_columns(
        name=pl.when(pl.col("rank") == 3).then(pl.format("evaluation_{}", "name")).otherwise("name")
    )
    job = Job({**job.tables, "operators": operators}, job.present, job.missing, job.world_size)
    assert peers(job, MATCHED.to_frame()) == [
        Peers("all 0", (0, 1, 2), "operators"),
        Peers("all 1", (3,), "operators"),
    ]


def test_what_the_user_gives_goes_first() -> None:
    assert found(Plan(ranks=8, stages=2), "0-1,2-3") == [
        Peers("0", (0, 1), "asked"),
        Peers("1", (2, 3), "asked"),
        Peers("rest", (4, 5, 6, 7), "asked"),
    ]
    assert sets(found(Plan(), " 0+2 , 1+3 ")) == [(0, 2), (1, 3)]
    assert sets(found(Plan(missing=(1,)), "0-1,2-3")) == [(0,), (2, 3)]


@pytest.mark.parametrize("stages", ["0-1,1-2", "a", "3-1", "0-", "-1", ",", "0-99999999999", "0;1", "<b>"])
def test_stages_that_cannot_be_read_are_refused(stages: str) -> None:
    with pytest.raises(ToolError) as refused:
        found(Plan(steps=2), stages)
    assert refused.value.code == ErrorCode.BAD_ARGUMENT
    assert "\n" not in str(refused.value)
