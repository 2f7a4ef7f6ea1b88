"""slow_node_check on simulated jobs: the right verdict, ranks and classes, and no rank accused wrongly."""

from __future__ import annotations

import random
from typing import Any, Literal

import polars as pl
import pytest
from rank_jobs import LOADER, Fault, Plan, simulate

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity, Severity
from whystall.tools.contract.kinds import Mechanism
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import BLIND_SPOTS, BlindSpot, Status
from whystall.tools.ranks.analysis.analyse import JobAnalysis
from whystall.tools.ranks.slow_node_check import outcome, votes
from whystall.tools.ranks.slow_node_check.tables import AccusedRow, Data
from whystall.tools.ranks.slow_node_check.tool import TOOL, Params, judge
from whystall.tools.recording.judging import judge as envelope
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.tables import OPERATORS

EXTRA_MS = 20.0


def check(plan: Plan, **params: Any) -> Judgement[Data]:
    return judge(simulate(plan).recording, Params(top=200, **params))


def classes(data: Data) -> dict[int, str]:
    return {row.rank: row.slow_class for row in data.accused}


def plan(ranks: int, seed: int = 1, **recorded: Any) -> Plan:
    return Plan(ranks=ranks, seed=seed, **recorded)


def one(kind: Any, rank: int = 1, ms: float = EXTRA_MS, **recorded: Any) -> tuple[Fault, ...]:
    return (Fault(kind, (rank,), ms=ms, **recorded),)


RANKS = (2, 3, 4, 8, 16)
FAULTS: dict[str, dict[str, Any]] = {
    "compute": {"faults": one("compute")},
    "small": {"faults": one("compute", ms=9)},
    "gap": {"faults": one("gap")},
    "loader": {"faults": one("loader")},
    "host without a device": {"device": False, "faults": one("gap")},
    "overlapped gradients": {"overlap": True, "faults": one("compute")},
    "clocks hours apart": {"clock_ms": 5e6, "drift_ppm": 20, "faults": one("compute")},
    "lost operations": {"lost": 0.02, "faults": one("loader")},
    "lost operations without numbers": {"lost": 0.02, "has_seq": False, "faults": one("loader")},
    "no steps": {"has_steps": False, "faults": one("compute")},
    "heavy jitter": {"jitter": 0.3, "faults": one("compute")},
    "captures that begin apart": {"ragged": 2, "faults": one("gap")},
}


CASES = [
    pytest.param(
        plan(ranks, seed=ranks, **recorded),
        id=f"{name}-{ranks}",
        marks=() if name == "compute" or ranks in (3, 8) else pytest.mark.thorough,
    )
    for name, recorded in FAULTS.items()
    for ranks in RANKS
]


@pytest.mark.thorough
@pytest.mark.parametrize("job", CASES)
def test_one_slow_rank_gets_its_verdict_and_class(job: Plan) -> None:
    simulated = simulate(job)
    data = judge(simulated.recording, Params(top=200)).data
    assert data.verdict == "rank", data.reasons
    assert classes(data) == dict(simulated.truth.accused)
    (row,) = data.accused
    assert row.began_step is None
    # what stands in for steps may hold several; the slowest innocent one of a step is slow itself where all jitter
    if job.has_steps:
        assert row.lost_ms_per_step == pytest.approx(job.faults[0].ms, rel=0.5 if job.jitter > 0.1 else 0.25)
    assert row.of_step_pct == pytest.approx(100 * row.lost_ms_per_step / (data.step_ms or 0), rel=0.1)
    if not (job.lost or job.ragged):
        sure = row.p_value is not None and row.p_value < votes.SURE
        assert row.confidence == ("low" if not sure else "high" if row.of_step_pct >= 20 else "medium")
        assert sure or job.jitter > 0.1


