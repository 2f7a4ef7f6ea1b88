"""``whystall doctor`` and ``whystall tools``."""

from __future__ import annotations

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("doctor")(doctor)
    app.command("tools")(tools)


def doctor(as_json: JsonOption = False, lang: LangOption = "en") -> int:
    """Report what works on this host, what is missing, and the command that fixes it."""
    from whystall.agent_server.doctor import examine, report

    health = examine(lang)
    if as_json:
        console.say_json(health)
    else:
        console.say(report(health, lang))
    return 0 if health.engines else 1


def tools(as_json: JsonOption = False) -> None:
    """List the diagnostic tools."""
    from whystall.agent_server.app import App

    entries = App().tools()
    if as_json:
        console.say_json([{"name": t.name, "title": t.title, "description": t.description} for t in entries])
        return
    width = max(len(t.name) for t in entries)
    console.say("\n".join(f"{t.name:<{width}}  {t.description}" for t in entries))
