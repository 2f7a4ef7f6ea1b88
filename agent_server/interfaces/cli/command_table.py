"""The commands of the top level: name, module and summary; their help is printed without importing any of them."""

from __future__ import annotations

import shutil
import textwrap

DESCRIPTION = "Say which process, on which file, lock, CPU or device, stalls an AI job, for how long, and what to do."

COMMANDS = {
    "doctor": ("host", "Say what works on this host, what is missing, and the command that fixes it."),
    "tools": ("host", "List the diagnostic tools."),
    "run": ("run", "Run one diagnostic tool."),
    "record": ("observe", "Record what every tool needs, to judge it later with --from."),
    "gather": (
        "observe",
        "Read the traces of a job's ranks into a small recording, to judge it elsewhere or later with --from.",
    ),
    "diagnose": ("observe", "Say what stalls a job, where, for how long, and what to do."),
    "verify": ("observe", "Run a ticket's tools again and show before beside after."),
    "replay": ("replay", "Follow a diagnosis again without model and host, and say whether it comes to the same."),
    "hybrid-run": (
        "hybrid",
        "Run a program with hybrid I/O: its large requests go direct or through the page cache, by size and pressure.",
    ),
    "ftrace": ("ftrace", "Record and convert traces of the kernel's scheduler."),
    "stacks": ("stacks", "Convert stack samples."),
    "serve": ("serve", "Serve the tools over MCP, on standard input and output or over HTTP."),
    "kb": ("kb", "Past incidents."),
    "tickets": ("tickets", "Tickets."),
    "chat": (
        "chat",
        "Talk: why a job is slow, who is on call, tickets, past incidents; the same as in the chats of the settings.",
    ),
    "chats": ("chats", "Configured chats, and messages that could not be sent."),
    "jobs": ("jobs", "Say which jobs run on this machine, or which process is meant by some words."),
    "alerts": ("alerts", "Alerts that came in."),
    "silence": ("alerts", "Silences: alerts that match are kept, and nobody is notified."),
    "route": ("route", "Routes of alerts."),
    "sinks": ("sinks", "Trackers that tickets are synchronised with."),
    "oncall": ("oncall", "Who is on call."),
    "audit": ("audit", "List what was sent and changed, the newest last; secrets are never in it."),
    "config": ("config", "The settings."),
}
"""Command name: its module below ``commands``, and the first paragraph of its help."""
EXTRAS = {"chat": "ticketing", "chats": "ticketing", "sinks": "ticketing"}
"""Modules below ``commands`` that need the libraries of an extra."""


def help_text() -> str:
    """Return the help of the top level, in typer's layout."""
    width = max(50, min(shutil.get_terminal_size().columns, 100) - 2)
    options = [("--version", "print the version"), ("-h, --help", "Show this message and exit.")]
    commands = [(name, summary) for name, (_, summary) in COMMANDS.items()]
    about = textwrap.fill(DESCRIPTION, width, initial_indent="  ", subsequent_indent="  ")
    return (
        f"Usage: whystall [OPTIONS] COMMAND [ARGS]...\n\n{about}\n\n"
        f"Options:\n{_rows(options, width)}\n\nCommands:\n{_rows(commands, width)}\n"
    )


def _rows(rows: list[tuple[str, str]], width: int) -> str:
    """Return two columns, the second one wrapped."""
    first = max(len(name) for name, _ in rows) + 4
    return "\n".join(
        textwrap.fill(text, width, initial_indent=f"  {name}".ljust(first), subsequent_indent=" " * first)
        for name, text in rows
    )
