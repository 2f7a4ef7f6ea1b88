"""The requests that a delivery would send now, for ``--dry-run``. Stores and sends nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.delivery_worker import notification_of
from whystall.agent_server.integrations.trackers.desired import comment_of, issue_of, note_of
from whystall.agent_server.integrations.trackers.issue import IssueState, SyncState
from whystall.agent_server.integrations.trackers.issue_sync import changes, creation
from whystall.agent_server.integrations.trackers.registry import open_notifier, open_tracker
from whystall.agent_server.outbound.request import Request
from whystall.agent_server.settings.sections.trackers import TrackerSettings
from whystall.knowledge_base.models import Lang

if TYPE_CHECKING:
    from whystall.agent_server.journal.deliveries import Delivery
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

_TICKETS = 100
_NONCE = "0" * 16


def planned(kb: Stores, settings: Settings, sink: str, ticket: str | None, now: float) -> list[Request]:
    """Return the requests that would bring at most 100 tickets (or `ticket`) up to date in `sink`.

    Existing issues are not read: changes are shown as if no one else had edited them.
    """
    found = kb.deliveries.of_sink(sink, limit=10 * _TICKETS)
    behind = [d for d in found if d.pending and ticket in (None, d.ticket)][:_TICKETS]
    return [request for delivery in behind for request in _planned(kb, settings, delivery, now)]


def _planned(kb: Stores, settings: Settings, delivery: Delivery, now: float) -> list[Request]:
    sink = settings.sinks[delivery.sink]
    lang: Lang = sink.lang or settings.tickets.lang
    ticket = kb.tickets.get(delivery.ticket)
    sent = SyncState.model_validate({"nonce": _NONCE, **delivery.memory})
    if not isinstance(sink, TrackerSettings):
        notifier = open_notifier(delivery.sink, sink)
        return notifier.requests(notification_of(kb.tickets, ticket, sent, lang, now))
    tracker = open_tracker(delivery.sink, sink)
    issue = issue_of(ticket, tracker, settings.users, lang, sent.nonce)
    note = note_of(ticket, lang)
    requests = [request for name in issue.assignees if (request := tracker.user_lookup(name)) is not None]
    if requests:  # the ids are not known without asking
        issue = replace(issue, assignees=tuple(sent.assignees))
    if not delivery.remote:
        requests += [tracker.list_newest("")] if delivery.underway is not None else []
        return [*requests, creation(tracker, issue, note, set(sent.left_out))]
    phase, labels, assignees = sent.phase or "open", tuple(sent.labels), tuple(sent.assignees)
    state = IssueState(delivery.remote, delivery.url, sent.title, "", phase, labels, assignees)
    part = tracker.format.part(issue.generated, issue.marker, tracker.format.limit, note)
    edit = changes(issue, sent, state, None if sent.hands_off else part)
    requests += [] if edit.empty else [tracker.read(delivery.remote)]
    requests += tracker.edit(delivery.remote, edit, state, set(sent.left_out))
    transitions = tracker.list_transitions(delivery.remote)
    if transitions is not None and edit.phase is not None:
        requests.append(transitions)
    events = kb.tickets.events(ticket.id, after=sent.events)
    comments = ticket.human.comments[sent.comments :]
    text = comment_of(ticket, events, comments, tracker.name, lang) if sink.comments else None
    if text is not None:
        number = events[-1].n if events else sent.events
        comment = tracker.format.comment(text, sent.nonce, number, tracker.comment_limit, note)
        requests.append(tracker.comment(delivery.remote, comment))
    return requests
