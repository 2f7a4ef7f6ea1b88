"""Merges tickets of the same fault. Call all functions in the transaction of the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.faults import dedup_key as fault_of
from whystall.knowledge_base.faults import same_fault
from whystall.knowledge_base.ticket_models import LIVE, Link
from whystall.knowledge_base.tickets import life
from whystall.knowledge_base.tickets.ticket_store import TicketStore
from whystall.knowledge_base.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis
    from whystall.knowledge_base.ticket_models import Ticket

_LINKS = 20  # of a ticket; no more are added automatically


def attach_target(tickets: TicketStore, id: str, diagnosis: Diagnosis) -> Ticket:
    """Return the ticket to which a diagnosis of ticket `id` is attached: its original if it became a duplicate
    meanwhile, unless the original has another fault.
    """
    ticket = tickets.get(id)
    if ticket.closed_as != "duplicate":
        return ticket
    original = tickets.original(id)
    return original if original.state in LIVE and original.fault in (None, fault_of(diagnosis)) else ticket


def same_fault_tickets(tickets: TicketStore, ticket: Ticket, diagnosis: Diagnosis) -> list[Ticket]:
    """Return `ticket`, which has `diagnosis` now, and the live ones with the same fault, the oldest first; only
    `ticket` if the oldest cannot hold more duplicates.
    """
    alike = tickets.of_fault(ticket.fault) if ticket.fault is not None else []
    same = [t for t in alike if t.id != ticket.id and t.diagnosis is not None and same_fault(t.diagnosis, diagnosis)]
    found = sorted([*same, ticket], key=lambda t: int(t.id))
    return found if len(found[0].links) + len(found) <= life.LINKS else [ticket]


def link_similar(tickets: TicketStore, ticket: Ticket, by: str, at: datetime) -> Ticket:
    """Link `ticket` to the latest live one whose fault looks the same without being proven the same."""
    linked = {ticket.id, *(link.ticket for link in ticket.links)}
    alike = tickets.of_fault(ticket.fault) if ticket.fault is not None else []
    other = next((t for t in reversed(alike) if t.id not in linked and len(t.links) < _LINKS), None)
    if other is None:
        return ticket
    return tickets.link(ticket.id, Link(kind="related", ticket=other.id, why=["fault"], by=by, at=rfc3339(at)))


def merge(kb: Stores, one: str, into: str, by: str, at: datetime, why: Sequence[str]) -> Ticket:
    """Close ticket `one` as a duplicate of `into`, which takes over its deliveries, assignment and acknowledgement.

    Return `into`.
    """
    before = kb.tickets.get(one)
    original = kb.tickets.duplicate(one, into, by, rfc3339(at), why)
    if original.state not in LIVE:
        return original
    for delivery in kb.deliveries.of_ticket(one):
        kb.deliveries.want(delivery.sink, original.id)
    had = before.assignment
    if had is not None and had.users and (original.assignment is None or not original.assignment.users):
        original = kb.tickets.assign(original.id, had, by, rfc3339(at))
    if before.state == "acknowledged" and original.state == "open":
        actors = [event.by for event in kb.tickets.events(one) if event.what == "acknowledged"]
        original = kb.tickets.acknowledge(original.id, actors[-1] if actors else by, rfc3339(at))
    return original
