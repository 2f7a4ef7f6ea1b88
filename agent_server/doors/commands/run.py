"""``whystall run TOOL``: one command per registered tool, its options made from its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from whystall.agent_server.app import App
from whystall.agent_server.doors import console
from whystall.agent_server.doors.options import EngineOption, FromOption, JsonOption, LangOption, command
from whystall.agent_server.doors.signals import signals
from whystall.tools.contract.registry import Tool


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Run one diagnostic tool.", rich_markup_mode=None)
    service = App()
    for tool in service.tools():
        execute = command(_runner(service, tool), tool.params, doc=f"{tool.title}. {tool.description}")
        group.command(tool.name)(execute)
    app.add_typer(group, name="run")


def _runner(service: App, tool: Tool[Any, Any]) -> Callable[..., None]:
    def run(
        given: dict[str, Any],
        source: FromOption = None,
        engine: EngineOption = "auto",
        as_json: JsonOption = False,
        lang: LangOption = "en",
    ) -> None:
        with console.progress() as progress:
            running = service.run_tool(tool.name, given, source=source, engine=engine, progress=progress, lang=lang)
            result = signals.run(running)
        if as_json:
            console.say_json(result)
        else:
            from whystall.agent_server.doors.words import result_text

            console.say(result_text(result, lang))

    return run
