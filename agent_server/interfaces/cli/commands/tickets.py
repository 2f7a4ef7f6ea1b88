"""``whystall tickets``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal, Optional, TypeVar, get_args

import typer

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, who
from whystall.agent_server.interfaces.cli.commands.tickets_classify import add_classify
from whystall.agent_server.interfaces.cli.commands.tickets_import import add_import
from whystall.agent_server.interfaces.cli.commands.tickets_upgrade import add_upgrade
from whystall.agent_server.interfaces.cli.options import JsonOption, Lang, LangOption
from whystall.agent_server.presentation.results import done_text, whole_ticket_text
from whystall.agent_server.presentation.ticket_texts import history_text, tickets_text
from whystall.agent_server.settings.load import load
from whystall.agent_server.stores import open_default
from whystall.agent_server.ticketing.assignees import known_users
from whystall.knowledge_base.ticket_models import ClosedAs, Origin, State
from whystall.knowledge_base.tickets import human
from whystall.knowledge_base.tickets.human import TEXT
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.knowledge_base.ticket_models import Ticket

_Id = Annotated[str, typer.Argument(metavar="TICKET", help="the ticket's id")]
_Other = Annotated[str, typer.Argument(metavar="OTHER", help="the id of the other ticket")]
_Because = Annotated[str, typer.Option("--because", metavar="TEXT", help="why, in a sentence")]
_ENOUGH = 100_000
_STATES: tuple[State, ...] = get_args(State)
_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_WordT = TypeVar("_WordT", bound=str)


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Tickets.", rich_markup_mode=None)
    group.command("list")(list_tickets)
    group.command("show")(show)
    group.command("history")(history)
    group.command("acknowledge")(acknowledge)
    group.command("resolve")(resolve)
    group.command("close")(close)
    group.command("reopen")(reopen)
    group.command("comment")(comment)
    group.command("edit")(edit)
    group.command("link")(link)
    group.command("unlink")(unlink)
    group.command("assign")(assign)
    group.command("attach")(attach)
    add_classify(group)
    add_import(group)
    add_upgrade(group)
    app.add_typer(group, name="tickets")


def list_tickets(
    states: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--state", metavar="|".join(_STATES), help="only tickets in this state; more than once: in any"),
    ] = None,
    severities: Annotated[
        Optional[list[Severity]],  # noqa: UP045
        typer.Option("--severity", metavar="|".join(s.value for s in Severity), help="only these; more than once: any"),
    ] = None,
    origins: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--origin", metavar="|".join(_ORIGINS), help="only what this opened; more than once: any"),
    ] = None,
    category: Annotated[Optional[str], typer.Option("--category", metavar="NAME", help="only of this")] = None,  # noqa: UP045
    component: Annotated[Optional[str], typer.Option("--component", metavar="NAME", help="only of this")] = None,  # noqa: UP045
    assignee: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--assignee", metavar="NAME", help="only tickets assigned to this user; - for unassigned ones"),
    ] = None,
    search: Annotated[
        str, typer.Option("--search", metavar="WORDS", help="only with all these words in number, title, target, cause")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=_ENOUGH, help="how many at most")] = 100,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List tickets, last changed first."""
    wanted = Wanted(
        states=_chosen("--state", states, _STATES),
        severities=severities or (),
        origins=_chosen("--origin", origins, _ORIGINS),
        category=category,
        component=component,
        assignee="" if assignee == "-" else assignee,
        words=search,
    )
    tickets = open_default().tickets
    if as_json:
        console.say_json([wire.structured(ticket) for ticket in tickets.list(wanted, limit)])
    else:
        lines = tickets.lines(wanted, limit)
        left = tickets.count(wanted) - limit if len(lines) == limit else 0
        console.say(tickets_text(lines, max(0, left), lang))


