"""Store a diagnosis with the past incidents it resembles, and draft its ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.diagnosis.ranks import with_blind_spot
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService


def store_diagnosis(
    kb: Stores,
    diagnosis: Diagnosis,
    ticket_service: TicketService | None = None,
    then: Callable[[Diagnosis], None] | None = None,
) -> Diagnosis:
    """Store `diagnosis` and return it with the past incidents it resembles; see `Stores.remember`.

    With `ticket_service`, and unless it is healthy or idle, a ticket is drafted, assigned and queued for its trackers.
    `then` is called in the same transaction.

    A full disk may be why the job stalls: the diagnosis is then returned unstored, with the blind spot `not_stored`.
    With `then` it is an error.
    """
    try:
        if then is None and ticket_service is None:
            return kb.remember(diagnosis, ticket=False)
        with kb.transaction():
            stored = kb.remember(diagnosis, ticket=ticket_service is not None)
            if ticket_service is not None and stored.ticket is not None:
                ticket_service.settle(stored.ticket)
            if then is not None:
                then(stored)
        return stored
    except ToolError as error:
        if error.code is not ErrorCode.DISK_FULL or then is not None:
            raise
        if not diagnosis.verdict.no_fault:
            diagnosis = diagnosis.model_copy(update={"matches": kb.match(diagnosis)})
        return with_blind_spot(diagnosis, "not_stored", error.message)
