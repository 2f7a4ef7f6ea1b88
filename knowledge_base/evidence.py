"""The evidence of a case, as used to find similar incidents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from whystall.knowledge_base import features as facts
from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict
from whystall.tools.contract.findings import Finding, Polarity


@dataclass(frozen=True)
class Evidence:
    """Evidence of a case.

    `symptom`: as first reported, in any words. `cause`: the cause found, if any; `ruled_out`: causes excluded.
    `signatures`: exact keys, most specific first. `features`: typed facts (`features.TYPES`, ``kind:``). `normal`:
    kinds of findings measured as normal, and never as abnormal. `ran`: tools that ran. `sure`: the cause is at least
    likely; only then can an incident be known. `at`: RFC 3339, reference for recency (empty: now).
    """

    symptom: str = ""
    cause: str | None = None
    ruled_out: frozenset[str] = frozenset()
    signatures: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    normal: frozenset[str] = frozenset()
    ran: frozenset[str] = field(default_factory=frozenset)
    sure: bool = True
    at: str = ""


def evidence_of(diagnosis: Diagnosis) -> Evidence:
    """Return the evidence of a diagnosis, finished or in progress."""
    ran = {name for step in diagnosis.steps for name, status in step.status.items() if status != "error"}
    return Evidence(
        symptom=diagnosis.symptom,
        cause=diagnosis.cause,
        ruled_out=frozenset(a.cause for a in diagnosis.assessments if a.state is CauseState.RULED_OUT),
        signatures=tuple(keys.signatures(diagnosis)),
        features=tuple(facts.of_diagnosis(diagnosis)),
        normal=_normal(diagnosis.findings),
        ran=frozenset(ran),
        sure=diagnosis.verdict in (Verdict.CONFIRMED, Verdict.LIKELY),
        at=diagnosis.created,
    )


def evidence_from(
    findings: Sequence[Finding] = (),
    *,
    features: Iterable[str] = (),
    symptom: str = "",
    cause: str | None = None,
    ran: Iterable[str] = (),
) -> Evidence:
    """Return evidence given without a diagnosis: findings of tools, features as text (``kind:...``, ``op:...``; unknown
    ones are ignored), the symptom, an assumed cause (ignored if unknown).
    """
    abnormal = [f for f in findings if f.polarity is Polarity.ABNORMAL]
    found = [feature for finding in abnormal for feature in facts.of_finding(finding)]
    return Evidence(
        symptom=symptom,
        cause=cause if cause in load_causes() else None,
        signatures=tuple(
            [f"finding:{f.fingerprint}" for f in abnormal if keys.distinctive(f)]
            + [key for f in abnormal for key in keys.crash_keys(f)]
        ),
        features=tuple(dict.fromkeys([*found, *facts.normalized(features)])),
        normal=_normal(findings),
        ran=frozenset(ran),
    )


def _normal(findings: Sequence[Finding]) -> frozenset[str]:
    bad = {f.kind for f in findings if f.polarity is Polarity.ABNORMAL}
    return frozenset(f.kind for f in findings if f.polarity is Polarity.NORMAL) - bad
