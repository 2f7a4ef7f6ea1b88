"""What would be sent to a tracker now: for ``--dry-run``. Nothing is stored, nothing is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker
from whystall.agent_server.integrations.trackers.desired import comment_of, issue_of, note_of
from whystall.agent_server.integrations.trackers.gitlab import GitLab
from whystall.agent_server.integrations.trackers.issue import Memory, Seen
from whystall.agent_server.integrations.trackers.issue_sync import changes, creation
from whystall.agent_server.integrations.trackers.jira import Jira
from whystall.agent_server.integrations.trackers.registry import Board, board
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.outbound.request import Request
from whystall.agent_server.settings.sections.trackers import PagerDutySink, WebhookSink
from whystall.knowledge_base.models import Lang

if TYPE_CHECKING:
    from whystall.agent_server.journal.deliveries import Delivery
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

_MANY = 100
_NONCE = "0" * 16


def planned(kb: Stores, settings: Settings, sink: str, ticket: str | None, now: float) -> list[Request]:
    """The requests that would bring `sink` up to date (`ticket` alone, where one is named), of 100 tickets at most.

    An issue that is there is not read, so that changes show as if nobody else had changed it.
    """
    found = kb.deliveries.of_sink(sink, limit=10 * _MANY)
    behind = [d for d in found if d.pending and ticket in (None, d.ticket)][:_MANY]
    return [request for delivery in behind for request in _of(kb, settings, delivery, now)]


def _of(kb: Stores, settings: Settings, delivery: Delivery, now: float) -> list[Request]:
    sink = settings.sinks[delivery.sink]
    lang: Lang = sink.lang or settings.tickets.lang
    ticket = kb.tickets.get(delivery.ticket)
    memory = Memory.model_validate({"nonce": _NONCE, **delivery.memory})
    if isinstance(sink, PagerDutySink | WebhookSink):
        courier = DeliveryWorker(kb, settings, Client(), lambda: now)
        return courier.notices(delivery.sink, sink, ticket, memory, lang)
    ready: Board = board(delivery.sink, sink)
    issue = issue_of(ticket, ready.name, sink, settings.users, lang, memory.nonce, ready.title_limit)
    note = note_of(ticket, lang)
    looked: list[Request] = []
    if isinstance(ready, GitLab):  # which knows people by numbers, and would be asked for them
        looked = [ready.user(who) for who in issue.assignees if not who.isdigit()]
        known = memory.assignees if looked else issue.assignees
        issue = replace(issue, assignees=tuple(known))
    if not delivery.remote:
        looked += [ready.newest("")] if delivery.underway is not None else []
        return [*looked, creation(ready, issue, note, set(memory.left_out))]
    seen = Seen(
        delivery.remote,
        delivery.url,
        memory.title,
        "",
        memory.phase or "open",
        tuple(memory.labels),
        tuple(memory.assignees),
    )
    part = ready.format.part(issue.generated, issue.marker, ready.format.limit, note)
    edit = changes(issue, memory, seen, None if memory.hands_off else part)
    requests = [*looked, *([] if edit.empty else [ready.read(delivery.remote)])]
    requests += ready.edit(delivery.remote, edit, seen, set(memory.left_out))
    if isinstance(ready, Jira) and edit.phase is not None:
        requests.append(ready.transitions(delivery.remote))
    events = kb.tickets.events(ticket.id, after=memory.events)
    text = (
        comment_of(ticket, events, ticket.human.comments[memory.comments :], ready.name, lang)
        if sink.comments
        else None
    )
    if text is not None:
        number = events[-1].n if events else memory.events
        said = ready.format.comment(text, memory.nonce, number, ready.comment_limit, note)
        requests.append(ready.say(delivery.remote, said))
    return requests
