"""``whystall config``: check and show the settings."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.settings.load import SECTIONS, load
from whystall.agent_server.settings.show import list_settings
from whystall.agent_server.settings.sources import config_path, read_settings
from whystall.prompts.render import render


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="The settings.", rich_markup_mode=None)
    group.command("check")(check_)
    group.command("show")(show_)
    app.add_typer(group, name="config")


def check_(as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Check the settings: every section, secret, name and file. Exit status 1 if something is wrong."""
    from whystall.agent_server.doctor.settings_check import check

    values = read_settings(SECTIONS)
    done = check(values, datetime.now(timezone.utc))
    path = str(values.path or config_path()[0])
    if as_json:
        console.say_json(
            {
                "path": path,
                "there": values.path is not None,
                "faults": done.faults,
                "warnings": done.warnings,
                "variables": sorted(set(values.variables.values())),
            }
        )
    else:
        console.say(render("config_check.txt", lang, path=path, there=values.path is not None, done=done))
    if done.faults:
        raise typer.Exit(1)


def show_(
    section: Annotated[
        str, typer.Argument(metavar="[SECTION]", help="only what begins so: sinks, oncall.rotations")
    ] = "",
    changed: Annotated[bool, typer.Option("--changed", help="only what is not the default")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show the effective settings and their origins; of secrets only where they are."""
    rows = [
        row
        for row in list_settings(load())
        if f"{row.place}.".startswith(f"{section}." if section else "") and not (changed and row.origin == "default")
    ]
    if as_json:
        console.say_json([wire.structured(row) for row in rows])
        return

    console.say(render("config_show.txt", lang, rows=[(row, wire.dumps(row.value, indent=None)) for row in rows]))
