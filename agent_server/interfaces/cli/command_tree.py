"""The tree of commands. Only the module of the requested command is imported, to start quickly."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_table import COMMANDS, DESCRIPTION, EXTRAS, help_text
from whystall.agent_server.interfaces.cli.options import underscores
from whystall.agent_server.version import version as number
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra


def build(words: Sequence[str]) -> typer.Typer:
    """Return the commands of the module that `words` need; of all modules if there are no `words`.

    Raises `ToolError` (bad_argument): there is no such command, or a library of its extra is missing.
    """
    app = empty()
    name = next((word for word in words if not word.startswith("-")), "")
    wanted = [known for known in COMMANDS if underscores(known) == underscores(name)]
    if name and not wanted:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"No such command {name!r}", f"valid: {', '.join(COMMANDS)}")
    if not words:
        wanted = list(COMMANDS)
    for module in dict.fromkeys(COMMANDS[each][0] for each in wanted):
        with extra(EXTRAS.get(module, "")):
            import_module(f"whystall.agent_server.interfaces.cli.commands.{module}").add(app)
    return app


def empty() -> typer.Typer:
    """Return the top level without commands."""
    app = typer.Typer(
        name="whystall",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": underscores},
    )
    app.callback(invoke_without_command=True, help=DESCRIPTION)(_top_level)
    return app


def _top_level(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="print the version"),
) -> None:
    if version:
        console.say(f"whystall {number()}")
    elif context.invoked_subcommand is None:
        console.say(help_text())
