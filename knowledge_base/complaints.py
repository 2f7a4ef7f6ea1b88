"""Tell a complaint about a job from a question about it, and from a request to look at it."""

from __future__ import annotations

from whystall.knowledge_base.tokens import concepts

_SUFFERS = frozenset({"slow", "growing", "hang"})
_INQUIRY = {"inquiry"}
_QUESTIONS = ("?", "？", "吗", "呢")


def is_complaint(symptom: str) -> bool:
    """Return whether `symptom`, in any words, says that the job suffers: any statement does, since nobody reports that
    a job is well; a question does if it names what is wrong (slow, hangs)."""
    if reports_nothing(symptom):
        return False
    return not symptom.strip().endswith(_QUESTIONS) or not _SUFFERS.isdisjoint(concepts(symptom))


def reports_nothing(symptom: str) -> bool:
    """Return whether `symptom` is empty, or only asks to look at the job or whether all is well."""
    return not symptom.strip() or concepts(symptom) == _INQUIRY
