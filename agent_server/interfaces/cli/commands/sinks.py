"""``whystall sinks``: the trackers that tickets are synchronised with, and their errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Optional

import anyio
import typer

from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker
from whystall.agent_server.integrations.trackers.dry_run import planned
from whystall.agent_server.integrations.trackers.polling import TrackerPoller
from whystall.agent_server.integrations.trackers.registry import open_notifier, open_tracker
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.redact import request_text
from whystall.agent_server.settings.load import load
from whystall.agent_server.settings.sections.trackers import TrackerSettings
from whystall.agent_server.stores import open_default
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.worker.lock import worker_lock
from whystall.prompts.escape import plain
from whystall.prompts.render import fill, words
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

NameArgument = Annotated[Optional[str], typer.Argument(metavar="[SINK]", help="only this one")]  # noqa: UP045
DryOption = Annotated[bool, typer.Option("--dry-run", help="print the requests, without secrets, and send nothing")]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Trackers that tickets are synchronised with.", rich_markup_mode=None)
    group.command("list")(list_sinks)
    group.command("deliver")(deliver)
    group.command("sync")(sync)
    group.command("test")(try_sinks)
    app.add_typer(group, name="sinks")


def list_sinks(as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """List the trackers, how many tickets each has, and what is wrong."""
    with _open() as (kb, settings):
        counts = kb.deliveries.counts()
        troubles = {name: kb.deliveries.troubled(name) for name in settings.sinks}
    if as_json:
        console.say_json(
            [
                {
                    "name": name,
                    "kind": settings.sinks[name].kind if name in settings.sinks else None,
                    "url": _address(settings.sinks[name].url) if name in settings.sinks else None,
                    **dict(zip(("tickets", "behind", "parked"), counts.get(name, (0, 0, 0)), strict=True)),
                    "troubles": [
                        d.model_dump(include={"ticket", "error", "parked", "attempts", "due", "remote", "url"})
                        for d in troubles.get(name, [])
                    ],
                }
                for name in dict.fromkeys([*settings.sinks, *counts])
            ]
        )
        return
    say = _words(lang)
    if not settings.sinks and not counts:
        console.say(say("none"))
    for name in dict.fromkeys([*settings.sinks, *counts]):
        tickets, behind, parked = counts.get(name, (0, 0, 0))
        if name not in settings.sinks:
            console.say(say("removed", name=name, tickets=tickets))
            continue
        sink = settings.sinks[name]
        url = _address(sink.url)
        console.say(say("line", name=name, kind=sink.kind, url=url, tickets=tickets, behind=behind, parked=parked))
        for d in troubles[name]:
            due = datetime.fromtimestamp(d.due, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
            fields = {"ticket": d.ticket, "error": d.error, "due": due, "attempts": d.attempts + 1}
            console.say("  " + say("parked" if d.parked else "failing", **fields))
        if any(d.parked for d in troubles[name]):
            console.say("  " + say("mend", name))


def deliver(
    name: NameArgument = None,
    ticket: Annotated[Optional[str], typer.Option("--ticket", help="only this ticket")] = None,  # noqa: UP045
    dry_run: DryOption = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Update trackers now, also after failures. Exit status 1 if something is left to do.

    If `whystall serve` runs, it does the work.
    """
    with _open() as (kb, settings):
        names = _named(settings, name)
        if ticket is not None:
            kb.tickets.get(ticket)
        if dry_run:
            _dry(kb, settings, names, ticket, as_json, lang)
            return
        done: list[dict[str, Any]] = []
        with worker_lock(kb.path) as locked:
            if locked:
                kb.deliveries.release()  # their worker has exited
            for one in names:
                kb.deliveries.unpark(one, ticket)

                async def work(client: Client, one: str = one) -> int:
                    return await DeliveryWorker(kb, settings, client, time.time).deliver(one, ticket)

                made = _run(work) if locked else None
                done.append({"name": one, "made": made, "behind": kb.deliveries.counts().get(one, (0, 0, 0))[1]})
    if not locked:
        _say(done, "left", as_json, lang)
        return
    _say(done, "delivered", as_json, lang)
    if any(one["behind"] for one in done):
        raise typer.Exit(1)


