"""``whystall route``: the routing tree of alerts, and the path of one alert through it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from whystall.agent_server.integrations.alerts import payload
from whystall.agent_server.integrations.alerts.payload import BODY_LIMIT
from whystall.agent_server.integrations.alerts.route_trace import explain_alerts, route_path
from whystall.agent_server.integrations.alerts.routefile import check_names
from whystall.agent_server.integrations.alerts.routefile import load as load_routes
from whystall.agent_server.integrations.alerts.text import routes_text, trace_text
from whystall.agent_server.integrations.alerts.tree import walk
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.settings.load import load
from whystall.agent_server.ticketing.oncall.times import parse_time, zone_of
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.integrations.alerts.payload import Batch
    from whystall.agent_server.integrations.alerts.routefile import Routes
    from whystall.agent_server.settings.model import Settings

_Routes = Annotated[
    Optional[Path],  # noqa: UP045  typer reads this at run time, also on Python 3.10
    typer.Option("--routes", metavar="FILE", help="this file, not the one of the settings (alerts.routes)"),
]
_SHOWN = 20


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Routes of alerts.", rich_markup_mode=None)
    group.command("test")(try_out)
    group.command("show")(show)
    app.add_typer(group, name="route")


def try_out(
    alerts: Annotated[str, typer.Argument(metavar="FILE|-", help="a body as it is posted, or one alert, as JSON")],
    form: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--form", metavar="NAME", help="alertmanager, generic, or one of alerts.forms (by what it holds)"),
    ] = None,
    routes: _Routes = None,
    at: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--at", metavar="TIME", help="evaluate mute times at this time: 2026-03-29T09:00"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many alerts of the body")] = _SHOWN,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show which routes match an alert, why others do not, and whether it would notify. Nothing is stored."""
    from whystall.agent_server.app import App

    settings = _settings()
    tree, name = _tree(settings, routes)
    now = _moment(settings, at)
    batch = _batch(_input(alerts), form, settings, tree, now)
    incoming = []
    for position, one in batch.parse(0, min(limit, len(batch.items))):
        if isinstance(one, str):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"alert {position + 1} of the body: {one}", "correct it")
        incoming.append(one)
    with App().closing() as app:
        found = explain_alerts(tree, incoming, app.kb(), now)
    if as_json:
        console.say_json([one.model_dump() for one in found])
    else:
        console.say(trace_text(found, len(batch.items) - len(incoming), name, lang))


def show(routes: _Routes = None, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Check the file of the routing tree and show the tree, its receivers and settings."""
    settings = _settings()
    tree, name = _tree(settings, routes)
    names = (set(settings.sinks), set(settings.oncall.schedules), set(settings.chat))
    check_names(tree, *names, routes or settings.alerts.routes)
    if as_json:
        console.say_json(_plain(tree))
    else:
        console.say(routes_text(tree, name, lang))


def _plain(tree: Routes) -> dict[str, Any]:
    return {
        "routes": [
            {
                "route": route_path(node),
                "line": node.line,
                "matchers": [str(matcher) for matcher in node.matchers],
                "continue": node.continue_,
                **asdict(node.options),
            }
            for node in walk(tree.root)
        ],
        "receivers": [asdict(receiver) for receiver in tree.receivers.values()],
        "time_intervals": sorted(tree.intervals),
        "inhibit_rules": [
            {
                "name": rule.name,
                "source": [str(matcher) for matcher in rule.source],
                "target": [str(matcher) for matcher in rule.target],
                "equal": list(rule.equal),
            }
            for rule in tree.inhibit
        ],
        "maintenance": [
            {
                "name": window.name,
                "matchers": [str(matcher) for matcher in window.matchers],
                "time_intervals": list(window.intervals),
            }
            for window in tree.maintenance
        ],
    }


def _batch(raw: bytes, form: str | None, settings: Settings, tree: Routes, now: float) -> Batch:
    """Return the alerts of the body; without a form, Alertmanager's is detected."""
    body: Any = raw
    if form is None:
        form = payload.ALERTMANAGER
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = raw  # rejected below with a message
        if _of_alertmanager([body]):
            body = {"alerts": [body]}
        elif isinstance(body, list) and _of_alertmanager(body):
            body = {"alerts": body}
        elif not isinstance(body, bytes) and not (isinstance(body, dict) and "alerts" in body):
            form = payload.GENERIC
    batch = payload.read(body, form, settings.alerts.forms, tree.names, now)
    if not batch.items:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the body holds no alert", "give one that was posted")
    return batch


def _of_alertmanager(alerts: list[Any]) -> bool:
    """Return whether these are alerts as Alertmanager writes them, with their names among their labels."""
    labels = [one.get("labels") if isinstance(one, dict) else None for one in alerts]
    return all(isinstance(one, dict) and "alertname" in one for one in labels)


def _input(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(BODY_LIMIT + 1)
    try:
        with Path(file).open("rb") as opened:
            return opened.read(BODY_LIMIT + 1)
    except OSError as error:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"cannot read {file}: {error.strerror}", "give a file or -") from None


def _moment(settings: Settings, at: str | None) -> float:
    if at is None:
        return time.time()

    return parse_time(at, zone_of(settings.oncall, []), "--at").timestamp()


def _settings() -> Settings:
    return load()


def _tree(settings: Settings, file: Path | None) -> tuple[Routes, str]:
    path = file or settings.alerts.routes
    return load_routes(path), str(path) if path is not None else ""
