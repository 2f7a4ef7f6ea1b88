"""``whystall kb review``, ``feedback`` and ``stats``."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, read_document, who
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.cards import backlog_text, card_text, review_words, stats_text
from whystall.agent_server.presentation.results import rated_text
from whystall.agent_server.stores import open_default
from whystall.knowledge_base.card_store import CardStore
from whystall.knowledge_base.models import Incident, Lang
from whystall.tools.contract.errors import ErrorCode, ToolError

_TEXTS = ("title", "symptom", "root_cause", "fix")
_LISTS = ("signatures", "kinds", "features", "checks", "components")


def add_cards(group: typer.Typer) -> None:
    """Add the commands to the group of ``whystall kb``."""
    group.command("review")(review)
    group.command("feedback")(feedback)
    group.command("stats")(stats)


def review(
    incident: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Argument(metavar="[ID]", help="the card; without one, what wants a review is listed"),
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="it is right: it may be quoted as known")] = False,
    retire: Annotated[bool, typer.Option("--retire", help="it is not to be used; needs --because")] = False,
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="why it is retired")] = "",
    edit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--edit", metavar="FILE|-", help="change the fields in this JSON or YAML"),
    ] = None,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="FIELD=TEXT", help="change one field: fix.en=..., cause=..., checks=a,b"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="cards to list")] = 50,
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Read a card and accept, change or retire it; interactive on a terminal."""
    cards = open_default().cards
    deeds = accept or retire or edit is not None or bool(set_)
    if accept and retire:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "accept and retire exclude each other", "give one of them")
    if because and not retire:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "--because is the reason to retire a card", "give it with --retire")
    if incident is None:
        if deeds:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "no card is named", "`whystall kb review` lists their ids")
        _list(cards, limit, as_json, lang)
        return
    card = cards.get(incident)
    if deeds:
        changes = _joined(_changes(edit) if edit is not None else {}, _fields(set_ or []))
        name = who(by)
        card = cards.edit(card.id, changes, name) if changes or edit is not None else card
        card = cards.accept(card.id, name) if accept else card
        card = cards.retire(card.id, because, name) if retire else card
    elif not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        _ask(cards, card, who(by), lang)
        return
    _show(cards, card, as_json, lang)


def feedback(
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="the card that was matched")],
    verdict: Annotated[Literal["helped", "wrong"], typer.Argument(help="how the match was")],
    diagnosis: Annotated[str, typer.Option("--diagnosis", metavar="ID", help="the diagnosis that it was shown for")],
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="what was wrong, or what helped")] = "",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Rate whether a similar incident helped; the last rating for each diagnosis counts."""
    from whystall.agent_server.interfaces.mcp.knowledge import Rated

    record = open_default().cards.feedback(incident, verdict, diagnosis=diagnosis, comment=comment)
    rated = Rated(incident=incident, diagnosis=diagnosis, verdict=verdict, record=record)
    if as_json:
        console.say_json(rated)
    else:
        console.say(rated_text(rated, lang))


def stats(as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Count the cards by state and cause, how often they recur, and how well they match."""
    counts = open_default().cards.stats()
    if as_json:
        console.say_json(counts)
    else:
        console.say(stats_text(counts, lang))


def _list(cards: CardStore, limit: int, as_json: bool, lang: Lang) -> None:
    found = cards.backlog(limit)
    records = cards.records([card.id for card in found])
    if as_json:
        console.say_json([{"incident": c.model_dump(mode="json"), "record": records[c.id].model_dump()} for c in found])
    else:
        console.say(backlog_text(found, records, lang))


def _show(cards: CardStore, card: Incident, as_json: bool, lang: Lang) -> None:
    if as_json:
        console.say_json(card)
    else:
        console.say(card_text(card, *cards.track_record(card.id), lang))


# --- changes ------------------------------------------------------------------------------------------------------


def _changes(file: str) -> dict[str, Any]:
    found = read_document(file)
    if not isinstance(found, dict):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{file} holds no fields", "write FIELD: value, one or more")
    return {str(name): value for name, value in found.items()}


def _fields(settings: list[str]) -> dict[str, Any]:
    """Parse ``fix.en=TEXT`` (one language of a text), ``fix=TEXT`` (both); lists are separated by commas."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        field, dot, lang = name.strip().partition(".")
        if not equals or (dot and (field not in _TEXTS or lang not in ("en", "zh"))):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{setting!r} sets no field", "write fix.en=TEXT or cause=ID")
        if field in _TEXTS:
            changes.setdefault(field, {}).update(dict.fromkeys([lang] if dot else ["en", "zh"], text))
        elif field in _LISTS:
            changes[field] = [entry.strip() for entry in text.split(",") if entry.strip()]
        else:
            changes[field] = (text.strip() or None) if field == "cause" else text
    return changes


def _joined(first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """Merge two changes; a change of one language keeps the other one of `first`."""
    joined = {**first, **then}
    for name in first.keys() & then.keys():
        if isinstance(first[name], dict) and isinstance(then[name], dict):
            joined[name] = {**first[name], **then[name]}
    return joined


# --- on a terminal ------------------------------------------------------------------------------------------------


def _ask(cards: CardStore, card: Incident, by: str, lang: Lang) -> None:
    """Show `card` and apply typed commands until it is accepted, retired or left; repeat after invalid input."""
    words = review_words(lang)
    while True:
        _show(cards, card, False, lang)
        console.deliver()
        answer = _typed(words["ask"]).lower()
        try:
            if answer in ("a", "accept"):
                card = cards.accept(card.id, by, shown=card)
                break
            if answer in ("r", "retire"):
                card = cards.retire(card.id, _typed(words["why"]), by)
                break
            if answer in ("e", "edit"):
                card = cards.edit(card.id, _fields([_typed(words["field"])]), by)
            else:
                break
        except ToolError as error:
            console.note(f"{error.message}; {error.remedy}")
            card = cards.get(card.id)
    console.say(f"{card.id}: {words['states'][card.state]}")


def _typed(prompt: str) -> str:
    """Read a line from the terminal; empty at its end."""
    try:
        return input(prompt).strip()
    except EOFError:
        return ""
