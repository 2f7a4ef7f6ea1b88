"""Which ticket a stall belongs to that both the watcher and an alert on its metrics report.

Both store the stall as a subject of their ticket (``stall:gpu03/llama-sft``), so that whoever is second finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from whystall.agent_server.metrics.families import LABEL
from whystall.agent_server.metrics.stall_seconds import UNKNOWN
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.knowledge_base.models import Diagnosis
    from whystall.knowledge_base.ticket_models import Ticket

MARK = {"whystall": "stall"}
"""The label by which the rules in deploy/prometheus mark alerts on stalls."""
_KIND = "stall"
_BEFORE_S, _PRESENT_S = 3600.0, 600.0
_SKEW_S = 120.0  # between the clocks of two hosts


def labels_of(job: str, host: str, rank: int | None) -> dict[str, str]:
    """Return the labels of the watcher's ticket: those by which its metrics name the job."""
    named = {"job_name": clean(job, LABEL), "host": clean(host, LABEL)}
    return named | ({} if rank is None else {"rank": str(rank)})


def subject_of(labels: Mapping[str, str]) -> str | None:
    """Return the subject of a stall; None if the labels name no job or no host."""
    job, host = labels.get("job_name"), labels.get("host")
    return f"{_KIND}:{host}/{job}" if job and host else None


def is_alert_on_stall(labels: Mapping[str, str]) -> bool:
    """Return whether an alert comes from our rules."""
    return MARK.items() <= labels.items()


def diagnosed_ticket(kb: Stores, things: Iterable[str], cause: str, began: float, now: float) -> Ticket | None:
    """Return the live ticket with a diagnosis about the stalls among `things` of an alert that `began` then; None if
    there is none.

    The ticket has the alert's `cause` and was reported from an hour before; none for an unknown one. An alert without a
    cause is about a stall in progress: the watcher reported it at most ten minutes before, whatever its cause is.
    `things` of several jobs give None: no ticket is about all of them.
    """
    stalls = [thing for thing in things if thing.startswith(f"{_KIND}:")]
    if len({stall.partition("/")[2] for stall in stalls}) != 1:
        return None
    since = min(began, now) - (_BEFORE_S if cause else _PRESENT_S)
    for ticket in _tickets(kb, stalls, since, now):
        if ticket.diagnosis is not None and (not cause or (ticket.diagnosis.cause or UNKNOWN) == cause):
            return ticket
    return None


def file_stall(
    kb: Stores, service: TicketService, diagnosis: Diagnosis, labels: Mapping[str, str], now: float
) -> tuple[Ticket, bool]:
    """Return the ticket of a stall that the watcher has diagnosed, and whether it is new: the one of alerts about it
    that has no diagnosis yet, else that of the same fault, else a new one. Call it in a transaction.
    """
    before = undiagnosed_ticket(kb, labels, now)
    if before is not None:
        ticket = service.attach(before.id, diagnosis)
    else:
        ticket = kb.tickets.draft(diagnosis, labels=labels)
        service.settle(ticket.id)
    if (subject := subject_of(labels)) is not None:
        kb.alerts.put_subjects(ticket.id, [subject], now)
    return ticket, before is None and ticket.occurrences == 1


def undiagnosed_ticket(kb: Stores, labels: Mapping[str, str], now: float) -> Ticket | None:
    """Return the latest live ticket of alerts about the stall of `labels` that has no diagnosis yet."""
    subject = subject_of(labels)
    found = _tickets(kb, [subject] if subject else [], now - _BEFORE_S, now)
    return next((one for one in found if one.diagnosis is None and one.origin == "alert"), None)


def _tickets(kb: Stores, subjects: list[str], since: float, now: float) -> list[Ticket]:
    """Return the live tickets about `subjects` reported since then, the latest first."""
    about = kb.alerts.tickets_about(subjects, since, now + _SKEW_S)
    return [kb.tickets.get(id) for id in dict.fromkeys(id for id, _ in about)]
