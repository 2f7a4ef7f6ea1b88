"""Write docs/commands.md: every command of the program, with its arguments and options.

usage: python docs/generate_commands.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from whystall.agent_server.interfaces.cli.command_tree import build

PAGE = Path(__file__).with_name("commands.md")
HEAD = """# Command reference

Written by `make docs` from the program itself; do not edit. `whystall COMMAND --help` prints the same.

Exit status: 0 for an answer, whatever it says; 2 for bad arguments; 1 for other failures; 130 and 143 after SIGINT and
SIGTERM. An error is one line on standard error: `error: CODE: message; remedy`. `--json` prints what MCP clients get as
structured content. `WHYSTALL_HOME` names the directory with database and artifacts, by default `/var/lib/whystall` for
root and `~/.local/state/whystall` for others. `WHYSTALL_DEBUG=1` shows the traceback of an internal error.
"""


def page() -> str:
    """Return the text of docs/commands.md."""
    root = typer.main.get_command(build([]))
    return "\n".join([HEAD, *_sections(root, None, "whystall")])


def _sections(command: Any, parent: Any, path: str) -> Iterator[str]:
    """Yield a section per leaf command, in the order of the program's help."""
    context = command.context_class(command, parent=parent, info_name=path.split()[-1], **command.context_settings)
    if hasattr(command, "commands"):
        for name in command.list_commands(context):
            yield from _sections(command.get_command(context, name), context, f"{path} {name}")
        return
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"## {path}\n\n{' '.join((command.help or '').split())}\n\n    {usage}\n"
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records if "--help" not in names]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