def test_one_slow_rank_of_64() -> None:
    data = check(plan(64, faults=one("compute", 37))).data
    assert (data.verdict, classes(data)) == ("rank", {37: "compute_slow"})


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("jitter", [0.02, 0.1, 0.3])
def test_a_healthy_job_accuses_no_rank(ranks: int, jitter: float) -> None:
    for seed in range(5 if ranks < 16 else 2):
        result = check(plan(ranks, seed, jitter=jitter))
        assert result.data.verdict in (("none",) if jitter < 0.3 else ("none", "cannot_tell"))
        assert not [f for f in result.findings if f.polarity is Polarity.ABNORMAL]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "recorded",
    [
        {"overlap": True, "jitter": 0.3},
        {"device": False, "end_jitter_us": 2000.0},
        {"tensor": 2, "jitter": 0.2},
        {"stages": 2, "jitter": 0.2},
        {"lost": 0.05, "has_seq": False},
        {"collectives": False, "jitter": 0.3},
        {"missing": (1,)},
    ],
)
def test_healthy_jobs_of_all_shapes_accuse_no_rank(recorded: dict[str, Any]) -> None:
    for seed in range(8):
        data = check(plan(8, seed, **recorded)).data
        assert data.verdict in ("none", "cannot_tell"), seed
        assert not data.accused


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_two_slow_ranks(ranks: int) -> None:
    equal = plan(ranks, faults=one("compute", 1) + one("gap", 2))
    data = check(equal).data
    assert (data.verdict, classes(data)) == ("several", {1: "compute_slow", 2: "host_slow"})
    apart = plan(ranks, faults=one("compute", 1, ms=30) + one("gap", 2, ms=12))
    data = check(apart).data
    assert (data.verdict, list(classes(data))) == ("several", [1, 2])


@pytest.mark.parametrize(("ranks", "every"), [(2, 10), (4, 5), (8, 3), (16, 5)])
def test_ranks_that_take_turns_are_not_accused_one_by_one(ranks: int, every: int) -> None:
    turns = (Fault("compute", (0, 1), ms=EXTRA_MS, every=every),)
    result = check(plan(ranks, steps=40, faults=turns))
    assert (result.data.verdict, result.data.accused) == ("moving", [])
    (found,) = [f for f in result.findings if f.polarity is Polarity.ABNORMAL]
    assert (found.kind, found.attributes["ranks"]) == ("rank.moving", "0-1")
    assert found.metrics["lost_ms"] == pytest.approx(EXTRA_MS, rel=0.3)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_step_at_which_it_began(ranks: int) -> None:
    data = check(plan(ranks, steps=24, faults=one("compute", since=10))).data
    (row,) = data.accused
    assert (row.rank, row.began_step, row.slow_class) == (1, 10, "compute_slow")
    assert row.job_pct < row.of_step_pct
    assert row.lost_ms_per_step == pytest.approx(EXTRA_MS, rel=0.2)


# --- groups, stages, links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [False, True])
def test_the_tensor_peer_of_a_slow_rank_is_innocent(world: bool) -> None:
    data = check(plan(8, tensor=2, world_reduce=world, faults=one("compute", 3))).data
    assert (data.verdict, classes(data)) == ("rank", {3: "compute_slow"})


@pytest.mark.parametrize(("ranks", "stages", "slow"), [(8, 2, 0), (8, 2, 1), (8, 4, 2), (16, 4, 3)])
def test_a_slow_stage_and_no_rank_of_it(ranks: int, stages: int, slow: int) -> None:
    result = check(plan(ranks, stages=stages, stage_factor={slow: 1.6}))
    assert (result.data.verdict, result.data.accused, result.data.reasons) == ("stage", [], [])
    (found,) = [f for f in result.findings if f.polarity is Polarity.ABNORMAL]
    width = ranks // stages
    first = slow * width
    assert (found.kind, found.attributes["ranks"]) == ("stage.slow", f"{first}-{first + width - 1}")
    assert found.metrics["ratio"] == pytest.approx(1.6, abs=0.15)


def test_a_slow_rank_of_a_pipeline_is_no_slow_stage() -> None:
    data = check(plan(8, stages=2, faults=one("compute", 6))).data
    assert (data.verdict, classes(data)) == ("rank", {6: "compute_slow"})


def test_a_stage_of_one_rank_is_indistinguishable_from_its_node() -> None:
    data = check(plan(4, stages=4, faults=one("compute", 2))).data
    assert (data.verdict, data.reasons, data.accused) == ("stage", ["stage_of_one"], [])


