"""The top-level commands: name, module and summary. Their help is printed without importing any of them."""

from __future__ import annotations

import shutil
import textwrap

DESCRIPTION = "Say which process, on which file, lock, CPU or device, stalls an AI job, for how long, and what to do."

COMMANDS = {
    "setup": ("setup", "Ask a few questions and write settings, token and service; what exists already is kept."),
    "doctor": ("host", "Report what works on this host, what is missing, and the command that fixes it."),
    "tools": ("host", "List the diagnostic tools."),
    "run": ("run", "Run one diagnostic tool."),
    "record": ("observe", "Record what every tool needs, to judge it later with --from."),
    "gather": (
        "observe",
        "Read the traces of a job's ranks into a small recording, to judge it elsewhere or later with --from.",
    ),
    "baselines": ("baselines", "Stored runs that `run compare_runs --baseline` compares with."),
    "history": (
        "history",
        "Report what watched jobs waited for over time, and what changed: by thread, code line, file, lock and peer.",
    ),
    "diagnose": ("observe", "Report what stalls a job, where, for how long, and what to do."),
    "hang": ("hang", "Report which rank of a running job the others wait for, where it is, and for what it waits."),
    "watch": (
        "watch",
        "Watch jobs without end, and explain their first stall from what was recorded before it was noticed.",
    ),
    "top": (
        "top",
        "Show what each job waits for now, updated each second; without a name, of all that look like AI jobs.",
    ),
    "verify": ("observe", "Run a ticket's tools again and show before beside after."),
    "replay": ("replay", "Repeat a diagnosis without model and host, and report whether the result is the same."),
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
        "Answer questions: why a job is slow, who is on call, tickets, past incidents; as in the configured chats.",
    ),
    "chats": ("chats", "Configured chats, and messages that could not be sent."),
    "jobs": ("jobs", "List the jobs of this machine, or find the process that some words describe."),
    "fleet": ("fleet", "Ask many hosts, each of which runs `whystall serve`, and merge the answers."),
    "alerts": ("alerts", "Received alerts."),
    "silence": ("alerts", "Silences: matching alerts are stored without a notification."),
    "route": ("route", "Routes of alerts."),
    "sinks": ("sinks", "Trackers that tickets are synchronised with."),
    "oncall": ("oncall", "Who is on call."),
    "audit": ("audit", "List what was sent and changed, the newest last; secrets are never in it."),
    "config": ("config", "The settings."),
}
"""Command name: its module below ``commands``, and the first paragraph of its help."""
EXTRAS = {"fleet": "fleet", "chat": "ticketing", "chats": "ticketing", "sinks": "ticketing"}
"""Modules below ``commands`` that need the libraries of an extra."""


def help_text() -> str:
    """Return the help of the top level, in typer's layout."""
    width = max(50, min(shutil.get_terminal_size().columns, 100) - 2)
    options = [
        ("--version", "print the version"),
        ("--install-completion", "Install completion for the current shell (bash, zsh, fish)."),
        ("--show-completion", "Show its script, to copy or change it."),
        ("-h, --help", "Show this message and exit."),
    ]
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
