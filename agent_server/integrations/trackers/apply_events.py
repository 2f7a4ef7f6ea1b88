"""Applies events of trackers to our tickets; the effects of our own requests are recognised and ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.desired import phase_of
from whystall.agent_server.integrations.trackers.issue import SyncState, TrackerEvent
from whystall.agent_server.integrations.trackers.json_values import tracker_time
from whystall.agent_server.integrations.trackers.text import own_comment
from whystall.agent_server.settings.sections.trackers import SinkSettings, TrackerSettings
from whystall.knowledge_base.ticket_models import LIVE, ClosedAs
from whystall.knowledge_base.tickets.ticket_store import TicketStore
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.journal.deliveries import Delivery
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService

COMMENT_LIMIT = 4000
"""Characters of a comment; longer ones are cut."""
_NUMBER = re.compile(r"[0-9]{1,18}")  # within SQLite's integers


def apply(
    events: Iterable[TrackerEvent],
    sink: str,
    settings: SinkSettings,
    kb: Stores,
    ticket_service: TicketService,
    now: float,
) -> int:
    """Apply events of the tracker `sink`. Return the number of changes. `now`: seconds since the epoch.

    Each event is stored as handled in the transaction of its change, so that receiving it again has no effect. Changes
    that the ticket's state does not allow are noted in the audit log.
    """
    done = 0
    for event in events:
        with kb.transaction():
            if kb.handled_requests.first(f"sink:{sink}", event.key, now):
                done += _apply(event, sink, settings, kb, ticket_service, now)
    return done


def _apply(
    event: TrackerEvent, sink: str, settings: SinkSettings, kb: Stores, ticket_service: TicketService, now: float
) -> int:
    delivery = (
        kb.deliveries.get(sink, event.ticket)
        if _NUMBER.fullmatch(event.ticket)
        else kb.deliveries.of_remote(sink, event.remote)
    )
    if delivery is None:
        return 0
    sent = SyncState.model_validate(delivery.memory)
    account = getattr(settings, "account", "")
    own = bool(account) and event.by.casefold() == account.casefold()
    if event.comment:
        if own or own_comment(event.text) is not None:
            return 0
        return _comment(event, sink, delivery, ticket_service, kb.tickets, now)
    if own or event.phase is None or _outdated(event, sent):
        return 0
    has_issues = isinstance(settings, TrackerSettings)
    if has_issues and not _by_people(event, sent):
        kb.deliveries.patch_memory(sink, delivery.ticket, {"heard": event.changed})
        return 0
    try:
        changed = _change_state(event, sink, delivery, kb.tickets, ticket_service, now)
    except ToolError as error:
        if error.code is not ErrorCode.BAD_ARGUMENT:
            raise
        kb.audit.put(
            f"sink:{sink}", "sink.refused", f"ticket:{delivery.ticket}", error.code.value, {"why": error.message}
        )
        changed = False
    kb.deliveries.patch_memory(sink, delivery.ticket, {"phase": event.phase, "heard": event.changed})
    over = phase_of(kb.tickets.get(delivery.ticket)) == "over"
    if has_issues and over != (event.phase == "over"):
        kb.deliveries.resend(sink, delivery.ticket)  # our ticket keeps its state: set the issue back
    return int(changed)


def _outdated(event: TrackerEvent, sent: SyncState) -> bool:
    """Return whether a later event was received before: webhooks may arrive out of order."""
    at, latest = tracker_time(event.changed), tracker_time(sent.heard)
    return at is not None and latest is not None and at < latest


def _by_people(event: TrackerEvent, sent: SyncState) -> bool:
    """Return whether people changed the state after our last change."""
    if event.phase == sent.phase:
        return False
    at, ours = tracker_time(event.changed), tracker_time(sent.stamp)
    return at is None or ours is None or at > ours


def _change_state(
    event: TrackerEvent, sink: str, delivery: Delivery, tickets: TicketStore, ticket_service: TicketService, now: float
) -> bool:
    ticket = tickets.get(delivery.ticket)
    if phase_of(ticket) == event.phase:
        return False
    actor = _actor(event, sink)
    at, source = datetime.fromtimestamp(now, timezone.utc), f"sink:{sink}"
    if event.phase != "over":
        live = ticket.state in LIVE
        if live and event.phase == "open":
            return False  # an acknowledgement is not taken back
        if not live:
            ticket_service.reopen(ticket.id, actor, source, at)
        if event.phase == "acknowledged":
            ticket_service.acknowledge(ticket.id, actor, source, at)
        return True
    reason = clean(" ".join(event.text.split()), 1000) or f"closed in {sink} by {event.by or 'somebody'}"
    if event.closed_as is None or event.closed_as == "fixed":
        # Without a text it is unknown what solved it: no lesson to learn.
        ticket_service.resolve(ticket.id, reason, actor, source, at, lesson=bool(event.text.strip()))
    else:
        # Only the tracker knows of which ticket it is a duplicate.
        closed_as: ClosedAs = "wont_fix" if event.closed_as == "duplicate" else event.closed_as
        ticket_service.close(ticket.id, closed_as, actor, source, at, because=reason)
    return True


def _comment(
    event: TrackerEvent, sink: str, delivery: Delivery, ticket_service: TicketService, tickets: TicketStore, now: float
) -> int:
    text = event.text.strip()
    if not text:
        return 0
    text = text if len(text) <= COMMENT_LIMIT else text[: COMMENT_LIMIT - 3] + "..."
    before = tickets.get(delivery.ticket).revision
    at, key = datetime.fromtimestamp(now, timezone.utc), f"{sink}:{event.comment}"[:200]
    ticket = ticket_service.comment(delivery.ticket, text, _actor(event, sink), f"sink:{sink}", at, key=key)
    return int(ticket.revision > before)


def _actor(event: TrackerEvent, sink: str) -> str:
    return f"sink:{sink}:{clean(event.by, 100)}" if event.by else f"sink:{sink}"
