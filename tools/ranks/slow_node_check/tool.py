"""slow_node_check: find the rank of a synchronous job that holds the others back, why it is slow, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field, model_validator

from whystall.tools.collect.options import SwitchOptions
from whystall.tools.contract.params import JobParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.ranks.analysis.analyse import JobAnalysis, analyse
from whystall.tools.ranks.hangs.find import Hangs, hangs
from whystall.tools.ranks.job import Job, job_of
from whystall.tools.ranks.params import Directory, RankParams
from whystall.tools.ranks.slow_node_check.findings import Findings
from whystall.tools.ranks.slow_node_check.next_call import next_calls
from whystall.tools.ranks.slow_node_check.outcome import Floors, Outcome
from whystall.tools.ranks.slow_node_check.rows import accused_row, hang_rows, link_rows, rank_rows, replica_rows
from whystall.tools.ranks.slow_node_check.tables import Data, Verdict
from whystall.tools.ranks.slow_node_check.verdict import decide
from whystall.tools.ranks.traces.thread_times import SOURCE
from whystall.tools.ranks.traces.window import with_ranks
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list

# What to put around the body of the training loop, by format; a profiler with a schedule does so itself.
_MARKS = {
    "kineto": "with torch.profiler.record_function(f'ProfilerStep#{step}'):",
    "nsys": "with torch.cuda.nvtx.range(f'step {step}'):",
}
# Clocks with a larger offset are reported: a good NTP keeps hosts within.
_CLOCKS_NS = 1_000_000
# Shorter times off the CPU count as work.
_OFF_NS = 100_000
_WINDOW_S = 30.0


class Params(RankParams):
    """Parameters of slow_node_check. `pid`, `job`, `duration`: as those of `JobParams`, with `live`."""

    traces: Directory = None
    live: Annotated[bool, Field(description="observe the running job")] = False
    pid: Annotated[int | None, Field(ge=1, le=4194304, description="live: process id of one of the job, 812")] = None
    job: Annotated[str | None, Field(min_length=1, max_length=200, description="live: the job's name or number")] = None
    duration: Annotated[float, Field(ge=1, le=600, description="live: seconds to observe")] = _WINDOW_S
    stages: str = Field(default="", max_length=1000, description="pipeline stages: 0-3,4-7")
    warn_pct: float = Field(default=10.0, ge=1, le=100, description="accuse from this share of a step, %")
    critical_pct: float = Field(default=20.0, ge=1, le=100, description="critical from this share of a step, %")

    @model_validator(mode="after")
    def _in_order(self) -> Params:
        if self.critical_pct < self.warn_pct:
            raise ValueError("critical_pct is below warn_pct")
        if self.live and self.traces is not None:
            raise ValueError("give only one of live, traces")
        if not self.live and (self.pid, self.job, self.duration) != (None, None, _WINDOW_S):
            raise ValueError("pid, job and duration need live")
        return self

    def observed(self) -> JobParams | None:
        """Return the job to observe, if `live`."""
        return JobParams(pid=self.pid, job=self.job, duration=self.duration) if self.live else None


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return the verdict on the job whose ranks `recording` holds."""
    observed = recording
    recording = with_ranks(recording)
    job = job_of(recording)
    analysis = analyse(job, params.stages)
    floors = Floors(params.warn_pct / 100, params.critical_pct / 100)
    out = decide(analysis, floors)
    stuck = hangs(job)
    hanging = hang_rows(job, stuck)
    if stuck.rows or stuck.reasons:
        reasons = [*(["hang"] if stuck.rows else []), *stuck.reasons]
        out = Outcome(_verdict(len(hanging)), reasons, steps=out.steps, step_ns=out.step_ns)
    elif len(job.present) == 1:
        out.reasons, out.lost = ["one_rank"], None
    spots = _blind(recording, observed, analysis, out, stuck)
    mixed = any(spot.code == "other_time" for spot in recording.manifest.collectors["ranks"].not_seen)
    if mixed:  # maybe of two runs: then the difference may be the run's
        out.accused = [replace(one, confidence="low") for one in out.accused]
    whole = recording.manifest.saw_everything("ranks") and not job.missing and not mixed
    ranks, links, replicas = rank_rows(analysis, out), link_rows(out), replica_rows(job, out)
    data = Data(
        verdict=out.verdict,
        reasons=out.reasons,
        step_ms=out.step_ns / 1e6 if out.step_ns else None,
        steps=out.steps,
        lost_pct=None if out.lost is None else 100 * out.lost,
        detectable_pct=None if out.detectable is None else 100 * out.detectable,
        accused=[*hanging, *(accused_row(job, one) for one in out.accused)][: params.top],
        ranks=ranks[: params.top],
        links=links[: params.top],
        hangs=stuck.rows[: params.top],
        replicas=replicas[: params.top],
        next=next_calls(analysis, out.accused, params.traces)[: params.top],
        matched=dict(analysis.counts),
    )
    return Judgement(
        findings=[*stuck.findings, *Findings(job, floors, whole).of(out)],
        data=data,
        seen=job.table("collectives").height + job.table("steps").height,
        totals={
            "accused": len(hanging) + len(out.accused),
            "hangs": len(stuck.rows),
            "ranks": len(ranks),
            "links": len(links),
            "replicas": len(replicas),
        },
        not_seen=spots,
        basis=analysis,
    )