def show(ticket: _Id, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Show one ticket: with its diagnosis, comments, and history."""
    kb = open_default()
    if as_json:
        console.say_json(kb.tickets.get(ticket))
    else:
        console.say(whole_ticket_text(kb, ticket, lang))


def history(ticket: _Id, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """List the changes of a ticket, with author and time."""
    events = open_default().tickets.events(ticket, limit=_ENOUGH)
    if as_json:
        console.say_json([wire.structured(event) for event in events])
    else:
        console.say(history_text(events, lang))


def acknowledge(ticket: _Id, by: ByOption = None, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Acknowledge a ticket; escalation stops."""
    kb = open_default()
    _tell(kb, _ticket_service(kb).acknowledge(ticket, who(by)), "acknowledged", as_json, lang)


def resolve(
    ticket: _Id,
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="what solved it")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Resolve a ticket; the solution goes onto the card of its fault, or a draft of one."""
    kb = open_default()
    _tell(kb, _ticket_service(kb).resolve(ticket, because, who(by)), "resolved", as_json, lang)


def close(
    ticket: _Id,
    as_: Annotated[ClosedAs, typer.Option("--as", help="what became of it")],
    because: _Because = "",
    of: Annotated[str, typer.Option("--of", metavar="OTHER", help="with --as duplicate: of which ticket")] = "",
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Close a ticket for good."""
    if of and as_ != "duplicate":
        raise ToolError(ErrorCode.BAD_ARGUMENT, "--of is for duplicates", "say --as duplicate, or leave it out")
    if of:
        link(ticket, of, "duplicate", by, as_json, lang)
        return
    kb = open_default()
    _tell(kb, _ticket_service(kb).close(ticket, as_, who(by), because=because), "closed", as_json, lang)


def reopen(
    ticket: _Id, because: _Because = "", by: ByOption = None, as_json: JsonOption = False, lang: LangOption = "en"
) -> None:
    """Reopen a ticket; a duplicate no longer is one."""
    kb = open_default()
    _tell(kb, _ticket_service(kb).reopen(ticket, who(by), because=because), "open", as_json, lang)


def comment(
    ticket: _Id,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="what you have to say; - reads it from standard input")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Comment on a ticket."""
    body = human.required(_read(text), human.COMMENT, "comment", "give a text")  # not cut if long
    kb = open_default()
    _tell(kb, _ticket_service(kb).comment(ticket, body, who(by)), "commented", as_json, lang)


def edit(
    ticket: _Id,
    title: Annotated[Optional[str], typer.Option("--title", metavar="TEXT", help="another title")] = None,  # noqa: UP045
    description: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--description", metavar="TEXT", help="another description; - reads it from standard input"),
    ] = None,
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Change a ticket's title or description; what whystall found stays separate from it."""
    if title is None and description is None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "no change is given", "give --title or --description")
    text = None if description is None else _read(description)
    kb = open_default()
    _tell(kb, _ticket_service(kb).edit(ticket, who(by), title=title, description=text), "edited", as_json, lang)


def link(
    ticket: _Id,
    other: _Other,
    as_: Annotated[
        Literal["related", "duplicate"], typer.Option("--as", help="a duplicate is closed and counted in OTHER")
    ] = "related",
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Link two tickets; both show it."""
    kb = open_default()
    done = _ticket_service(kb).link(ticket, other, as_, who(by))
    _tell(kb, done, "duplicate" if as_ == "duplicate" else "linked", as_json, lang, other)


def unlink(
    ticket: _Id, other: _Other, by: ByOption = None, as_json: JsonOption = False, lang: LangOption = "en"
) -> None:
    """Remove the link between two related tickets. (Reopen a duplicate instead.)"""
    kb = open_default()
    _tell(kb, _ticket_service(kb).unlink(ticket, other, who(by)), "unlinked", as_json, lang, other)


def assign(
    ticket: _Id,
    users: Annotated[list[str], typer.Argument(metavar="NAME...", help="users or groups, the first is asked first")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Assign a ticket to a user."""
    kb = open_default()
    named = known_users(users, load())
    _tell(kb, _ticket_service(kb).assign(ticket, named, who(by)), "assigned", as_json, lang, ", ".join(named))


def attach(
    ticket: _Id,
    diagnosis: Annotated[str, typer.Argument(metavar="DIAGNOSIS", help="id of a stored diagnosis")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Attach a diagnosis to the ticket that it belongs to, or count it in an older one of the same fault."""
    kb = open_default()
    before = kb.tickets.get(ticket)
    done = _ticket_service(kb).attach(before.id, kb.get_diagnosis(diagnosis), who(by))
    if done.id == before.id:
        _tell(kb, done, "attached", as_json, lang, diagnosis)
    else:
        _tell(kb, done, "merged", as_json, lang, before.id)


def _chosen(option: str, given: Sequence[str] | None, valid: Sequence[_WordT]) -> list[_WordT]:
    """Validate the values of an option that takes several (typer checks only single ones)."""
    if wrong := [word for word in given or () if word not in valid]:
        message = f"{option} {clean(wrong[0])!r} is not known"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"valid: {', '.join(valid)}")
    return [word for word in valid if word in (given or ())]


def _ticket_service(kb: Stores) -> TicketService:
    """Return the service that changes tickets; the settings do not affect these commands."""
    from whystall.agent_server.ticketing.ticket_service import TicketService

    return TicketService(kb)


def _read(text: str) -> str:
    if text != "-":
        return text

    raw = sys.stdin.buffer.read(8 * TEXT)  # above any limit, so that a long text is refused and not cut
    return raw.decode("utf-8", "backslashreplace")


def _tell(kb: Stores, done: Ticket, what: str, as_json: bool, lang: Lang, other: str = "") -> None:
    """Print the result of a change; `other`: the other ticket, person or diagnosis mentioned."""
    if as_json:
        console.say_json(done)
        return

    console.say(done_text(kb, done, what, other, lang))
