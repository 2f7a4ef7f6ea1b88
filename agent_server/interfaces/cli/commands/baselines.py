"""``whystall baselines``: stored runs, with which later ones are compared operator by operator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.stores import open_default
from whystall.prompts.escape import plain
from whystall.prompts.render import words

_NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="of the baseline")]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        help="Stored runs that `run compare_runs --baseline` compares with.",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    group.command("add")(add_run)
    group.command("list")(list_baselines)
    group.command("delete")(delete_baseline)
    app.add_typer(group, name="baselines")


def add_run(
    name: _NameArgument,
    traces: Annotated[
        Path, typer.Argument(metavar="DIR", help="traces of the run's ranks, or what `whystall gather` wrote")
    ],
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Store a run in the baseline NAME, which may have several; the last 10 are kept."""
    with App().closing() as app:
        stored = app.store_baseline(name, traces)
    if as_json:
        console.say_json({"name": name, **asdict(stored)})
        return
    texts = words(lang)["baselines"]
    lines = [texts["stored" if stored.new else "same"].format(name=plain(name), operators=stored.operators)]
    lines += [texts["left_out"].format(stored.left_out)] if stored.left_out else []
    lines += [texts["dropped"].format(stored.dropped)] if stored.dropped else []
    console.say("\n".join(lines))


def list_baselines(as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """List the baselines: runs, operators, and when the first and the last run was stored."""
    with open_default() as kb:
        found = kb.operator_baselines.all()
    if as_json:
        console.say_json([asdict(one) for one in found])
        return
    texts = words(lang)["baselines"]
    console.say("\n".join(texts["row"].format(**asdict(one)) for one in found) or texts["none"])


def delete_baseline(name: _NameArgument, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Delete the baseline NAME with all of its runs."""
    with open_default() as kb:
        runs = kb.operator_baselines.delete(name)
    if as_json:
        console.say_json({"name": name, "runs": runs})
    else:
        console.say(words(lang)["baselines"]["deleted"].format(name=plain(name), runs=runs))
