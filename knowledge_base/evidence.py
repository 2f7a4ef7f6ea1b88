"""What is known of a case, as it is looked up by: what was told at first, what was measured, and what it means."""

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
    """A case to find the like of.

    `symptom`: what was noticed at first, in any words. `cause`: the cause found, if any; `ruled_out`: causes that the
    evidence excludes. `signatures`: exact keys, the most telling first. `features`: typed facts (`features.TYPES`,
    ``kind:``). `normal`: kinds of findings that were measured and found normal, and never abnormal. `ran`: tools that
    looked. `sure`: whether the cause is more than the best guess: nothing is known again by a guess. `at`: now, RFC
    3339; recency is counted from it (empty: from the clock).
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
    """The evidence of a diagnosis, finished or as it stands."""
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
    """The evidence that somebody gives without a diagnosis: findings of tools, features in words (``kind:...``,
    ``op:...``; unknown ones count for nothing), the symptom as told, a cause if one is believed (unknown ones are
    dropped).
    """
    abnormal = [f for f in findings if f.polarity is Polarity.ABNORMAL]
    found = [feature for finding in abnormal for feature in facts.of_finding(finding)]
    return Evidence(
        symptom=symptom,
        cause=cause if cause in load_causes() else None,
        signatures=tuple(f"finding:{f.fingerprint}" for f in abnormal if keys.distinctive(f)),
        features=tuple(dict.fromkeys([*found, *facts.given(features)])),
        normal=_normal(findings),
        ran=frozenset(ran),
    )


def _normal(findings: Sequence[Finding]) -> frozenset[str]:
    bad = {f.kind for f in findings if f.polarity is Polarity.ABNORMAL}
    return frozenset(f.kind for f in findings if f.polarity is Polarity.NORMAL) - bad