def test_stages_that_are_reported() -> None:
    job = plan(4, faults=one("compute", 2, ms=15) + one("compute", 3, ms=15))
    assert check(job).data.verdict == "several"
    assert check(job, stages="0-1,2-3").data.verdict == "stage"
    with pytest.raises(ToolError) as caught:
        check(job, stages="0-1,1-2")
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_the_rank_that_all_slow_groups_share() -> None:
    result = check(plan(8, tensor=2, faults=(Fault("link", (3,), factor=6),)))
    assert (result.data.verdict, classes(result.data)) == ("link", {3: "communication_slow"})
    assert result.data.links[0].transfer_ms > 3 * result.data.links[0].peers_ms
    assert {f.kind for f in result.findings if f.polarity is Polarity.ABNORMAL} == {
        "link.slow",
        "rank.communication_slow",
    }
    assert "no_baseline" not in dict(result.not_seen)


def test_a_slow_link_between_two_names_both() -> None:
    data = check(plan(8, tensor=2, faults=(Fault("transfer", (2, 3), factor=8),))).data
    assert (data.verdict, set(classes(data))) == ("link", {2, 3})


def test_a_slow_group_of_many_is_reported_and_none_of_its_ranks_accused() -> None:
    result = check(plan(8, tensor=2, faults=(Fault("transfer", (0, 2, 4, 6), factor=20),)))
    assert (result.data.verdict, result.data.accused) == ("link", [])
    assert result.data.reasons == ["link_of_group"]
    (found,) = [f for f in result.findings if f.polarity is Polarity.ABNORMAL]
    assert found.attributes["ranks"] == "0, 2, 4, 6"


def test_one_group_alone_has_nothing_to_compare_its_transfers_with() -> None:
    """Slow or not is undecided; and where transfers are most of a step, that is reported."""
    some = check(plan(4, faults=(Fault("link", (2,), factor=3),)))
    assert some.data.verdict == "none"
    assert "no_baseline" in dict(some.not_seen)
    most = check(plan(4, faults=(Fault("link", (2,), factor=20),)))
    assert (most.data.verdict, most.data.reasons) == ("cannot_tell", ["no_baseline"])
    assert not most.data.accused


# --- what is missing ------------------------------------------------------------------------------------------------


def test_whoever_is_missing_may_be_the_one() -> None:
    result = check(plan(8, missing=(3,), faults=one("compute", 3)))
    assert (result.data.verdict, result.data.accused) == ("cannot_tell", [])
    assert "ranks_missing" in result.data.reasons
    assert dict(result.not_seen)["ranks_missing"] == "3"


def test_a_rank_is_accused_though_another_is_missing_but_less_surely() -> None:
    data = check(plan(8, missing=(2,), faults=one("compute", 3))).data
    (row,) = data.accused
    assert (row.rank, row.slow_class, row.confidence) == (3, "compute_slow", "medium")


def test_the_slower_one_is_missing_and_no_other_takes_its_place() -> None:
    """Rank 3 is slower than its peers too, but fixing it would save nothing: all wait for rank 2."""
    data = check(plan(8, missing=(2,), faults=one("compute", 2, ms=40) + one("compute", 3, ms=12))).data
    assert (data.verdict, data.accused) == ("cannot_tell", [])


def test_few_steps_convict_no_rank() -> None:
    result = check(plan(4, steps=4, faults=one("compute")))
    assert (result.data.verdict, result.data.reasons) == ("cannot_tell", ["few_steps"])
    assert dict(result.not_seen)["few_steps"] == "4"


def test_one_rank_has_no_rank_to_be_compared_with() -> None:
    data = check(plan(2, missing=(1,))).data
    assert (data.verdict, data.accused) == ("cannot_tell", [])
    assert "one_rank" in data.reasons


def without(recording: Recording, **columns: pl.Expr) -> Recording:
    """`recording` as of a source of collectives only."""
    frames = recording.tables()
    frames["ranks.steps"] = frames["ranks.steps"].with_columns(pl.lit(-1, pl.Int64).alias(c) for c in columns)
    frames["ranks.collectives"] = frames["ranks.collectives"].with_columns(
        pl.lit(-1, pl.Int64).alias(c) for c in ("before_ns", "before_compute_ns", "before_gap_ns", "beside_compute_ns")
    )
    frames["ranks.operators"] = OPERATORS.to_frame()
    return Recording.in_memory(recording.manifest, frames)


