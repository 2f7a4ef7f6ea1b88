"""Keep the tickets that hosts report as tickets of the centre.

A ticket of a host has one live ticket here. Tickets of one fault are merged as any others are, also those of several
hosts. What people do here is kept: a ticket that they ended is not changed by its host, and one that several hosts
report is not ended by one of them.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whystall.agent_server.ticketing.stall_tickets import subject_of
from whystall.knowledge_base.classify.report import TEXT_LIMIT, TITLE_LIMIT, Report
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.ticket_models import LIVE, ClosedAs, Decision, Ticket
from whystall.knowledge_base.tickets import human
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.foreign_json import inert
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService

_REF = r"[0-9a-f]{8,64}"
_COMMENTS = 100
_LABEL = "host"
_UNLIKE = re.compile(r"[^\w.-]")


class HostReport(BaseModel):
    """A ticket of a host. `ref`: what the host calls it here, unguessable; `title`: as shown, with its diagnosis."""

    model_config = ConfigDict(extra="ignore")

    ref: str = Field(pattern=f"^{_REF}$")
    title: str
    ticket: Ticket


def parsed(body: Any) -> HostReport:
    """Return the report in JSON from a host, made inert but for what people wrote, which is made so when it is stored.

    Raises `ToolError` (bad_argument).
    """
    try:
        ticket = body["ticket"]
        written = ticket.pop("human", {})
        body = inert(body)
        body["ticket"]["human"] = written
        return HostReport.model_validate(body)
    except ValidationError as error:
        where = clean(".".join(map(str, error.errors()[0]["loc"])), 200)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        where = clean(str(error), 200)
    raise ToolError(
        ErrorCode.BAD_ARGUMENT, f"the report of a ticket is malformed: {where}", "let host and centre run one version"
    )


def keep(kb: Stores, service: TicketService, host: str, report: HostReport, now: float) -> str:
    """Store a report of `host`, once per revision of its ticket; return the id of the ticket here, empty if none is
    needed since it was over before the first report. `now`: seconds since the epoch.

    Raises what `TicketService` raises.
    """
    at, by, theirs = datetime.fromtimestamp(now, timezone.utc), f"host:{host}", report.ticket
    key = f"host:{host}:{report.ref}"
    with kb.transaction():
        live = kb.tickets.live(key)
        if not kb.handled_requests.first(by, f"{report.ref}-{theirs.revision}", now):
            return live.id if live else ""
        if live is None:
            if theirs.state not in LIVE:
                return ""
            live = service.file(_report(host, key, report), by, at).ticket
        if (stall := subject_of(live.labels)) is not None:
            kb.alerts.put_subjects(live.id, [stall], now)
        ticket = live
        if theirs.diagnosis is not None and not theirs.diagnosis.verdict.no_fault:
            ticket = service.attach(live.id, diagnosis_of(theirs.diagnosis, host), by, at)
        for number, comment in enumerate(theirs.human.comments[-_COMMENTS:]):
            unique = f"{host}:{report.ref}:{comment.key or number}:{comment.at}"
            who = f"{comment.by}@{host}"
            ticket = service.comment(ticket.id, comment.text, who, by, at, key=unique)
        return _moved(service, ticket, theirs, by, at).id


def _report(host: str, key: str, report: HostReport) -> Report:
    ticket = report.ticket
    severity = Decision(value=ticket.severity.value, by=f"label:{_LABEL}")
    return Report(
        origin=ticket.origin,
        title=clean(report.title, TITLE_LIMIT),
        description=human.lines(ticket.human.description, TEXT_LIMIT),
        labels={**ticket.labels, _LABEL: host},
        given={"severity": severity},
        dedup_key=key,
        created=ticket.created,
    )


def diagnosis_of(diagnosis: Diagnosis, host: str) -> Diagnosis:
    """Return a diagnosis of `host` with the host in its id, so that no host replaces another's. Its files are there."""
    id = f"{_UNLIKE.sub('_', host)}-{_UNLIKE.sub('_', diagnosis.id)}"
    return diagnosis.model_copy(update={"id": id, "ticket": None, "artifacts": [], "recording": None})


def _moved(service: TicketService, ticket: Ticket, theirs: Ticket, by: str, at: datetime) -> Ticket:
    """Bring `ticket` to the state that its host reports, if that is of this ticket alone."""
    if ticket.state not in LIVE:
        return ticket
    if theirs.state == "acknowledged" and ticket.state == "open":
        return service.acknowledge(ticket.id, by, by, at)
    if theirs.state in LIVE or any(link.kind == "duplicated_by" for link in ticket.links):
        return ticket
    if theirs.state == "resolved" or theirs.closed_as == "fixed":
        return service.resolve(
            ticket.id, theirs.resolution or f"over on {by}", by, by, at, lesson=bool(theirs.resolution)
        )
    # Of which ticket it is a duplicate, only the host knows.
    closed_as: ClosedAs = theirs.closed_as if theirs.closed_as not in (None, "duplicate") else "wont_fix"
    return service.close(ticket.id, closed_as, by, by, at, because=theirs.resolution)
