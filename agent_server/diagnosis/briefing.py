"""The case as plain data for a model: the briefing, the state of the causes, and results of tools."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.causes import PATH_TOOL
from whystall.agent_server.diagnosis.past_incidents import Card
from whystall.agent_server.diagnosis.rules import is_relevant, next_tools
from whystall.knowledge_base.causes import load_causes, matches
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Lang, OtherProcess, Victim
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import Artifact, BlindSpot, ToolResult

BRIEFING_CHARS = 12_000
RESULT_CHARS = 6_000
AGAIN_CHARS = 3_000
"""Characters of findings in the briefing, in a result, and in all results of tools that ran again. A finding has about
400; the checks use all findings, also those left out here."""
_TEXT = 300
_CAUSES = 12
_SPOTS = 12
_CARDS_CHARS = 6_000
_SYMPTOM = 2_000
_OPEN = (CauseState.SUPPORTED, CauseState.NOT_EXAMINED)
# These units are evident if the name of the metric ends with them.
_IN_NAME = ("ms", "s", "pct")


def briefing_data(
    case: Case, able: Sequence[Tool[Any, Any]], similar: Sequence[Card], lang: Lang = "en"
) -> dict[str, Any]:
    """Return the case as the model first sees it. `able`: the tools that can be served."""
    return {
        "target": _short(case.target),
        "symptom": _short(case.symptom, _SYMPTOM),
        "window_s": case.steps[-1].window_s if case.steps else 0.0,
        **_findings(case.findings, BRIEFING_CHARS),
        **{name: value for r in case.results.values() for name, value in _compared(r).items()},
        "not_seen": _spots(spot for r in case.results.values() for spot in r.coverage.not_seen),
        "artifacts": [_artifact(a) for a in case.artifacts],
        **state_data(case, able, lang),
        "similar": _fitting(similar, _CARDS_CHARS),
    }


def state_data(case: Case, able: Sequence[Tool[Any, Any]], lang: Lang = "en") -> dict[str, Any]:
    """Return the victim, the state of the causes with the tools that could decide them, and the verdict so far."""
    assessments = case.assess()
    named = {tool.name: tool for tool in able}
    left = [tool for tool in able if tool.name not in case.tried]
    found = case.conclude()
    victim = case.victim()
    findings = case.findings
    found_for = {a.cause: _found_for(a, case.causes[a.cause], findings, victim) for a in assessments}
    shown = sorted((a for a in assessments if a.state in _OPEN), key=lambda a: -found_for[a.cause])
    hidden = [a for a in assessments if a.state not in _OPEN]
    return {
        "victim": victim.model_dump(mode="json", exclude_none=True) if victim else None,
        "causes": [_cause(a, case.causes[a.cause], left, lang) for a in shown[:_CAUSES]],
        "further_open": [a.cause for a in shown[_CAUSES:]],
        "excluded": [{"id": a.cause, "by": a.against} if a.against else {"id": a.cause} for a in hidden],
        "verdict_so_far": {"verdict": found.verdict.value, "cause": found.cause, "missing": found.missing},
        "suggested": next_tools(case.causes, assessments, named, list(case.tried), case.signs()),
    }


def assessed(
    causes: Sequence[str], case: Case, able: Sequence[Tool[Any, Any]], lang: Lang = "en"
) -> list[dict[str, Any]]:
    """Return what supports and refutes each of `causes` of the catalogue, and the tools that could still decide it."""
    every = load_causes()
    found = {a.cause: a for a in (*case.assess(every), *case.assess())}
    left = [tool for tool in able if tool.name not in case.tried]
    return [_cause(found[cause], every[cause], left, lang) for cause in dict.fromkeys(causes)]


def _found_for(assessment: Assessment, cause: Cause, findings: Sequence[Finding], victim: Victim | None) -> float:
    """Return how many findings support a cause; infinite for a supported cause."""
    if assessment.state is CauseState.SUPPORTED:
        return math.inf
    patterns = (*cause.primary, *cause.required, *cause.supporting)
    return sum(any(matches(p, f, victim) for p in patterns) for f in findings)


def result_data(result: ToolResult[Any], budget: int = RESULT_CHARS) -> dict[str, Any]:
    """Return the result of a tool with at most `budget` characters of findings, the most important first."""
    return {
        "tool": result.tool,
        "status": result.status.value,
        "window_s": round(result.coverage.window_s, 3),
        **_findings(result.findings, budget),
        **_compared(result),
        "not_seen": _spots(result.coverage.not_seen),
        **({"artifacts": [_artifact(a) for a in result.artifacts]} if result.artifacts else {}),
    }


def _compared(result: ToolResult[Any]) -> dict[str, Any]:
    """Return by how much the step changed since the earlier recording, beside the findings that name its parts."""
    found = result.data.compared if result.tool == PATH_TOOL else None
    if found is None:
        return {}
    step = found.step.model_dump(mode="json", exclude_none=True) if found.step is not None else None
    parts = {"tested": found.tested, "changed": found.changed}
    return {"compared_with_earlier": {"unit": found.unit, "step": step, "parts": parts}}


def other_process_data(other: OtherProcess, results: Sequence[ToolResult[Any]]) -> dict[str, Any]:
    """Return the results of a window on another process, with their findings apart from those of the case."""
    return {
        "process": other.pid,
        "named_by": other.finding,
        "role": other.role,
        "results": [result_data(result, RESULT_CHARS // max(len(results), 1)) for result in results],
    }


def error_data(error: ToolError) -> dict[str, Any]:
    return {"error": error.code.value, "message": error.message, "remedy": error.remedy}


def finding_data(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "kind": finding.kind,
        "polarity": finding.polarity.value,
        "severity": finding.severity.value,
        "subject": {k: _short(v) for k, v in finding.subject.model_dump(exclude_none=True).items()},
        "metrics": {name: _rounded(value) for name, value in finding.metrics.items()},
        **({"attributes": {k: _short(v) for k, v in finding.attributes.items() if v}} if finding.attributes else {}),
    }


def _findings(findings: Iterable[Finding], budget: int) -> dict[str, Any]:
    """Return findings within `budget` characters, the units of their metrics, and how many were left out."""
    order = sorted(findings, key=lambda f: (f.polarity is not Polarity.ABNORMAL, -f.severity.rank, -f.window_pct))
    data = [finding_data(f) for f in order]
    kept = _fitting(data, budget)
    units = {
        name: unit
        for finding in order[: len(kept)]
        for name, unit in finding.spec.metrics.items()
        if name in finding.metrics and not (unit in _IN_NAME and name.endswith(f"_{unit}"))
    }
    return {"units": units, "findings": kept, **({"left_out": len(data) - len(kept)} if len(kept) < len(data) else {})}


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {"uri": artifact.uri, "title": artifact.title, "bytes": artifact.bytes}


def _cause(assessment: Assessment, cause: Cause, left: Sequence[Tool[Any, Any]], lang: Lang) -> dict[str, Any]:
    ranked = sorted(cause.remedies, key=lambda r: (-r.gain, r.effort))
    supported = assessment.state is CauseState.SUPPORTED
    return {
        "cause": cause.id,
        "title": cause.title.get(lang),
        "state": assessment.state.value,
        "explained_pct": _rounded(assessment.explained_pct),
        "for": assessment.for_,
        "against": assessment.against,
        "tools": [tool.name for tool in left if is_relevant(tool, cause)],
        **({"remedies": [r.id for r in ranked]} if supported else {}),
    }


def _spots(spots: Iterable[BlindSpot]) -> list[dict[str, str]]:
    distinct = dict.fromkeys((spot.code, _short(spot.detail)) for spot in spots)
    return [{"code": code, **({"detail": detail} if detail else {})} for code, detail in list(distinct)[:_SPOTS]]


def _fitting(values: Sequence[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """Return the first of `values` that fit into `budget` characters, at least one."""
    kept: list[dict[str, Any]] = []
    for value in values:
        budget -= len(json.dumps(value, ensure_ascii=False))
        if budget < 0 and kept:
            break
        kept.append(value)
    return kept


def _short(value: Any, limit: int = _TEXT) -> Any:
    """Return a text with at most `limit` characters, without its middle: names differ at their ends."""
    if not isinstance(value, str) or len(value) <= limit:
        return value
    half = (limit - 1) // 2
    return f"{value[:half]}…{value[-half:]}"


def _rounded(value: float) -> float | int:
    """Round to six significant digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.6g}")
