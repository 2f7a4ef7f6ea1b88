"""What is kept of a diagnosis: the past incidents it resembles, how often they recur, a ticket, and itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.diagnosis.ranks import with_blind_spot
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService


def remember(
    kb: Stores,
    diagnosis: Diagnosis,
    ticket_service: TicketService | None = None,
    then: Callable[[Diagnosis], None] | None = None,
) -> Diagnosis:
    """Store `diagnosis` with the past incidents it resembles, and return it so completed. See `Stores.remember`.

    With `ticket_service`, and unless it is healthy, a ticket is drafted, assigned and queued for its trackers. `then`
    runs in the same transaction.

    What was found out is worth more than its being kept, and a full disk may be why the job stalls: without room it is
    compared with past incidents only, and says so (`not_stored`). With `then` that is an error, since what follows from
    it is what was asked for.
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
        if diagnosis.verdict is not Verdict.HEALTHY:
            diagnosis = diagnosis.model_copy(update={"matches": kb.match(diagnosis)})
        return with_blind_spot(diagnosis, "not_stored", error.message)
