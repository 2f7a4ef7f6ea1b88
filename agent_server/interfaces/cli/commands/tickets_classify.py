"""``whystall tickets classify``: classify a ticket by hand, or let a model choose between open categories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, who
from whystall.agent_server.interfaces.cli.options import JsonOption, Lang, LangOption
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.presentation.results import ticket_text
from whystall.agent_server.settings.load import load_llm
from whystall.agent_server.stores import open_default
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.findings import Severity

if TYPE_CHECKING:
    from whystall.knowledge_base.ticket_models import Decision, Ticket


def add_classify(group: typer.Typer) -> None:
    """Add the command to the group of ``whystall tickets``."""
    group.command("classify")(classify)


def classify(
    ticket: Annotated[str, typer.Argument(metavar="TICKET", help="the ticket's id")],
    category: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--category", metavar="NAME", help="what it is about"),
    ] = None,
    component: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--component", metavar="NAME", help="which part of that"),
    ] = None,
    severity: Annotated[
        Optional[Literal["info", "minor", "major", "critical"]],  # noqa: UP045
        typer.Option("--severity", help="how bad it is"),
    ] = None,
    llm: Annotated[bool, typer.Option("--llm", help="let the model choose between the categories left open")] = False,
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Set what a ticket is about; this overrides later classification, and is learnt when it is resolved.

    With --llm the language model chooses, only among the categories that remained undecided.
    """
    from whystall.agent_server.ticketing.ticket_service import TicketService

    if llm == any((category, component, severity)):
        message = "give --category, --component or --severity, or --llm alone"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "see `whystall tickets classify --help`")
    kb = open_default()
    ticket_service = TicketService(kb)
    if llm:
        done = ticket_service.chosen(ticket, _choice(kb.tickets.get(ticket), lang))
    else:
        graded = Severity(severity) if severity else None
        done = ticket_service.classify(ticket, who(by), category=category, component=component, severity=graded)
    if as_json:
        console.say_json(done)
    else:
        console.say(ticket_text(done, lang))


def _choice(ticket: Ticket, lang: Lang) -> Decision:
    """Return the model's choice. Raises `ToolError` if nothing is undecided, there is no model, or it chooses none."""
    with extra("llm"):
        from whystall.agent_server.llm.client import ChatClient
    from whystall.agent_server.llm.wire import LlmError
    from whystall.agent_server.ticketing.model_choice import choose, left_open

    if len(left_open(ticket)) < 2:
        message = f"no two categories of ticket {ticket.id} are left open"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "say which it is with --category")
    settings = load_llm()

    async def ask() -> Decision | None:
        async with ChatClient(settings) as model:
            return await choose(model, ticket, lang)

    try:
        chosen = signals.run(ask())
    except LlmError as error:
        raise ToolError(ErrorCode.NO_MODEL, f"the model did not answer: {error}", "say it with --category") from None
    if chosen is None:
        raise ToolError(ErrorCode.NO_MODEL, "the model chose none of the categories", "say it with --category")
    return chosen
