"""What is kept of a diagnosis: the past incidents it resembles, a ticket, and the diagnosis itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Diagnosis, Verdict

if TYPE_CHECKING:
    from whystall.knowledge_base.store import KnowledgeBase


def remember(kb: KnowledgeBase, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
    """Store `diagnosis` with the past incidents it resembles and, where `ticket` asks for one and it is not healthy, a
    drafted ticket; returns it so completed.
    """
    if diagnosis.verdict is not Verdict.HEALTHY:
        diagnosis = diagnosis.model_copy(update={"matches": kb.match(diagnosis)})
        if ticket:
            diagnosis = diagnosis.model_copy(update={"ticket": kb.draft_ticket(diagnosis).id})
    kb.save_diagnosis(diagnosis)
    return diagnosis
