"""The tree of commands. Only the module of the command that is asked for is imported: start-up is felt."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import underscores

_COMMANDS = {
    "doctor": "host",
    "tools": "host",
    "run": "run",
    "record": "observe",
    "gather": "observe",
    "diagnose": "observe",
    "verify": "observe",
    "replay": "replay",
    "hybrid-run": "hybrid",
    "ftrace": "ftrace",
    "stacks": "stacks",
    "serve": "serve",
    "kb": "kb",
    "tickets": "tickets",
    "chat": "chat",
    "chats": "chats",
    "jobs": "chat",
    "alerts": "alerts",
    "silence": "alerts",
    "route": "route",
    "sinks": "sinks",
    "oncall": "oncall",
    "audit": "audit",
    "config": "config",
}


def build(words: Sequence[str]) -> typer.Typer:
    """The commands that `words` may mean: one module's, or all for help and for unknown commands."""
    app = typer.Typer(
        name="whystall",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": underscores},
    )
    app.callback(invoke_without_command=True)(whystall)
    asked = next((word for word in words if not word.startswith("-")), "")
    modules = [_COMMANDS[asked]] if asked in _COMMANDS else list(dict.fromkeys(_COMMANDS.values()))
    for module in modules:
        import_module(f"whystall.agent_server.interfaces.cli.commands.{module}").add(app)
    return app


def whystall(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="print the version"),
) -> None:
    """Say which process, on which file, lock, CPU or device, stalls an AI job, for how long, and what to do."""
    if version:
        from whystall.agent_server.interfaces.version import version as number

        console.say(f"whystall {number()}")
    elif context.invoked_subcommand is None:
        console.say(context.get_help())
