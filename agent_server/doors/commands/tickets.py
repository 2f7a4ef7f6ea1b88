"""``whystall tickets``."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from whystall.agent_server.app import App
from whystall.agent_server.doors import console, wire
from whystall.agent_server.doors.commands.kb_input import ByOption, who
from whystall.agent_server.doors.options import JsonOption, LangOption
from whystall.knowledge_base.tickets.models import State
from whystall.knowledge_base.tickets.rows import Wanted

_Id = Annotated[str, typer.Argument(metavar="TICKET", help="the ticket's id")]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Tickets.", rich_markup_mode=None)
    group.command("list")(list_tickets)
    group.command("show")(show)
    group.command("resolve")(resolve)
    app.add_typer(group, name="tickets")


def list_tickets(
    state: Annotated[
        Optional[State],  # noqa: UP045
        typer.Option("--state", help="only tickets in this state"),
    ] = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List tickets, latest first."""
    tickets = App().kb().tickets.list(Wanted(states=(state,) if state else ()))
    if as_json:
        console.say_json([wire.structured(ticket) for ticket in tickets])
    else:
        from whystall.agent_server.doors.words import tickets_text

        console.say(tickets_text(tickets, lang))


def show(ticket: _Id, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Show one ticket."""
    found = App().kb().tickets.get(ticket)
    if as_json:
        console.say_json(found)
    else:
        from whystall.agent_server.doors.words import ticket_text

        console.say(ticket_text(found, lang))


def resolve(
    ticket: _Id,
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="what solved it")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Close a ticket; what solved it goes onto the card of its fault, or a draft of one."""
    kb = App().kb()
    done = kb.tickets.resolve(ticket, because, who(by))
    if as_json:
        console.say_json(done)
    else:
        from whystall.agent_server.doors.card_words import resolved_text

        console.say(resolved_text(done, kb.cards.get(done.card or ""), lang))
