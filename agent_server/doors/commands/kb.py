"""``whystall kb``: past incidents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from whystall.agent_server.app import App
from whystall.agent_server.doors import console
from whystall.agent_server.doors.options import JsonOption, LangOption
from whystall.knowledge_base.models import Incident
from whystall.tools.contract.errors import ErrorCode, ToolError

_LIMIT = 1 << 20  # bytes of an incident's file


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Past incidents.", rich_markup_mode=None)
    group.command("search")(search)
    group.command("show")(show)
    group.command("add")(add_incident)
    app.add_typer(group, name="kb")


def search(
    query: Annotated[list[str], typer.Argument(metavar="WORDS...", help="symptom, error text, function or file names")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=20)] = 5,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Find past incidents that resemble a symptom."""
    from whystall.agent_server.doors import lookup

    if not (words := " ".join(query).strip()):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "nothing to search for", "give words of the symptom")
    hits = lookup.search(App(), words, limit)
    if as_json:
        console.say_json(hits)
    else:
        from whystall.agent_server.doors.words import hits_text

        console.say(hits_text(hits, lang))


def show(
    incident: Annotated[str, typer.Argument(metavar="ID", help="the incident's id")],
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show one past incident."""
    found = App().kb().get_incident(incident)
    if as_json:
        console.say_json(found)
    else:
        from whystall.agent_server.doors.words import incident_text

        console.say(incident_text(found, lang))


def add_incident(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="an incident as JSON or YAML; - reads standard input")],
    as_json: JsonOption = False,
) -> None:
    """Add an incident to the knowledge base."""
    incident = App().kb().add_incident(read_incident(file))
    if as_json:
        console.say_json(incident)
    else:
        console.say(f"added {incident.id}")


def read_incident(file: str) -> Incident:
    """The incident in `file`, or on standard input for ``-``; `ToolError` (io_error, bad_argument) names the fault."""
    import yaml
    from pydantic import ValidationError

    try:
        if file == "-":
            raw = sys.stdin.buffer.read(_LIMIT + 1)
        else:
            with Path(file).open("rb") as stream:
                raw = stream.read(_LIMIT + 1)
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "give a readable file, or -") from None
    if len(raw) > _LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{file} is larger than {_LIMIT} bytes", "give one incident")
    try:
        # JSON is read as YAML, which contains it.
        return Incident.model_validate(yaml.safe_load(raw.decode("utf-8")))
    except UnicodeDecodeError:
        fault = "it is not UTF-8"
    except (yaml.YAMLError, RecursionError) as error:
        fault = " ".join(str(error).split())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
    raise ToolError(
        ErrorCode.BAD_ARGUMENT, f"{file} is no incident: {fault}", "`whystall kb show ID --json` shows the shape"
    )
