"""``whystall setup``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import LangOption
from whystall.agent_server.settings.setup_files import Choices, setup_files
from whystall.prompts.render import render, words
from whystall.tools.contract.errors import ErrorCode, ToolError

# typer reads these at run time, also on Python 3.10
_Switch = Optional[bool]  # noqa: UP045
_Text = Optional[str]  # noqa: UP045
_Texts = Optional[list[str]]  # noqa: UP045


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("setup")(setup)


def setup(
    watch: Annotated[_Switch, typer.Option("--watch/--no-watch", help="follow jobs beside the server")] = None,
    name: Annotated[_Texts, typer.Option("--name", help="a job to follow; none: all that look like AI jobs")] = None,
    serve: Annotated[_Switch, typer.Option("--serve/--no-serve", help="make a token for MCP over HTTP")] = None,
    unit: Annotated[_Switch, typer.Option("--unit/--no-unit", help="write a systemd service (root)")] = None,
    model_url: Annotated[_Text, typer.Option("--model-url", metavar="URL", help="language model: its API")] = None,
    model: Annotated[_Text, typer.Option("--model", metavar="NAME", help="language model: its name")] = None,
    model_key_file: Annotated[
        _Text, typer.Option("--model-key-file", metavar="FILE", help="language model: file with its key (mode 0600)")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="ask nothing: take the options and the defaults")] = False,
    lang: LangOption = "en",
) -> None:
    """Ask a few questions and write settings, token and service; what exists already is kept."""
    if not yes and not sys.stdin.isatty():
        raise ToolError(ErrorCode.BAD_ARGUMENT, "there is nobody to ask", "give --yes and the wanted options")
    root = os.geteuid() == 0
    if unit and not root:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "only root can write a systemd service", "call it with sudo")
    ask = words(lang)["setup"]
    if model_url is None and not yes:
        model_url = typer.prompt(ask["model_url"], default="", show_default=False)
    if model_url and not model and not yes:
        model = typer.prompt(ask["model"])
    if model_url and model_key_file is None and not yes:
        model_key_file = typer.prompt(ask["model_key_file"], default="", show_default=False)
    choices = Choices(
        watch=_answer(watch, ask["watch"], root, yes),
        names=tuple(name or ()),
        serve=_answer(serve, ask["serve"], True, yes),
        unit=root and _answer(unit, ask["unit"], Path("/run/systemd/system").is_dir(), yes),
        model_url=model_url or "",
        model=model or "",
        model_key_file=os.path.abspath(model_key_file) if model_key_file else "",
    )
    program = Path(sys.argv[0]).absolute()
    done = [(file, file.write()) for file in setup_files(choices, program)]
    console.say(render("setup.txt", lang, done=done, choices=choices, program=str(program), root=root))


def _answer(given: bool | None, question: str, default: bool, yes: bool) -> bool:
    if given is not None or yes:
        return default if given is None else given
    return typer.confirm(question, default=default)