def _mark_of_step(job: Job) -> set[str]:
    """Return the lines of code that mark a step in the formats of `job`."""
    return {_MARKS[source] for source in job.table("ranks")["source"].to_list() if source in _MARKS}


def _verdict(accused: int) -> Verdict:
    return "cannot_tell" if not accused else "rank" if accused == 1 else "several"


def _blind(
    recording: Recording, observed: Recording, analysis: JobAnalysis, out: Outcome, stuck: Hangs
) -> list[tuple[str, str]]:
    """Return the blind spots that the recording, as `observed`, does not already list."""
    job = analysis.job
    listed = {spot.code for one in observed.manifest.collectors.values() for spot in one.not_seen}
    spots = [(spot.code, spot.detail) for spot in recording.manifest.collectors["ranks"].not_seen]
    spots += stuck.notes
    if stuck.rows or stuck.reasons:  # neither steps nor matches are needed
        return [spot for spot in spots if spot[0] not in listed]
    if job.missing:
        spots.append(("ranks_missing", rank_list(job.missing)))
    if job.table("collectives").is_empty():
        spots.append(("step_sums" if analysis.summed else "no_collectives", ""))
        return [spot for spot in spots if spot[0] not in listed]
    counts = analysis.counts
    if left := counts.get("rows", 0) - counts.get("matched", 0) - counts.get("single", 0):
        spots.append(("unmatched", str(left)))
    if analysis.derived and SOURCE in job.table("ranks")["source"]:
        spots.append(("steps_estimated", ""))
    elif analysis.derived:
        spots.append(("no_steps", "; ".join(sorted(_mark_of_step(job)))))
    if out.incomplete:
        spots.append(("ranks_unheard", rank_list(out.incomplete)))
    if "few_steps" in out.reasons:
        spots.append(("few_steps", str(out.steps)))
    if "no_work_seen" in out.reasons:
        spots.append(("no_work_seen", ""))
    if out.links is not None and not out.links.compared:
        spots.append(("no_baseline", ""))
    if analysis.clocks.spread_ns > _CLOCKS_NS:
        left_ns = max(analysis.clocks.residual_ns.values(), default=0)
        spots.append(("clock_spread", f"{analysis.clocks.spread_ns / 1e6:.1f} ms, {left_ns / 1e3:.0f} us left"))
    return [spot for spot in spots if spot[0] not in listed]


def _needs(params: Params) -> list[Need]:
    """Return the ranks, or live what they are made of: calls of libraries, ranks and groups, when threads ran."""
    if not params.live:
        return [Need("ranks")]
    return [Need("collectives"), Need("objects", optional=True), Need("switches", SwitchOptions(min_ns=_OFF_NS))]


TOOL = Tool(
    name="slow_node_check",
    title="Slow-node check",
    description=(
        "Which rank of a distributed job holds the others back, by the ranks' traces (PyTorch, Ascend, MindSpore, "
        "nsys, NCCL, CSV), or live: which ranks, steps, pipeline stage or link, or none, or cannot_tell; why "
        "(compute, communication, host, loader, hang); cost per step."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            "rank.late",
            "rank.compute_slow",
            "rank.host_slow",
            "rank.loader_slow",
            "rank.intermittent",
            "rank.unattributed",
            "rank.communication_slow",
            "rank.even",
            "rank.not_entered",
            "rank.not_finished",
            "rank.mismatch",
            "stage.slow",
            "rank.moving",
            "link.slow",
            "replica.slow",
        }
    ),
    cost=3.0,
    reads="ranks",
)
