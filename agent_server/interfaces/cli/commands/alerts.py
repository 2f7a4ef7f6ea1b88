"""``whystall alerts`` and ``whystall silence``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from whystall.agent_server.integrations.alerts.silencing import add as add_to
from whystall.agent_server.integrations.alerts.silencing import expire
from whystall.agent_server.integrations.alerts.text import alerts_text, silences_text
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, who
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.settings.load import load
from whystall.agent_server.stores import open_default
from whystall.agent_server.ticketing.oncall.times import parse_span, parse_time, zone_of
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

_TIME = "e.g. 2026-03-29T09:00; without Z or an offset by the clocks of [oncall].timezone"


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    alerts = typer.Typer(help="Received alerts.", rich_markup_mode=None)
    alerts.callback()(_alerts)
    alerts.command("list")(list_alerts)
    app.add_typer(alerts, name="alerts")
    silence = typer.Typer(help="Silences: matching alerts are stored without a notification.", rich_markup_mode=None)
    silence.command("add")(add_silence)
    silence.command("list")(list_silences)
    silence.command("expire")(expire_silence)
    app.add_typer(silence, name="silence")


def _alerts() -> None:
    """Received alerts."""


def list_alerts(
    status: Annotated[
        Optional[Literal["firing", "resolved"]],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--status", help="only firing, or only resolved ones"),
    ] = None,
    name: Annotated[Optional[str], typer.Option("--name", help="only alerts of this name")] = None,  # noqa: UP045
    ticket: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--ticket", metavar="TICKET", help="only alerts of this ticket"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="how many")] = 50,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List received alerts, the latest first."""
    with _kb() as kb:
        if ticket is not None:
            kb.tickets.get(ticket)
        found, counts = kb.alerts.find(status, name, ticket, limit), kb.alerts.counts()
    if as_json:
        lines = [
            {"n": s.n, "received": s.received, "seen": s.seen, "times": s.times, **s.alert.model_dump()} for s in found
        ]
        console.say_json({"counts": counts, "alerts": lines})
    else:
        console.say(alerts_text(found, counts, lang))


def add_silence(
    matchers: Annotated[
        list[str], typer.Argument(metavar="MATCHER...", help="as for Alertmanager: alertname=DiskSlow node=~gpu-.*")
    ],
    lasting: Annotated[str, typer.Option("--for", metavar="SPAN", help="how long: 30m, 4h, 2d")] = "",
    ends: Annotated[str, typer.Option("--to", metavar="TIME", help=f"its end, in place of --for; {_TIME}")] = "",
    begins: Annotated[str, typer.Option("--from", metavar="TIME", help="its beginning (now)")] = "",
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="why")] = "",
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Silence alerts that match all matchers."""
    if bool(lasting) == bool(ends):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "say how long it lasts", "give one of --for and --to")
    now = time.time()
    start = _moment(begins, "--from") if begins else now
    end = _moment(ends, "--to") if ends else start + parse_span(lasting, "--for").total_seconds()
    with _kb() as kb:
        made = add_to(kb, matchers, end, who(by), because, now, start)
    if as_json:
        console.say_json(made)
    else:
        console.say(silences_text([made], now, lang))


def list_silences(
    everything: Annotated[bool, typer.Option("--all", help="also those that are over")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List the active and pending silences."""
    now = time.time()
    with _kb() as kb:
        found = kb.silences.list(None if everything else now)
    if as_json:
        console.say_json([{**silence.model_dump(), "state": silence.state(now)} for silence in found])
    else:
        console.say(silences_text(found, now, lang))


def expire_silence(
    silence: Annotated[str, typer.Argument(metavar="SILENCE", help="its number")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """End a silence now."""
    now = time.time()
    with _kb() as kb:
        ended = expire(kb, silence, who(by), now)
    if as_json:
        console.say_json(ended)
    else:
        console.say(silences_text([ended], now, lang))


def _moment(text: str, name: str) -> float:
    return parse_time(text, zone_of(load().oncall, []), name).timestamp()


def _kb() -> Stores:
    return open_default()
