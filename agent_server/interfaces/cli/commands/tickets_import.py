"""``whystall tickets import``: import a backlog of work orders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, who
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.settings.load import load
from whystall.agent_server.stores import open_default
from whystall.prompts.render import render
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

_Column = Optional[str]  # noqa: UP045  typer reads this at run time, also on Python 3.10


def add_import(group: typer.Typer) -> None:
    """Add the command to the group of ``whystall tickets``."""
    group.command("import")(import_)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="CSV or JSON lines; - reads standard input")],
    title: Annotated[_Column, typer.Option("--title", metavar="COLUMN", help="what it is, in a line")] = None,
    text: Annotated[_Column, typer.Option("--text", metavar="COLUMN", help="its description")] = None,
    id: Annotated[_Column, typer.Option("--id", metavar="COLUMN", help="its number there")] = None,
    created: Annotated[_Column, typer.Option("--created", metavar="COLUMN", help="when it began")] = None,
    severity: Annotated[_Column, typer.Option("--severity", metavar="COLUMN", help="the severity given")] = None,
    category: Annotated[
        _Column, typer.Option("--category", metavar="COLUMN", help="what it was about in the end: the result is scored")
    ] = None,
    classes: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--class", metavar="LABEL=CATEGORY", help="what a label of --category means; may be repeated"),
    ] = None,
    keep: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--keep", metavar="COLUMN", help="keep this column as a label; may be repeated"),
    ] = None,
    source: Annotated[str, typer.Option("--source", metavar="NAME", help="where they come from: ids are of it")] = (
        "work_orders"
    ),
    format: Annotated[Literal["auto", "csv", "jsonl"], typer.Option("--format", help="of the file")] = "auto",
    encoding: Annotated[_Column, typer.Option("--encoding", metavar="NAME", help="of the file (detected)")] = None,
    delimiter: Annotated[_Column, typer.Option("--delimiter", metavar="CHARACTER", help="between cells of CSV")] = None,
    skip: Annotated[bool, typer.Option("--skip", help="leave out rows that are none, and name them")] = False,
    learn: Annotated[bool, typer.Option("--learn", help="labelled ones teach what their category reads like")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would come of it, and store nothing")] = False,
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Make tickets of a backlog of work orders, each once: classified, duplicates merged, similar ones linked.

    Columns without an option are found by their usual names in English and Chinese. A repeated run continues the last
    one.
    """
    # Imported here, since every command of `tickets` imports this module.
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.agent_server.ticketing.work_orders.columns import Columns
    from whystall.agent_server.ticketing.work_orders.importing import import_work_orders
    from whystall.agent_server.ticketing.work_orders.reading import Table

    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{delimiter!r} cannot stand between cells", "give one character")
    columns = Columns(
        id=id,
        title=title,
        text=text,
        created=created,
        severity=severity,
        category=category,
        keep=keep or [],
        classes=dict(_class(one) for one in classes or []),
    )
    settings = load()
    with _opened(file) as (stream, size), _base(dry_run) as kb, console.progress() as bar:
        table = Table(stream, format, encoding, delimiter)

        def report(rows: int, done: int) -> None:
            if bar is not None:
                bar(done, max(size, done) if size else 0, f"{rows} work orders")

        imported = import_work_orders(
            kb,
            TicketService(kb, settings),
            table,
            columns,
            source=source,
            by=who(by),
            skip=skip,
            learn=learn,
            progress=report,
        ).model_copy(update={"dry_run": dry_run})
    if as_json:
        console.say_json(imported)
    else:
        console.say(render("work_orders.txt", lang, d=imported))


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open the file, or standard input for ``-``; return it with its size in bytes, 0 if unknown."""
    if file == "-":
        yield sys.stdin.buffer, 0
        return
    path = Path(file)
    try:
        with path.open("rb") as stream:
            yield stream, path.stat().st_size
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "give a readable file, or -") from None


@contextmanager
def _base(dry_run: bool) -> Iterator[Stores]:
    """Open the database; for a dry run a temporary copy of it."""
    kb = open_default()
    if not dry_run:
        yield kb
        return

    from whystall.agent_server.ticketing.work_orders.trial_copy import trial_copy

    with trial_copy(kb) as copy:
        yield copy


def _class(text: str) -> tuple[str, str]:
    from whystall.knowledge_base.classify.rules import UNKNOWN, categories

    label, mark, category = text.rpartition("=")
    known = [*categories(), UNKNOWN]
    if not mark or not label.strip() or category not in known:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT, f"--class {text!r} is not LABEL=CATEGORY", f"categories: {', '.join(known)}"
        )
    return label, category
