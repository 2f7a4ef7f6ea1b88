"""The list of tickets, and the page of a ticket with its actions, which are those of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.console.diagnosis_view import diagnosis_context
from whystall.agent_server.interfaces.web.console.site import SOURCE, Site, Visit, paged
from whystall.agent_server.presentation.match_lines import match_texts
from whystall.agent_server.presentation.template_values import TemplateValues
from whystall.agent_server.presentation.ticket_texts import ticket_context
from whystall.agent_server.ticketing.assignees import known_users
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import LIVE, Line, State, Ticket
from whystall.knowledge_base.tickets import human
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.tools.contract.findings import Severity

PAGE = 50
"""Tickets of a page of the list."""
_EVENTS = 1000
_STATES: tuple[State, ...] = get_args(State)
_SEVERITIES = tuple(severity.value for severity in Severity)
_Change = Callable[[TicketService, str, Visit], Ticket]
_WordT = TypeVar("_WordT", bound=str)


def ticket_routes(site: Site) -> Iterator[Route]:
    """Yield the pages of tickets, and their actions."""

    async def listed(visit: Visit) -> Response:
        given = {name: visit.query(name).strip()[:300] for name in ("q", "state", "severity", "assignee")}
        wanted = Wanted(
            # without a state: what is to be done
            states=() if given["state"] == "all" else _of(given["state"], _STATES) or LIVE,
            severities=[Severity(one) for one in _of(given["severity"], _SEVERITIES)],
            assignee="" if given["assignee"] == "-" else given["assignee"] or None,
            words=given["q"],
        )

        def read() -> tuple[int, Sequence[Line]]:
            return site.kb.tickets.count(wanted), site.kb.tickets.lines(wanted, PAGE, (visit.page - 1) * PAGE)

        count, lines = await in_thread(read)
        return site.show(
            visit,
            "tickets",
            given=given,
            states=_STATES,
            severities=_SEVERITIES,
            users=list(site.settings.users),
            count=count,
            first=(visit.page - 1) * PAGE + 1,
            tickets=[(line, title(line, visit.lang)) for line in lines],
            before=paged(given, visit.page - 1) if visit.page > 1 else "",
            after=paged(given, visit.page + 1) if visit.page * PAGE < count else "",
        )

    async def shown(visit: Visit) -> Response:
        id = visit.request.path_params["id"]

        def read() -> dict[str, Any]:
            return _context(site, id, visit.lang)

        done = visit.query("done")
        return site.show(visit, "ticket", done=done if done in changes else "", **await in_thread(read))

    changes: dict[str, _Change] = {
        "acknowledge": lambda service, id, visit: service.acknowledge(id, visit.by, SOURCE),
        "assign": lambda service, id, visit: service.assign(
            id, known_users(visit.form.get("users", "").replace(",", " ").split(), site.settings), visit.by, SOURCE
        ),
        "resolve": lambda service, id, visit: service.resolve(id, visit.form.get("because", ""), visit.by, SOURCE),
        "reopen": lambda service, id, visit: service.reopen(id, visit.by, SOURCE),
        "comment": lambda service, id, visit: service.comment(
            id, human.required(visit.form.get("text", ""), human.COMMENT, "comment", "give a text"), visit.by, SOURCE
        ),
    }

    def changing(name: str) -> Route:
        async def change(visit: Visit) -> Response:
            id = visit.request.path_params["id"]
            ticket = await in_thread(lambda: changes[name](site.tickets, id, visit))
            return site.go(f"/tickets/{ticket.id}", done=name)

        return site.action(f"/tickets/{{id}}/{name}", change, "tickets")

    yield site.page("/tickets", listed, "tickets")
    yield site.page("/tickets/{id}", shown, "tickets")
    yield from map(changing, changes)


def title(line: Line, lang: Lang) -> str:
    """Return the title of a ticket in a list: a person's, else that of its cause, else its category."""
    if line.title:
        return line.title
    cause = load_causes().get(line.cause)
    return cause.title.get(lang) if cause else line.target or line.category


def _context(site: Site, id: str, lang: Lang) -> dict[str, Any]:
    kb, causes = site.kb, load_causes()
    ticket = kb.tickets.get(id)
    alerts = [stored.alert for stored in kb.alerts.find(ticket=ticket.id)] if ticket.origin == "alert" else []
    events = kb.tickets.events(ticket.id, limit=_EVENTS)
    d = ticket.diagnosis
    view = diagnosis_context(d, lang) if d is not None else None
    named = str(TemplateValues("md", lang, d.target).title(d, causes.get(d.cause or ""))) if d is not None else ""
    known = ticket.analysis.matches if ticket.analysis is not None and d is None else []
    return {
        "k": ticket,
        "title": ticket.human.title,
        "named": named,
        "view": view,
        "known": match_texts(known, "md", lang),
        "live": ticket.state in LIVE,
        "users": [*site.settings.users, *site.settings.oncall.groups],
        **ticket_context(ticket, causes, lang, events, alerts),
    }


def _of(given: str, valid: Sequence[_WordT]) -> list[_WordT]:
    return [one for one in valid if one == given]
