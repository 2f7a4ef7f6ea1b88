"""``whystall hang``: the tool of that name, which an engineer needs at once."""

from __future__ import annotations

import typer

from whystall.agent_server.interfaces.cli.commands.run import tool_command


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("hang")(tool_command("hang"))
