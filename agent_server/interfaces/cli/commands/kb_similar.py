"""``whystall kb similar``: past incidents with the same evidence."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from whystall.agent_server.interfaces import incident_lookup as lookup
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption, checked, command
from whystall.agent_server.interfaces.incident_lookup import SimilarParams
from whystall.agent_server.presentation.results import hits_text
from whystall.agent_server.stores import open_default


def add_similar(group: typer.Typer) -> None:
    """Add the command to the group of ``whystall kb``."""
    about = "Find past incidents with the same evidence, and what they checked: of a diagnosis, or of findings."
    group.command("similar")(command(similar, SimilarParams, doc=about))


def similar(
    given: dict[str, Any],
    diagnosis: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Argument(metavar="[DIAGNOSIS]", help="the diagnosis' id"),
    ] = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Find incidents similar to a case."""
    params = checked(SimilarParams, given | ({} if diagnosis is None else {"diagnosis": diagnosis}))
    hits = lookup.similar(open_default(), params)
    if as_json:
        console.say_json(hits)
    else:
        console.say(hits_text(hits, lang))
