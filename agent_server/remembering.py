"""What is kept of a diagnosis: the past incidents it resembles, how often they recur, a ticket, and itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Diagnosis

if TYPE_CHECKING:
    from whystall.knowledge_base.store import KnowledgeBase


def remember(kb: KnowledgeBase, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
    """Store `diagnosis` with the past incidents it resembles and, where `ticket` asks for one and it is not healthy, a
    drafted ticket; returns it so completed. See `KnowledgeBase.remember`.
    """
    return kb.remember(diagnosis, ticket)
