"""What was heard from a tracker becomes a change of the ticket; what we did there ourselves does not come back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.desired import phase_of
from whystall.agent_server.integrations.trackers.issue import Heard, Memory, point
from whystall.agent_server.integrations.trackers.registry import is_tracker
from whystall.agent_server.integrations.trackers.text import own_comment
from whystall.agent_server.settings.sections.trackers import SinkSettings
from whystall.knowledge_base.tickets.models import LIVE, ClosedAs
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.journal.deliveries import Delivery
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService

COMMENT_LIMIT = 4000
"""Characters of a comment that are taken over."""
_NUMBER = re.compile(r"[0-9]{1,18}")  # what SQLite takes for one


def apply(
    heard: Iterable[Heard], sink: str, settings: SinkSettings, kb: Stores, ticket_service: TicketService, now: float
) -> int:
    """Change our tickets as the tracker `sink` says; how many changes that were. `now`: seconds since the epoch.

    Each is stored together with the memory that it was heard; what is heard again changes nothing. What a ticket's life
    does not allow is noted in the audit log.
    """
    done = 0
    for one in heard:
        with kb.transaction():
            if kb.handled_requests.first(f"sink:{sink}", one.key, now):
                done += _apply(one, sink, settings, kb, ticket_service, now)
    return done


def _apply(one: Heard, sink: str, settings: SinkSettings, kb: Stores, ticket_service: TicketService, now: float) -> int:
    delivery = (
        kb.deliveries.get(sink, one.ticket)
        if _NUMBER.fullmatch(one.ticket)
        else kb.deliveries.of_remote(sink, one.remote)
    )
    if delivery is None:
        return 0
    memory = Memory.model_validate(delivery.memory)
    account = getattr(settings, "account", "")
    own = bool(account) and one.by.casefold() == account.casefold()
    if one.comment:
        return 0 if own or own_comment(one.text) is not None else _comment(one, sink, delivery, kb, ticket_service, now)
    if own or one.phase is None or _late(one, memory):
        return 0
    if is_tracker(settings) and not _news(one, memory):
        kb.deliveries.patch_memory(sink, delivery.ticket, {"heard": one.changed})
        return 0
    try:
        changed = _move(one, sink, delivery, kb, ticket_service, now)
    except ToolError as error:
        if error.code is not ErrorCode.BAD_ARGUMENT:
            raise
        kb.audit.put(
            f"sink:{sink}", "sink.refused", f"ticket:{delivery.ticket}", error.code.value, {"why": error.message}
        )
        changed = False
    kb.deliveries.patch_memory(sink, delivery.ticket, {"phase": one.phase, "heard": one.changed})
    over = phase_of(kb.tickets.get(delivery.ticket)) == "over"
    if is_tracker(settings) and over != (one.phase == "over"):
        kb.deliveries.resend(sink, delivery.ticket)  # our ticket stays as it is, and so shall the issue
    return int(changed)


def _late(one: Heard, memory: Memory) -> bool:
    """Whether something that happened later was heard of before: webhooks overtake each other."""
    at, heard = point(one.changed), point(memory.heard)
    return at is not None and heard is not None and at < heard


def _news(one: Heard, memory: Memory) -> bool:
    """Whether people changed the state there, after what we last did to it."""
    if one.phase == memory.phase:
        return False
    at, ours = point(one.changed), point(memory.stamp)
    return at is None or ours is None or at > ours


def _move(one: Heard, sink: str, delivery: Delivery, kb: Stores, ticket_service: TicketService, now: float) -> bool:
    ticket = kb.tickets.get(delivery.ticket)
    if phase_of(ticket) == one.phase:
        return False
    who = _who(one, sink)
    at, source = datetime.fromtimestamp(now, timezone.utc), f"sink:{sink}"
    if one.phase == "acknowledged":
        if ticket.state in LIVE:
            ticket_service.acknowledge(ticket.id, who, source, at)
            return True
        ticket_service.reopen(ticket.id, who, source, at)
        ticket_service.acknowledge(ticket.id, who, source, at)
        return True
    if one.phase == "open":
        if ticket.state in LIVE:
            return False  # somebody has said a word; nobody unsays it
        ticket_service.reopen(ticket.id, who, source, at)
        return True
    reason = clean(" ".join(one.text.split()), 1000) or f"closed in {sink} by {one.by or 'somebody'}"
    closed_as: ClosedAs | None = one.closed_as
    if closed_as is None or closed_as == "fixed":
        # That somebody closed it says nothing of what solved it, and is no lesson.
        ticket_service.resolve(ticket.id, reason, who, source, at, lesson=bool(one.text.strip()))
    else:
        # Of which it is a duplicate is known in the tracker alone.
        as_: ClosedAs = "wont_fix" if closed_as == "duplicate" else closed_as
        ticket_service.close(ticket.id, as_, who, source, at, because=reason)
    return True


def _comment(one: Heard, sink: str, delivery: Delivery, kb: Stores, ticket_service: TicketService, now: float) -> int:
    text = one.text.strip()
    if not text:
        return 0
    text = text if len(text) <= COMMENT_LIMIT else text[: COMMENT_LIMIT - 3] + "..."
    before = kb.tickets.get(delivery.ticket).revision
    at = datetime.fromtimestamp(now, timezone.utc)
    ticket = ticket_service.comment(
        delivery.ticket, text, _who(one, sink), f"sink:{sink}", at, key=f"{sink}:{one.comment}"[:200]
    )
    return int(ticket.revision > before)


def _who(one: Heard, sink: str) -> str:
    return f"sink:{sink}:{clean(one.by, 100)}" if one.by else f"sink:{sink}"