def sync(name: NameArgument = None, as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """Apply what people changed in trackers since the last poll."""
    with _open() as (kb, settings):
        names = _named(settings, name)
        if name is None:
            sinks = settings.sinks
            names = [one for one in names if isinstance(sinks[one], TrackerSettings) and sinks[one].two_way]
        done = []
        for one in names:

            async def work(client: Client, one: str = one) -> int:
                return await TrackerPoller(kb, settings, TicketService(kb, settings), client, time.time).sync(one)

            try:
                done.append({"name": one, "changes": _run(work)})
            except Undelivered as error:
                raise _failed(one, error) from None
    _say(done, "synced", as_json, lang)


def try_sinks(
    name: NameArgument = None, dry_run: DryOption = False, as_json: JsonOption = False, lang: LangOption = "en"
) -> None:
    """Check that trackers answer and accept our credentials; nothing is written there."""
    with _open() as (_, settings):
        done: list[dict[str, Any]] = []
        for one in _named(settings, name):
            sink = settings.sinks[one]
            if not isinstance(sink, TrackerSettings):  # any request would notify someone
                open_notifier(one, sink).read_secrets()
                done.append({"name": one, "says": "untested"})
                continue
            request, timeout = open_tracker(one, sink).check(), sink.timeout
            if dry_run:
                done.append({"name": one, "requests": [request_text(request)]})
                continue

            async def work(client: Client, request: Any = request, timeout: float = timeout) -> int:
                return (await client.send(request, timeout=timeout)).status

            try:
                _run(work)
            except Undelivered as error:
                raise _failed(one, error) from None
            done.append({"name": one, "says": "answers"})
    _print(done, as_json, lang)


def _dry(kb: Stores, settings: Settings, names: list[str], ticket: str | None, as_json: bool, lang: str) -> None:
    """Print the requests that would be sent."""
    done = [
        {
            "name": one,
            "requests": [request_text(request) for request in planned(kb, settings, one, ticket, time.time())],
        }
        for one in names
    ]
    _print(done, as_json, lang)


def _print(done: list[dict[str, Any]], as_json: bool, lang: str) -> None:
    if as_json:
        console.say_json(done)
        return
    say = _words(lang)
    for one in done:
        if "says" in one:
            console.say(say(one["says"], name=one["name"]))
        elif one["requests"]:
            console.say("\n\n".join(one["requests"]))
        else:
            console.say(say("nothing", name=one["name"]))


def _say(done: list[dict[str, Any]], code: str, as_json: bool, lang: str) -> None:
    if as_json:
        console.say_json(done)
        return
    say = _words(lang)
    for one in done:
        console.say(say(code, **one))


def _words(lang: str) -> Callable[..., str]:
    return lambda code, *values, **named: str(fill(plain, words(lang)["sinks"][code], *values, **named))


def _address(url: str) -> str:
    """Return `url` without its query, which may be a secret."""
    return url.partition("?")[0]


def _named(settings: Settings, name: str | None) -> list[str]:
    if name is None:
        return list(settings.sinks)
    if name not in settings.sinks:
        known = ", ".join(sorted(settings.sinks)) or "there is none"
        raise ToolError(ErrorCode.NOT_FOUND, f"no tracker is called {name!r} in the settings", f"known: {known}")
    return [name]


def _run(work: Callable[[Client], Coroutine[Any, Any, int]]) -> int:
    async def whole() -> int:
        async with Client() as client:
            return await work(client)

    return anyio.run(whole)


def _failed(name: str, error: Any) -> ToolError:
    remedy = "see its settings and secrets" if error.code == "unauthorised" else "try again, or check its address"
    return ToolError(ErrorCode.IO_ERROR, f"{name}: {error.code}: {error.message}", remedy)


@contextmanager
def _open() -> Iterator[tuple[Stores, Settings]]:
    settings = load()
    with open_default() as kb:
        yield kb, settings