@pytest.mark.parametrize("lost", [{0, 1, 2, 3}, {1, 2, 3}, {3}])
@pytest.mark.parametrize("kind", ["compute", "gap"])
def test_a_rank_whose_trace_lacks_operations_is_not_accused(lost: set[int], kind: Literal["compute", "gap"]) -> None:
    """What it waited in them is not seen, and looks like time of its own."""
    recording = simulate(plan(4, faults=(Fault(kind, (1,), ms=15.0),))).recording
    frames = recording.tables()
    rows = frames["ranks.collectives"]
    gone = (pl.col("rank") == 2) & (pl.col("seq") % 4).is_in(list(lost))
    frames["ranks.collectives"] = rows.filter(~gone)
    # without the operations, the wait in them is a gap of the device
    steps = frames["ranks.steps"]
    unseen = pl.when(pl.col("rank") == 2).then("exposed_comm_ns").otherwise(0)
    frames["ranks.steps"] = steps.with_columns(
        pl.col("gap_ns") + unseen, pl.col("exposed_comm_ns") - unseen, pl.col("comm_ns") - unseen
    )
    judged = judge(Recording.in_memory(recording.manifest, frames), Params())
    data = judged.data
    assert ("ranks_unheard", "2") in judged.not_seen
    assert [(row.rank, row.confidence) for row in data.accused] in ([(1, "medium")], [])
    assert data.verdict == "rank" if data.accused else data.verdict == "cannot_tell"


def test_traces_of_two_runs_maybe_accuse_with_little_confidence() -> None:
    recording = simulate(plan(4, faults=(Fault("compute", (1,), ms=15.0),))).recording
    assert [row.confidence for row in judge(recording, Params()).data.accused] == ["high"]
    manifest = recording.manifest.model_copy(deep=True)
    manifest.collectors["ranks"].not_seen.append(BlindSpot(code="other_time", detail="rank 3"))
    mixed = judge(Recording.in_memory(manifest, recording.tables()), Params()).data
    assert [(row.rank, row.confidence) for row in mixed.accused] == [(1, "low")]


def test_no_rank_is_acquitted_where_all_may_wait_for_a_rank_whose_trace_lacks_operations() -> None:
    recording = simulate(plan(4, faults=(Fault("compute", (2,), ms=15.0),))).recording
    frames = recording.tables()
    frames["ranks.collectives"] = frames["ranks.collectives"].filter(pl.col("rank") != 2)
    data = judge(Recording.in_memory(recording.manifest, frames), Params()).data
    assert (data.verdict, data.accused) == ("cannot_tell", [])
    assert "unmatched" in data.reasons


def test_without_work_in_the_traces_a_rank_is_accused_by_one_measure() -> None:
    simulated = simulate(plan(4, faults=one("compute")))
    result = judge(without(simulated.recording, compute_ns=pl.lit(-1), gap_ns=pl.lit(-1)), Params())
    (row,) = result.data.accused
    assert (row.rank, row.slow_class, row.confidence) == (1, "unattributed", "low")
    assert result.data.reasons == ["no_work_seen"]
    assert "no_work_seen" in dict(result.not_seen)


def test_a_rank_that_is_waited_for_but_does_not_work_longer_is_not_accused() -> None:
    simulated = simulate(plan(4, faults=one("compute")))
    frames = simulated.recording.tables()
    steps = frames["ranks.steps"]
    # as if the work of all had taken equally long
    same = steps.with_columns(compute_ns=pl.col("compute_ns").min().over("step"), gap_ns=pl.lit(400_000, pl.Int64))
    frames["ranks.steps"] = same
    data = judge(Recording.in_memory(simulated.recording.manifest, frames), Params()).data
    assert (data.verdict, data.reasons, data.accused) == ("cannot_tell", ["mixed_signals"], [])


def test_no_ranks_in_the_recording_is_an_error() -> None:
    simulated = simulate(plan(2, steps=2))
    manifest = simulated.recording.manifest.model_copy(update={"collectors": {}})
    with pytest.raises(ToolError) as caught:
        judge(Recording.in_memory(manifest, {}), Params())
    assert caught.value.code is ErrorCode.MISSING_COLLECTOR


