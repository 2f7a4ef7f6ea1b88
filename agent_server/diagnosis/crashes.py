"""Diagnose a job or host from what its logs state about crashes. Pure.

A log is one source: the diagnosis is at most `likely`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import count
from typing import Any

from whystall.agent_server.diagnosis.case import step_of
from whystall.agent_server.diagnosis.causes import DEVICES_TOOL, LOGS_TOOL, of_logs
from whystall.knowledge_base.causes import matches
from whystall.knowledge_base.models import (
    CRASHED,
    Assessment,
    Cause,
    CauseState,
    Culprit,
    Diagnosis,
    Verdict,
    Victim,
)
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.result import ToolResult
from whystall.tools.host.crash_analyse.tool import Data

_FIRST, _KERNEL, _PROGRAM = "crash.first", "crash.kernel", "crash.program"
_DEVICE_KINDS = ("gpu.xid", "gpu.switch")
# Failures of programs that an error of their GPU brings about; every other one has a reason of its own.
_OF_DEVICE = ("gpu_error", "cuda_error", "collective_timeout", "collective_error")
_LOGS_ONLY = "logs_only"
_SHOWN = 10
"""Most findings that are shown as evidence of a diagnosis without a verdict; all are kept."""


def crash_diagnosis(
    causes: Mapping[str, Cause],
    result: ToolResult[Data],
    recording: str,
    symptom: str,
    devices: Sequence[ToolResult[Any]] = (),
) -> Diagnosis:
    """Return the diagnosis by the logs alone.

    Args:
        result: of crash_analyse on `recording` (its id).
        devices: of gpu_health on the same logs. An error of the hardware that they report is the cause if nothing
            crashed, or if a program failed by its GPU or by waiting for other ranks; an error of a program, if nothing
            else failed.

    Where programs only reacted to what no log states, the cause of that reaction is a candidate, and no verdict.
    """
    results = _numbered([result, *devices])
    findings = [finding for one in results for finding in one.findings]
    messages = sorted((f for f in findings if f.kind in _DEVICE_KINDS), key=lambda one: -one.severity.rank)
    main, cause = _main(findings), None
    if main is None or (main.kind == _PROGRAM and main.attributes.get("what") in _OF_DEVICE):
        cause, failed = _failed_device(causes, [*messages, *([main] if main is not None else [])])
        main = failed or main
    if main is None:
        cause, main = _failed_program(causes, messages)
    victim = _victim(main) if main is not None and main.kind not in _DEVICE_KINDS else None
    if cause is None and main is not None:
        cause = next((id for id, c in of_logs(causes).items() if _fits(c, main, victim)), None)
    verdict, missing, chain = Verdict.LIKELY, [_LOGS_ONLY], [main.id] if main is not None else []
    if cause is None:
        cause, missing = _candidate(causes, findings), ["first_failure_unlogged"]
        verdict, chain = Verdict.INCONCLUSIVE, _bad(findings)
        if cause is None:
            missing = ["unexplained_loss" if main is not None else "no_failure_logged"]
    else:
        chain += [f.id for f in findings if f.kind == _FIRST]
    likely = verdict is Verdict.LIKELY
    now = datetime.now(timezone.utc)
    return Diagnosis(
        id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        created=rfc3339(now),
        target=recording,
        symptom=symptom,
        verdict=verdict,
        cause=cause,
        severity=main.severity if main is not None else _severity(findings, ended=cause is not None),
        victim=victim,
        culprit=_culprit(main) if main is not None and likely else None,
        explained_pct=100.0 if likely else 0.0,
        chain=chain,
        assessments=_assessments(cause, main) if likely else [],
        missing=missing,
        findings=findings,
        steps=[step_of(results, "logs_of_job")],
        coverage=[one.coverage for one in results],
        artifacts=[artifact.uri for one in results for artifact in one.artifacts],
        recording=recording,
    )


def _bad(findings: Sequence[Finding]) -> list[str]:
    """Return the ids of the abnormal findings that a diagnosis without a verdict shows as evidence."""
    bad = [f for f in findings if f.polarity is Polarity.ABNORMAL and not f.attributes.get("relevance")]
    return [one.id for one in sorted(bad, key=lambda one: -one.severity.rank)[:_SHOWN]]


def _severity(findings: Sequence[Finding], *, ended: bool) -> Severity:
    """Return the severity without a first failure. `ended`: programs ended in reaction to one that no log states."""
    worst = max((f.severity for f in findings), key=lambda one: one.rank, default=Severity.INFO)
    return max(worst, Severity.MAJOR, key=lambda one: one.rank) if ended else worst


def _main(findings: Sequence[Finding]) -> Finding | None:
    """Return the crash that counts: that of the process that failed first, else the most severe."""
    crashes = [f for f in findings if f.kind in (_KERNEL, _PROGRAM) and not f.attributes.get("reaction")]
    first = next((f for f in findings if f.kind == _FIRST), None)
    if first is not None:
        named = first.attributes.get("name")
        own = [f for f in crashes if f.attributes.get("name") == named]
        same = [f for f in own if f.subject.rank == first.subject.rank]
        if own:
            return (same or own)[0]
    return max(crashes, key=lambda f: f.severity.rank, default=None)


def _numbered(results: Sequence[ToolResult[Any]]) -> list[ToolResult[Any]]:
    """Return `results` with the ids F1, F2 ... for their findings."""
    numbers = count(1)
    return [
        one.model_copy(update={"findings": [f.model_copy(update={"id": f"F{next(numbers)}"}) for f in one.findings]})
        for one in results
    ]


def _failed_device(causes: Mapping[str, Cause], reports: Sequence[Finding]) -> tuple[str | None, Finding | None]:
    """Return the cause that the first of `reports` supports which states an error of the hardware, and that report.

    A log shows no thread that waits, so that what the cause requires of the device has to do.
    """
    for id, cause in causes.items():
        if DEVICES_TOOL not in cause.examined_by:
            continue
        for report in reports:
            if any(matches(pattern, report, None) for pattern in (*cause.required, *cause.in_logs)):
                return id, report
    return None, None


def _failed_program(causes: Mapping[str, Cause], messages: Sequence[Finding]) -> tuple[str | None, Finding | None]:
    """Return the cause that a message of a driver about an error of a program supports, and that message."""
    for id, cause in of_logs(causes).items():
        for message in messages:
            if any(matches(pattern, message, None) for pattern in cause.in_logs):
                return id, message
    return None, None


def _candidate(causes: Mapping[str, Cause], findings: Sequence[Finding]) -> str | None:
    """Return the cause that reactions of programs point to, if the logs state no more than these."""
    reactions = [f for f in findings if f.kind == _PROGRAM and f.attributes.get("reaction")]
    for id, cause in of_logs(causes).items():
        if any(matches(pattern, one, None) for pattern in cause.supporting for one in reactions):
            return id
    return None


def _fits(cause: Cause, main: Finding, victim: Victim | None) -> bool:
    return any(matches(pattern, main, victim) for pattern in cause.primary)


def _victim(main: Finding) -> Victim:
    subject = main.subject
    return Victim(
        type="job" if subject.rank is None else "rank",
        rank=subject.rank,
        host=subject.host,
        pid=subject.pid or 0,
        tid=subject.pid or 0,
        comm=subject.comm or "",
        chosen_by=CRASHED,
        user_pct=0.0,
        system_pct=0.0,
        runnable_pct=0.0,
        blocked_pct=0.0,
        idle_pct=0.0,
        lost_pct=100.0,
    )


def _culprit(main: Finding) -> Culprit:
    subject, words = main.subject, main.attributes
    return Culprit(
        pid=subject.pid,
        comm=subject.comm,
        cgroup=subject.cgroup,
        kernel_path=words.get("function") or None,
        code=words.get("code") or None,
        rank=subject.rank,
    )


def _assessments(cause: str | None, main: Finding | None) -> list[Assessment]:
    if cause is None or main is None:
        return []
    state = Assessment(cause=cause, state=CauseState.SUPPORTED, explained_pct=100.0, window_pct=100.0)
    return [
        state.model_copy(update={"for_": [main.id], "by": [DEVICES_TOOL if main.kind in _DEVICE_KINDS else LOGS_TOOL]})
    ]
