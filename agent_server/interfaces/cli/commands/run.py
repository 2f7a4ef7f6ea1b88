"""``whystall run TOOL``: one command per registered tool, with options generated from its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
import typer.core
import typer.main

from whystall.agent_server.app import App
from whystall.agent_server.inputs.stacks import compares, observes
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import EngineOption, FromOption, JsonOption, Lang, LangOption, command
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.presentation.texts import result_text
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult


class _Tools(typer.core.TyperGroup):
    """The tools as commands; only the module of the requested tool is imported, to start quickly."""

    service = App()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all tools."""
        return self.service.tool_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a tool, None if there is no such tool."""
        if cmd_name not in self.service.tool_names():
            return None
        one = typer.Typer(rich_markup_mode=None, add_completion=False)
        one.command(cmd_name)(tool_command(cmd_name))
        return typer.main.get_command(one)


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(typer.Typer(help="Run one diagnostic tool.", rich_markup_mode=None, cls=_Tools), name="run")


def tool_command(name: str) -> Callable[..., None]:
    """Return the command of the tool `name`."""
    service = _Tools.service
    tool = service.tool(name)
    return command(_command(service, tool), tool.params, doc=f"{tool.title}. {tool.description}")


def _command(service: App, tool: Tool[Any, Any]) -> Callable[..., None]:
    """Return the function that runs `tool`, with the options that apply to it."""
    if compares(tool):
        return _comparer(service, tool)
    reads_only = tool.reads in ("ranks", "logs", "topology") or (tool.reads == "stacks" and not observes(tool))
    return _reader(service, tool) if reads_only else _runner(service, tool)


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
            _say(signals.run(running), as_json, lang)

    return run


def _reader(service: App, tool: Tool[Any, Any]) -> Callable[..., None]:
    """Return the command, without `--engine`, of a tool that reads traces, or whose parameters name what to observe."""

    def run(
        given: dict[str, Any], source: FromOption = None, as_json: JsonOption = False, lang: LangOption = "en"
    ) -> None:
        with console.progress() as progress:
            running = service.run_tool(tool.name, given, source=source, progress=progress, lang=lang)
            _say(signals.run(running), as_json, lang)

    return run


def _comparer(service: App, tool: Tool[Any, Any]) -> Callable[..., None]:
    """Return that of a tool that compares two profiles: they are among its parameters."""

    def run(given: dict[str, Any], as_json: JsonOption = False, lang: LangOption = "en") -> None:
        _reader(service, tool)(given, None, as_json, lang)

    return run


def _say(result: ToolResult[Any], as_json: bool, lang: Lang) -> None:
    if as_json:
        console.say_json(result)
    else:
        console.say(result_text(result, lang))
