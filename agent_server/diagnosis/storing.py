"""What is kept of a diagnosis: the past incidents it resembles, how often they recur, a ticket, and itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.diagnosis.ranks import with_blind_spot
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.desk import Desk


def remember(
    kb: Stores,
    diagnosis: Diagnosis,
    desk: Desk | None = None,
    then: Callable[[Diagnosis], None] | None = None,
) -> Diagnosis:
    """Store `diagnosis` with the past incidents it resembles and, where `desk` is given and it is not healthy, a ticket
    that is drafted, assigned and marked for its trackers; returns it so completed. See `Stores.remember`. What
    `then` stores is stored together with it, or neither is.

    What was found out is worth more than its being kept, and a full disk may be why the job stalls: without room it is
    compared with past incidents only, and says so (`not_stored`). With `then` that is an error, since what follows from
    it is what was asked for.
    """
    try:
        if then is None and desk is None:
            return kb.remember(diagnosis, ticket=False)
        with kb.transaction():
            stored = kb.remember(diagnosis, ticket=desk is not None)
            if desk is not None and stored.ticket is not None:
                desk.settle(stored.ticket)
            if then is not None:
                then(stored)
        return stored
    except ToolError as error:
        if error.code is not ErrorCode.DISK_FULL or then is not None:
            raise
        if diagnosis.verdict is not Verdict.HEALTHY:
            diagnosis = diagnosis.model_copy(update={"matches": kb.match(diagnosis)})
        return with_blind_spot(diagnosis, "not_stored", error.message)