# --- replicas -------------------------------------------------------------------------------------------------------


def test_a_slow_replica() -> None:
    result = check(plan(4, collectives=False, faults=one("compute", 2)))
    assert (result.data.verdict, classes(result.data)) == ("rank", {2: "compute_slow"})
    (row,) = result.data.accused
    assert row.confidence == "medium"
    assert {f.kind for f in result.findings if f.polarity is Polarity.ABNORMAL} == {
        "replica.slow",
        "rank.compute_slow",
    }
    assert result.data.replicas[0].rank == 2
    assert result.data.replicas[0].ratio == pytest.approx(1.45, abs=0.1)


def test_most_replicas_are_not_slow() -> None:
    slow = tuple(fault for rank in (0, 1, 2) for fault in one("compute", rank))
    data = check(plan(4, collectives=False, faults=slow)).data
    assert not data.accused


# --- reporting -----------------------------------------------------------------------------------------------------


def test_an_accusation_has_two_mechanisms_and_rules_out_the_rest() -> None:
    result = check(plan(8, tensor=2, faults=one("compute", 3)))
    abnormal = [f for f in result.findings if f.polarity is Polarity.ABNORMAL]
    assert [f.kind for f in abnormal] == ["rank.late", "rank.compute_slow"]
    assert {f.spec.mechanism for f in abnormal} == {Mechanism.COLLECTIVES, Mechanism.WORK}
    assert {(f.subject.type, f.subject.rank, f.subject.host) for f in abnormal} == {("rank", 3, "node0")}
    assert all(f.severity is Severity.CRITICAL for f in abnormal)
    normal = {f.kind for f in result.findings if f.polarity is Polarity.NORMAL and f.subject.rank == 3}
    assert normal == {"rank.host_slow", "rank.loader_slow", "rank.communication_slow"}


def test_severity_follows_the_floors() -> None:
    job = plan(4, faults=one("compute", ms=9))
    assert {f.severity for f in check(job).findings if f.polarity is Polarity.ABNORMAL} == {Severity.MAJOR}
    assert check(job, warn_pct=30, critical_pct=40).data.verdict == "none"
    strict = check(job, warn_pct=5, critical_pct=10)
    assert {f.severity for f in strict.findings if f.polarity is Polarity.ABNORMAL} == {Severity.CRITICAL}


def test_even_ranks_are_reported_to_be_even_only_when_all_was_observed() -> None:
    job = simulate(plan(4)).recording
    (found,) = judge(job, Params()).findings
    assert (found.kind, found.polarity, found.attributes["ranks"]) == ("rank.even", Polarity.NORMAL, "0-3")
    job.manifest.collectors["ranks"].proven = False
    assert judge(job, Params()).findings == []


def test_the_operator_that_makes_it_slow_is_named() -> None:
    simulated = simulate(plan(4, faults=one("compute")))
    frames = simulated.recording.tables()
    slower = (pl.col("rank") == 1) & (pl.col("name") == "gemm_forward")
    more = pl.when(slower).then(20 * 30_000_000).otherwise(0)
    frames["ranks.operators"] = frames["ranks.operators"].with_columns(
        total_ns=pl.col("total_ns") + more, count=pl.when(slower).then(2 * pl.col("count")).otherwise("count")
    )
    (row,) = judge(Recording.in_memory(simulated.recording.manifest, frames), Params()).data.accused
    named = [e for e in row.evidence if e.what == "operator"]
    assert named[0].name == "gemm_forward"
    often = next(e for e in row.evidence if e.what == "operator_count")
    assert (often.name, often.mine / often.peers) == ("gemm_forward", pytest.approx(2, rel=0.01))


def test_the_loader_is_named() -> None:
    (row,) = check(plan(4, faults=one("loader"))).data.accused
    assert {e.what for e in row.evidence} >= {"gap", "loader", "launch_delay"}
    result = check(plan(4, faults=one("loader")))
    (found,) = [f for f in result.findings if f.kind == "rank.loader_slow" and f.polarity is Polarity.ABNORMAL]
    assert found.attributes["name"] == LOADER


