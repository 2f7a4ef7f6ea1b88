"""Tell a complaint about a job from a question about it."""

from __future__ import annotations

from whystall.knowledge_base.tokens import concepts

_SUFFERS = frozenset({"slow", "growing", "hang"})
_QUESTIONS = ("?", "？", "吗", "呢")


def is_complaint(symptom: str) -> bool:
    """Return whether `symptom`, in any words, says that the job suffers: any statement does, since nobody reports that
    a job is well; a question does if it names what is wrong (slow, hangs)."""
    text = symptom.strip()
    return bool(text) and (not text.endswith(_QUESTIONS) or not _SUFFERS.isdisjoint(concepts(text)))
