"""``whystall kb``: search, show and add past incidents; other modules of this package add the rest."""

from __future__ import annotations

from typing import Annotated

import typer

from whystall.agent_server.incident_search.search import embed_all
from whystall.agent_server.interfaces import incident_lookup as lookup
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_cards import add_cards
from whystall.agent_server.interfaces.cli.commands.kb_eval import add_eval
from whystall.agent_server.interfaces.cli.commands.kb_exchange import add_exchange
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, read_incident, who
from whystall.agent_server.interfaces.cli.commands.kb_similar import add_similar
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.cards import card_text
from whystall.agent_server.presentation.results import hits_text
from whystall.agent_server.stores import open_default
from whystall.tools.contract.errors import ErrorCode, ToolError


def add(app: typer.Typer) -> None:
    """Add the commands of this group."""
    group = typer.Typer(help="Past incidents.", rich_markup_mode=None)
    group.command("search")(search)
    add_similar(group)
    group.command("embed")(embed)
    group.command("show")(show)
    group.command("add")(add_incident)
    add_cards(group)
    add_exchange(group)
    add_eval(group)
    app.add_typer(group, name="kb")


def search(
    query: Annotated[list[str], typer.Argument(metavar="WORDS...", help="symptom, error text, function or file names")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=20)] = 5,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Find past incidents that resemble a symptom."""
    if not (words := " ".join(query).strip()):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "nothing to search for", "give words of the symptom")
    hits = lookup.search(open_default(), words, limit, lang)
    if as_json:
        console.say_json(hits)
    else:
        console.say(hits_text(hits, lang))


def embed() -> None:
    """Make the vectors of all cards with the model of [embeddings]; searches make those of new cards themselves."""
    console.say(f"embedded {embed_all(open_default())} cards")


def show(
    incident: Annotated[str, typer.Argument(metavar="ID", help="the incident's id")],
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show one past incident."""
    cards = open_default().cards
    found = cards.get(incident)
    if as_json:
        console.say_json(found)
    else:
        console.say(card_text(found, *cards.track_record(found.id), lang))


def add_incident(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="an incident as JSON or YAML; - reads standard input")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an incident to the knowledge base."""
    incident = open_default().cards.add(read_incident(file), who(by))
    if as_json:
        console.say_json(incident)
    else:
        console.say(f"added {incident.id}")