def test_a_device_that_had_its_work_and_idled_is_not_the_hosts_fault() -> None:
    simulated = simulate(plan(4, faults=one("gap")))
    frames = simulated.recording.tables()
    late = pl.when(pl.col("rank") == 1).then(5_000_000).otherwise("launch_delay_ns")
    frames["ranks.steps"] = frames["ranks.steps"].with_columns(launch_delay_ns=late)
    (row,) = judge(Recording.in_memory(simulated.recording.manifest, frames), Params()).data.accused
    assert row.slow_class == "unattributed"


def test_names_with_markup_are_inert() -> None:
    simulated = simulate(plan(4, faults=one("compute")))
    frames = simulated.recording.tables()
    evil = "<script>\x1b[31m\u202e"
    frames["ranks.ranks"] = frames["ranks.ranks"].with_columns(host=pl.lit(evil))
    frames["ranks.operators"] = frames["ranks.operators"].with_columns(name=pl.lit(evil) + pl.col("name"))
    result = judge(Recording.in_memory(simulated.recording.manifest, frames), Params())
    text = result.data.model_dump_json() + "".join(f.model_dump_json() for f in result.findings)
    assert "\\u001b" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_codes_are_declared() -> None:
    seen_reasons: set[str] = set()
    for job in (
        plan(8, missing=(3,), faults=one("compute", 3)),
        plan(4, steps=4),
        plan(4, stages=4, faults=one("compute", 2)),
        plan(4, jitter=0.9),
        plan(4, collectives=False),
        plan(4, has_steps=False, clock_ms=50),
    ):
        result = check(job)
        seen_reasons |= set(result.data.reasons)
        assert {f.kind for f in result.findings} <= TOOL.kinds
        assert {code for code, _ in result.not_seen} <= BLIND_SPOTS
        assert isinstance(result.basis, JobAnalysis)
    assert seen_reasons <= outcome.REASONS
    assert seen_reasons >= {"ranks_missing", "few_steps", "stage_of_one", "no_collectives"}


def test_the_envelope(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    result = envelope(TOOL, simulate(plan(4, faults=one("compute"))).recording, Params(top=2))
    assert result.status is Status.OK
    assert (len(result.data.ranks), result.totals["ranks"]) == (2, 4)
    assert [row.rank for row in result.data.accused] == [1]
    assert AccusedRow.model_validate(result.data.accused[0].model_dump()) == result.data.accused[0]


@pytest.mark.parametrize(
    "wrong", [{"warn_pct": 30, "critical_pct": 20}, {"warn_pct": 0}, {"stages": "x" * 2000}, {"duration": 3}]
)
def test_bad_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as caught:
        parse_params(Params, wrong)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def damaged(recording: Recording, seed: int) -> Recording:
    """Tables that are empty, thinned out, doubled, or with numbers that are not known or not possible."""
    dice = random.Random(seed)
    frames = recording.tables()
    for name, frame in recording.tables().items():
        how = dice.random()
        numbers = [column for column, dtype in frame.schema.items() if dtype in (pl.Int64, pl.Int32)]
        column, every, value = dice.choice(numbers), dice.randint(1, 4), dice.choice([-1, 0, 1, 5_000_000])
        if how < 0.15:
            frames[name] = frame.clear()
        elif how < 0.4:
            frames[name] = frame.sample(fraction=dice.random(), seed=seed)
        elif how < 0.5:
            frames[name] = pl.concat([frame, frame])
        elif how < 0.65:
            some = pl.int_range(pl.len()) % every == 0
            frames[name] = frame.with_columns(
                pl.when(some).then(value).otherwise(column).cast(frame.schema[column]).alias(column)
            )
    return Recording.in_memory(recording.manifest.model_copy(deep=True), frames)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "recorded",
    [{}, {"stages": 2}, {"tensor": 2}, {"collectives": False}, {"missing": (0,)}, {"has_steps": False}, {"ranks": 2}],
)
def test_damaged_tables_are_judged_all_the_same(recorded: dict[str, Any]) -> None:
    recording = simulate(Plan(**({"ranks": 4} | recorded), steps=8, faults=one("compute"))).recording
    for seed in range(12):
        result = judge(damaged(recording, seed), Params())
        assert set(result.data.reasons) <= outcome.REASONS
        assert {f.kind for f in result.findings} <= TOOL.kinds
