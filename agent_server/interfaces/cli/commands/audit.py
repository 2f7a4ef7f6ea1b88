"""``whystall audit``."""

from __future__ import annotations

from typing import Annotated

import typer

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.stores import open_default
from whystall.prompts.render import render


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("audit")(audit)


def audit(
    what: Annotated[
        str, typer.Option("--what", metavar="CODE", help="only this kind, or all that begin so: ticket, sink.create")
    ] = "",
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="only of this person, chat or part")] = "",
    after: Annotated[int, typer.Option("--after", metavar="NUMBER", min=0, help="only what came after this entry")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="the newest so many")] = 50,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List what was sent and changed, the newest last; secrets are never in it."""
    with open_default() as kb:
        entries = kb.audit.entries(after, limit, what, by)
    if as_json:
        console.say_json([wire.structured(entry) for entry in entries])
        return

    rows = [(e, [(name, wire.dumps(value, indent=None)) for name, value in e.detail.items()]) for e in entries]
    console.say(render("audit.txt", lang, rows=rows))
