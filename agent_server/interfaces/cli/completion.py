"""Completion of commands and options in bash, zsh and fish, whose scripts typer writes (``--show-completion``).

The scripts start the program with ``_WHYSTALL_COMPLETE`` set and the typed line in further variables.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import typer

from whystall.agent_server.interfaces.cli.command_table import COMMANDS
from whystall.agent_server.interfaces.cli.command_tree import build, empty


def commands(environment: Mapping[str, str]) -> typer.Typer:
    """Return the commands that completing the line in `environment` needs, with few imports.

    The names alone while the command itself is being typed, else its module.
    """
    complete = _before_cursor(environment)
    name = next((word for word in complete if not word.startswith("-")), "")
    if name in COMMANDS:
        return build([name])
    app = empty()
    for known, (_, summary) in COMMANDS.items():
        app.command(known, help=summary)(_nothing)
    return app


def _before_cursor(environment: Mapping[str, str]) -> list[str]:
    """Return the words after the program's name that are complete.

    bash gives words and an index: ``COMP_WORDS='whystall diag' COMP_CWORD=1``; zsh and fish the line up to the cursor:
    ``_TYPER_COMPLETE_ARGS='whystall diagnose --p'``.
    """
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        words = line.split()
    if "COMP_CWORD" in environment:
        index = environment["COMP_CWORD"]
        return words[1 : int(index)] if index.isdigit() else []
    return words[1:] if line.endswith(" ") else words[1:-1]


def _nothing() -> None:
    """Stand for a command whose name is completed."""
