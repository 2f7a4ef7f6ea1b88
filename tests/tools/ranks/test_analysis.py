"""Everything derived from a job at once: of recorded jobs of real ranks, and of jobs at the edge."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from rank_jobs import Plan, simulate

from whystall.tools.ranks.analysis.analyse import JobAnalysis, analyse
from whystall.tools.ranks.job import MATCHED, OWN, WAITS, Job, job_of
from whystall.tools.ranks.traces.gather import gather

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).parents[2] / "recorded" / "ranks"
ROWS_AND_COLUMNS = {(0, 1), (2, 3), (0, 2), (1, 3)}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def recorded(variant: str) -> JobAnalysis:
    return analyse(job_of(gather(RECORDED / variant, jobs=1)))


def members(found: JobAnalysis) -> set[tuple[int, ...]]:
    together = found.matched.filter(pl.col("op") == "all_reduce")
    sets = together.group_by("instance").agg(pl.col("rank").sort())["rank"]
    return {tuple(ranks) for ranks in sets.to_list()}


@pytest.mark.parametrize("variant", ["nothing", "compute", "loader_workers", "moving", "quota"])
def test_real_ranks_of_one_group(variant: str) -> None:
    found = recorded(variant)
    assert found.counts["matched"] == found.counts["rows"] > 90
    assert members(found) == {(0, 1, 2, 3)}
    assert [one.ranks for one in found.peers] == [(0, 1, 2, 3)]
    assert not found.derived
    assert max(found.clocks.residual_ns.values()) < 5_000_000
    assert (found.own["own_ns"] > 0).all()


@pytest.mark.parametrize("variant", ["nothing_mesh", "link_mesh"])
def test_real_ranks_in_rows_and_columns_whose_groups_the_traces_do_not_tell(variant: str) -> None:
    found = recorded(variant)
    assert members(found) == ROWS_AND_COLUMNS
    assert found.counts["matched"] >= 0.95 * found.counts["rows"]
    assert [one.ranks for one in found.peers] == [(0, 1, 2, 3)]


@pytest.mark.parametrize("variant", ["nothing_stages", "layers"])
def test_real_stages(variant: str) -> None:
    found = recorded(variant)
    assert members(found) == {(0, 1), (2, 3)}
    assert found.counts["matched"] >= 0.95 * found.counts["rows"]
    assert [one.ranks for one in found.peers] == [(0, 1), (2, 3)]
    assert set(found.clocks.offset_ns) == {0, 1, 2, 3}


def test_a_job_of_nothing() -> None:
    job = job_of(simulate(Plan(steps=2)).recording)
    empty = Job({name: frame.clear() for name, frame in job.tables.items()}, (), (), 0)
    found = analyse(empty)
    assert (found.matched.schema, found.waits.schema, found.own.schema) == (MATCHED, WAITS, OWN)
    assert found.matched.is_empty()
    assert found.own.is_empty()


def test_one_rank_alone() -> None:
    found = analyse(job_of(simulate(Plan(missing=(0, 1, 3))).recording))
    assert found.matched.is_empty()
    assert found.counts["alone"] == found.counts["rows"] == 80
    assert found.own["rank"].unique().to_list() == [2]
    assert (found.own["wait_ns"] == 0).all()


def test_the_same_job_looks_the_same_twice() -> None:
    plan = Plan(ranks=8, tensor=2, has_seq=False, groups="listed", lost=0.02, clock_ms=1e5)
    job = job_of(simulate(plan).recording)
    one, two = analyse(job), analyse(job)
    assert one.matched.equals(two.matched)
    assert one.waits.equals(two.waits)
    assert one.own.equals(two.own)
    assert one.clocks == two.clocks
