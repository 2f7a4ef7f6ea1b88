"""``whystall hang``: the tool of that name, which an engineer needs at once."""

from __future__ import annotations

import typer

from whystall.agent_server.interfaces.cli.command_table import COMMANDS
from whystall.agent_server.interfaces.cli.commands.run import tool_command


def add(app: typer.Typer) -> None:
    """Add the command."""
    run = tool_command("hang")
    app.command("hang", help=f"{COMMANDS['hang'][1]}\n\n{run.__doc__}")(run)
