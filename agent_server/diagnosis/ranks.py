"""Diagnose the ranks of a job by slow_node_check, and join it with the diagnosis of the slow rank's host.

The traces name the slow rank and the class of its slowness; the cause is often on its host. Pure.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from whystall.agent_server.diagnosis.assess import assess
from whystall.agent_server.diagnosis.case import step_of
from whystall.agent_server.diagnosis.causes import BASELINE_TOOL, RANKS_TOOL, of_ranks
from whystall.agent_server.diagnosis.culprit import culprit
from whystall.agent_server.diagnosis.verdict import ONE_SOURCE, STALL_PCT, Conclusion, conclude
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Diagnosis, Verdict, Victim
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.result import BlindSpot, Status, ToolResult
from whystall.tools.ranks.compare_runs.tables import CompareData
from whystall.tools.ranks.slow_node_check.tables import Data

_NAMED = (Verdict.CONFIRMED, Verdict.LIKELY)
# Slow operators on a CPU may be due to the rank or to a busy host: only observing the host can decide.
_HOST_UNSEEN = "host_unseen"
_REGRESSED = "run.operator_latency"


def rank_diagnosis(
    causes: Mapping[str, Cause],
    result: ToolResult[Data],
    recording: str,
    symptom: str,
    ranks: int,
    comparison: ToolResult[CompareData] | None = None,
    topology: ToolResult[Any] | None = None,
) -> Diagnosis:
    """Return the diagnosis of the traces alone. `result`: of slow_node_check on `recording` (id) of `ranks` ranks;
    `comparison`: of compare_runs on it, with a stored baseline; `topology`: of cluster_topology, where they run."""
    results: list[ToolResult[Any]] = [one for one in (result, comparison, topology) if one is not None]
    findings = [
        f.model_copy(update={"id": f"F{i}"}) for i, f in enumerate((f for one in results for f in one.findings), 1)
    ]
    numbered, first = [], 0
    for one in results:
        numbered.append(one.model_copy(update={"findings": findings[first : first + len(one.findings)]}))
        first += len(one.findings)
    causes = of_ranks(causes, baseline=comparison is not None)
    victim = _victim(result.data, findings)
    reliable = result.status is not Status.PARTIAL or all(c.proven for c in result.coverage.collectors)
    compared = comparison is not None and comparison.data.verdict != "cannot_tell"
    ran = [*([RANKS_TOOL] if reliable else []), *([BASELINE_TOOL] if compared else [])]
    assessments = assess(causes, findings, victim, ran)
    found = _conclude(causes, assessments, result, findings, victim)
    now = datetime.now(timezone.utc)
    return Diagnosis(
        id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        created=rfc3339(now),
        target=f"{ranks} ranks of {recording}",
        symptom=symptom,
        verdict=found.verdict,
        cause=found.cause,
        severity=found.severity,
        victim=victim,
        culprit=culprit(found, findings),
        explained_pct=found.explained_pct,
        chain=found.chain,
        assessments=assessments,
        missing=found.missing,
        findings=findings,
        steps=[step_of([one], "traces_of_ranks") for one in numbered],
        coverage=[one.coverage for one in results],
        artifacts=[artifact.uri for one in results for artifact in one.artifacts],
        recording=recording,
    )


def with_blind_spot(diagnosis: Diagnosis, code: str, detail: str) -> Diagnosis:
    """Return `diagnosis` with one more blind spot."""
    first, *rest = diagnosis.coverage
    spots = [*first.not_seen, BlindSpot(code=code, detail=detail)]
    return diagnosis.model_copy(update={"coverage": [first.model_copy(update={"not_seen": spots}), *rest]})


def with_host(ranks: Diagnosis, host: Diagnosis) -> Diagnosis:
    """Return `ranks` joined with the diagnosis of the slow rank's host, whose cause is then the cause of the whole.

    Confirmed only if the host's is, and nothing but the second source, which it is, was missing. Ids of findings must
    differ.
    """
    joined = {
        "findings": [*ranks.findings, *host.findings],
        "assessments": [*ranks.assessments, *host.assessments],
        "steps": [*ranks.steps, *host.steps],
        "coverage": [*ranks.coverage, *host.coverage],
        "artifacts": [*ranks.artifacts, *host.artifacts],
        "reasoning": host.reasoning,
    }
    slow = ranks.victim
    if host.cause is None or host.verdict not in _NAMED or host.victim is None or slow is None:
        return ranks.model_copy(update=joined)
    open_ = [code for code in ranks.missing if code not in (_HOST_UNSEEN, ONE_SOURCE)]
    both = not open_ and host.verdict is Verdict.CONFIRMED
    who = {"rank": slow.rank, "host": slow.host}
    return ranks.model_copy(
        update=joined
        | {
            "verdict": Verdict.CONFIRMED if both else Verdict.LIKELY,
            "cause": host.cause,
            "victim": host.victim.model_copy(update=who | {"chosen_by": "slow_rank"}),
            "culprit": host.culprit.model_copy(update=who) if host.culprit else None,
            "explained_pct": host.explained_pct,
            "chain": [*ranks.chain, *host.chain],
            "missing": list(dict.fromkeys([*open_, *host.missing])),
        }
    )


def _victim(data: Data, findings: Sequence[Finding]) -> Victim | None:
    """Return the rank that costs most; the job if no single rank does; None if the traces cannot decide."""
    if data.accused:
        worst = data.accused[0]
        lost = 100.0 if worst.slow_class == "hang" else worst.job_pct  # a job that stands still loses everything
        return _slow_victim(lost, "slow_rank", worst.rank, worst.host, worst.pid or 0)
    slower = sum(f.window_pct for f in findings if f.kind == _REGRESSED)
    if slower >= STALL_PCT and data.verdict in ("cannot_tell", "none"):
        return _slow_victim(max(slower, data.lost_pct or 0.0), "whole_job")
    if data.verdict == "cannot_tell":
        return None
    if data.verdict == "none":
        return _slow_victim(data.lost_pct or 0.0, "whole_job")
    bad = [f.window_pct for f in findings if f.polarity is Polarity.ABNORMAL]
    return _slow_victim(max(bad, default=0.0), "whole_job")


def _slow_victim(lost_pct: float, chosen_by: str, rank: int | None = None, host: str = "", pid: int = 0) -> Victim:
    return Victim(
        type="job" if rank is None else "rank",
        rank=rank,
        host=host or None,
        pid=max(pid, 0),
        tid=max(pid, 0),
        comm="",
        chosen_by=chosen_by,
        user_pct=0.0,
        system_pct=0.0,
        runnable_pct=0.0,
        blocked_pct=0.0,
        idle_pct=0.0,
        lost_pct=min(max(lost_pct, 0.0), 100.0),
    )


def _conclude(
    causes: Mapping[str, Cause],
    assessments: Sequence[Assessment],
    result: ToolResult[Data],
    findings: Sequence[Finding],
    victim: Victim | None,
) -> Conclusion:
    data = result.data
    regressed = any(
        a.state is CauseState.SUPPORTED and a.window_pct >= STALL_PCT and RANKS_TOOL not in causes[a.cause].examined_by
        for a in assessments
    )
    if data.verdict == "none" and not regressed:
        if (data.lost_pct or 0.0) < 2 * STALL_PCT:
            return Conclusion(verdict=Verdict.HEALTHY)
        return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=["waits_unexplained"])
    if victim is None or (data.verdict == "cannot_tell" and not regressed and not data.accused):
        return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=list(data.reasons))
    found = conclude(causes, assessments, findings, victim, result.coverage.not_seen)
    missing = list(found.missing)
    if any(row.confidence == "low" for row in data.accused[:1]):
        missing.append("low_confidence")
    kinds = {f.kind for f in findings if f.id in found.chain[:1]}
    if kinds == {"rank.compute_slow"} and any(spot.code == "no_device_work" for spot in result.coverage.not_seen):
        missing.append(_HOST_UNSEEN)
    elif found.cause:
        missing.append(ONE_SOURCE)
    verdict = Verdict.LIKELY if missing and found.verdict is Verdict.CONFIRMED else found.verdict
    if verdict.no_fault:  # a rank is slow, but no cause explains it
        verdict, missing = Verdict.INCONCLUSIVE, [*missing, "unexplained_loss"]
    return Conclusion(
        verdict=verdict,
        cause=found.cause,
        explained_pct=found.explained_pct,
        severity=found.severity if found.cause else _severity(findings),
        chain=[*found.chain, *_of_others(data, findings, found.chain)] if found.cause else [],
        missing=missing,
    )


def _of_others(data: Data, findings: Sequence[Finding], chain: Sequence[str]) -> list[str]:
    """Return the ids of the evidence against the other slow ranks."""
    accused = {row.rank for row in data.accused}
    bad = (f for f in findings if f.polarity is Polarity.ABNORMAL and f.subject.rank in accused)
    return [f.id for f in bad if f.id not in chain]


def _severity(findings: Sequence[Finding]) -> Severity:
    bad = [f.severity for f in findings if f.polarity is Polarity.ABNORMAL]
    return max(bad, key=lambda severity: severity.rank, default=Severity.INFO)
