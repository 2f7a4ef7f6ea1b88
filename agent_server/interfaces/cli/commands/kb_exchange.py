"""``whystall kb export`` and ``import``: cards as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, who
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.cards import imported_text
from whystall.agent_server.stores import open_default
from whystall.knowledge_base.exchange import Imported
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.output_file import aside


def add_exchange(group: typer.Typer) -> None:
    """Add the commands to the group of ``whystall kb``."""
    group.command("export")(export)
    group.command("import")(import_)


def export(
    output: Annotated[
        Optional[Path],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("-o", "--output", metavar="FILE", help="write to this file instead of standard output"),
    ] = None,
) -> None:
    """Write every card as a JSON line."""
    cards = open_default().cards
    if output is None:
        try:
            cards.export(lambda line: sys.stdout.write(wire.dumps(json.loads(line), indent=None) + "\n"))
            sys.stdout.flush()
        except BrokenPipeError:  # the reader closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        return

    with aside(output) as beside, beside.open("w", encoding="utf-8") as file:
        count = cards.export(file.write)
    console.say(f"wrote {count} cards to {output}")


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="cards, one a line; - reads standard input")],
    reviewed: Annotated[
        bool, typer.Option("--reviewed", help="answer for those that are reviewed in the file; else all are drafts")
    ] = False,
    skip: Annotated[bool, typer.Option("--skip", help="leave out lines that are no cards, and name them")] = False,
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Import cards of another knowledge base: all, or none if a line is no card."""
    cards = open_default().cards
    if file == "-":
        done: Imported = cards.import_(sys.stdin.buffer, reviewed=reviewed, skip=skip, by=who(by))
    else:
        try:
            with Path(file).open("rb") as stream:
                done = cards.import_(stream, reviewed=reviewed, skip=skip, by=who(by))
        except OSError as error:
            message = f"cannot read {file}: {error.strerror}"
            raise ToolError(ErrorCode.IO_ERROR, message, "give a readable file, or -") from None
    if as_json:
        console.say_json(done)
    else:
        console.say(imported_text(done, lang))
