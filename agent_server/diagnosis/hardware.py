"""Make a diagnosis of what gpu_health reads of a host, where an alert names hardware and no process. Pure.

No victim was observed, so that no cause is named: the findings are the content.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timezone

from whystall.agent_server.diagnosis.case import step_of
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.findings import Polarity, Severity
from whystall.tools.contract.result import ToolResult
from whystall.tools.host.gpu_health.data import Data

_SHOWN = 10
"""Most findings that are shown as evidence; all are kept."""


def hardware_diagnosis(result: ToolResult[Data], target: str, symptom: str) -> Diagnosis:
    """Return the inconclusive diagnosis of `target` by `result`; older messages are notes, and no evidence."""
    findings = [one.model_copy(update={"id": f"F{number}"}) for number, one in enumerate(result.findings, 1)]
    bad = [one for one in findings if one.polarity is Polarity.ABNORMAL and not one.attributes.get("relevance")]
    now = datetime.now(timezone.utc)
    return Diagnosis(
        id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        created=rfc3339(now),
        target=target,
        symptom=symptom,
        verdict=Verdict.INCONCLUSIVE,
        severity=max((one.severity for one in bad), key=lambda severity: severity.rank, default=Severity.INFO),
        chain=[one.id for one in bad[:_SHOWN]],
        missing=["no_victim" if bad else "symptom_not_observed"],
        findings=findings,
        steps=[step_of([result.model_copy(update={"findings": findings})], "alert_names_hardware")],
        coverage=[result.coverage],
        artifacts=[artifact.uri for artifact in result.artifacts],
        recording=result.coverage.recording,
    )
