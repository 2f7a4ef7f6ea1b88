"""The tree of commands. Only the module of the requested command is imported, to start quickly."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_table import COMMANDS, DESCRIPTION, help_text
from whystall.agent_server.interfaces.cli.options import underscores


def build(words: Sequence[str]) -> typer.Typer:
    """Return the commands that `words` may mean: those of one module, or all of them for an unknown command."""
    app = typer.Typer(
        name="whystall",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": underscores},
    )
    app.callback(invoke_without_command=True, help=DESCRIPTION)(_top_level)
    name = next((word for word in words if not word.startswith("-")), "")
    modules = (
        [COMMANDS[name][0]] if name in COMMANDS else list(dict.fromkeys(module for module, _ in COMMANDS.values()))
    )
    for module in modules:
        import_module(f"whystall.agent_server.interfaces.cli.commands.{module}").add(app)
    return app


def _top_level(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="print the version"),
) -> None:
    if version:
        from whystall.agent_server.version import version as number

        console.say(f"whystall {number()}")
    elif context.invoked_subcommand is None:
        console.say(help_text())
