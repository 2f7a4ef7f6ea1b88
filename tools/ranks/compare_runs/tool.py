"""compare_runs: two runs of one configuration - which ranks, steps, operators or transfers differ in speed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.ranks.analysis.analyse import analyse
from whystall.tools.ranks.compare_runs.baseline import Baseline, judge_baseline
from whystall.tools.ranks.compare_runs.configuration import checks
from whystall.tools.ranks.compare_runs.judge import Runs
from whystall.tools.ranks.compare_runs.tables import CompareData
from whystall.tools.ranks.compare_runs.work import aligned_operators
from whystall.tools.ranks.job import job_of
from whystall.tools.ranks.params import BaselineName, Directory, RankParams
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.alignment import rows_of
from whystall.tools.timeline.rank_data.tables import BASELINE

_TABLES = ("ranks", "operators", "collectives", "slow_steps", "aligned")


class Params(RankParams):
    """Parameters of compare_runs."""

    before: Annotated[Directory, Field(description="path of the earlier run's traces, a directory")] = None
    after: Annotated[Directory, Field(description="path of the later run's traces")] = None
    baseline: Annotated[
        BaselineName | None,
        Field(description="in place of before: name of stored runs (`whystall baselines`), for single operators"),
    ] = None
    min_operator_pct: float = Field(
        default=10.0, ge=1, le=1000, description="with baseline: a smaller change of an operator is none, %"
    )
    # runs of one job differ by a few percent on a healthy machine; below that there is no cause to find
    min_pct: float = Field(default=5.0, ge=0.1, le=100, description="a smaller change of the step is none, %")


def _needs(params: Params) -> list[Need]:
    return [Need("ranks"), Need("baseline" if params.baseline else "ranks_before")]


def judge(recording: Recording, params: Params) -> Judgement[CompareData]:
    """Return why the steps of the run ``ranks`` take longer or shorter than those of ``ranks_before``."""
    if params.baseline is not None:
        return _by_baseline(recording, params)
    before, after, known = aligned_operators(job_of(recording, "ranks_before"), job_of(recording))
    data = CompareData(checks=checks(before, after), aligned=rows_of(known))
    seen = len(before.present) + len(after.present)
    data.reasons = [row.code for row in data.checks if row.effect == "refused"]
    if data.reasons:
        return Judgement(findings=[], data=data, seen=seen)
    data.reasons = [row.code for row in data.checks if row.code]
    runs = Runs(data, analyse(before), analyse(after), params.min_pct)
    runs.judge()
    findings = runs.findings(recording.manifest.window_ns)
    totals = {name: len(getattr(data, name)) for name in _TABLES}
    for name in _TABLES:
        setattr(data, name, getattr(data, name)[: params.top])
    return Judgement(findings=findings, data=data, seen=seen, totals=totals, not_seen=_blind(runs))


def _by_baseline(recording: Recording, params: Params) -> Judgement[CompareData]:
    job, tables = job_of(recording), recording.tables()
    if not recording.has("baseline"):
        raise ToolError(
            ErrorCode.MISSING_COLLECTOR, "this recording has no stored baseline", "name one that is stored here"
        )
    stored = Baseline(**{name: tables.get(f"baseline.{name}", schema.to_frame()) for name, schema in BASELINE.items()})
    data, findings = judge_baseline(job, stored, params.min_operator_pct, recording.manifest.window_ns)
    totals = {"latencies": len(data.latencies)}
    data.latencies = data.latencies[: params.top]
    return Judgement(findings=findings, data=data, seen=len(job.present), totals=totals)


def _blind(runs: Runs) -> list[tuple[str, str]]:
    data, spots = runs.data, []
    if "few_steps" in data.reasons:
        spots.append(("few_steps", f"{data.steps_before} before, {data.steps_after} after"))
    if not runs.waits:
        spots.append(("no_collectives", ""))
    if all((one.job.table("steps")["step"] < 0).all() for one in (runs.before, runs.after)):
        spots.append(("no_steps", ""))
    return spots


TOOL = Tool(
    name="compare_runs",
    title="Two runs of a job compared",
    description=(
        "Does the step of a run really differ from an earlier run's, and which ranks, steps, operators, collectives "
        "or host gaps make it so; or which operators take longer than in stored runs; from the ranks' traces."
    ),
    params=Params,
    data=CompareData,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"run.step_time", "run.difference", "run.operator_latency", "rank.operator_slow"}),
    cost=8.0,
    reads="ranks",
)
