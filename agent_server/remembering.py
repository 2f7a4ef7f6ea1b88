"""What is kept of a diagnosis: the past incidents it resembles, how often they recur, a ticket, and itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.investigation.ranks import with_blind_spot
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.knowledge_base.store import KnowledgeBase


def remember(kb: KnowledgeBase, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
    """Store `diagnosis` with the past incidents it resembles and, where `ticket` asks for one and it is not healthy, a
    drafted ticket; returns it so completed. See `KnowledgeBase.remember`.

    What was found out is worth more than its being kept, and a full disk may be why the job stalls: without room it is
    compared with past incidents only, and says so (`not_stored`).
    """
    try:
        return kb.remember(diagnosis, ticket)
    except ToolError as error:
        if error.code is not ErrorCode.DISK_FULL:
            raise
        if diagnosis.verdict is not Verdict.HEALTHY:
            diagnosis = diagnosis.model_copy(update={"matches": kb.match(diagnosis)})
        return with_blind_spot(diagnosis, "not_stored", error.message)
