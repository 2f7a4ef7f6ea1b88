"""``whystall chats``: configured chats, failed messages, and a test message."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from whystall.agent_server.integrations.chat.sending import dry_run_requests, send_all
from whystall.agent_server.integrations.chat_vendors import vendors
from whystall.agent_server.integrations.messages import Outgoing, Place, SendError
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.journal.audit import Audit
from whystall.agent_server.outbound import redact
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.settings.load import load
from whystall.agent_server.stores import open_default
from whystall.prompts.escape import markdown, plain
from whystall.prompts.render import fill, words
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.integrations.messages import SendSteps, Vendor
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

# Secrets that authenticate incoming messages; one of them is enough.
_INBOUND_SECRETS = ("app_secret", "signing_secret", "encrypt_key", "verification_token", "encoding_aes_key", "secret")


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Configured chats, and messages that could not be sent.", rich_markup_mode=None)
    group.command("list")(list_chats)
    group.command("test")(try_chat)
    app.add_typer(group, name="chats")


def list_chats(as_json: JsonOption = False, lang: LangOption = "en") -> None:
    """List the chats, whether they receive and send, how many messages wait, and what went wrong."""
    with _open() as (kb, settings):
        counts = kb.messages.counts()
        known = vendors(settings.chat)
        listed: list[dict[str, Any]] = [
            {
                "name": name,
                "kind": known[name].kind if name in known else None,
                "receives": name in known and _receives(settings, name),
                "notified": name in known and known[name].home() is not None,
                "waiting": counts.get(name, (0, 0))[0],
                "failed": counts.get(name, (0, 0))[1],
                "troubles": [
                    {"created": m.created, "state": m.state, "title": str(m.message.get("title", "")), "error": m.error}
                    for m in kb.messages.troubled(name)
                ],
            }
            for name in dict.fromkeys([*known, *counts])
        ]
    if as_json:
        console.say_json(listed)
        return
    say = _words(lang)
    if not listed:
        console.say(say("none"))
    for one in listed:
        receives = say("receives", one["name"]) if one["receives"] else say("receives_nothing")
        notified = say("notified" if one["notified"] else "answers_only")
        shown = {key: value for key, value in one.items() if key not in ("receives", "notified", "troubles")}
        console.say(say("line" if one["kind"] else "removed", **shown, receives=receives, notified=notified))
        for trouble in one["troubles"]:
            console.say("  " + say("trouble", **{key: trouble[key] for key in ("created", "title", "error")}))


def try_chat(
    name: Annotated[str, typer.Argument(metavar="CHAT", help="its name in the settings")],
    to: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--to", metavar="ID", help="the vendor's id of a group or person (that of the settings)"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the requests, without secrets, and send nothing")
    ] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Send a test line to a chat."""
    with _open() as (kb, settings):
        known = vendors(settings.chat)
        if name not in known:
            names = ", ".join(sorted(known)) or "there is none"
            raise ToolError(ErrorCode.NOT_FOUND, f"no chat is called {name!r} in the settings", f"known: {names}")
        place = _place(known[name], to)
        steps = _test(known[name], place, lang)
        if dry_run:
            try:
                requests = [redact.request_text(request) for request in dry_run_requests(steps)]
            except SendError as error:
                raise _failed(name, error.code, error.message) from None
            if as_json:
                console.say_json([{"name": name, "requests": requests}])
            else:
                console.say("\n\n".join(requests))
            return
        count = _send(kb.audit, name, place, steps)
    if as_json:
        console.say_json([{"name": name, "said": True, "requests": count}])
    else:
        console.say(_words(lang)("said", name=name, requests=count))


def _place(vendor: Vendor, to: str | None) -> Place:
    if to is not None:
        return Place(channel=vendor.name, conversation=to)
    home = vendor.home()
    if home is None:
        message = f"{vendor.name} gets answers only"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give --to ID, or `to` or `webhook` in its settings")
    return home


def _test(vendor: Vendor, place: Place, lang: str) -> SendSteps:
    texts = words(lang)["chats"]
    text = fill(markdown, texts["text"], user=getpass.getuser(), host=socket.gethostname())
    message = Outgoing(title=str(texts["title"]), text=str(text), lang="zh" if lang == "zh" else "en")
    now = time.time()
    return vendor.send(place, message, None, f"test:{time.time_ns()}", now)


def _send(audit: Audit, name: str, place: Place, steps: SendSteps) -> int:
    async def send() -> int:
        async with Client() as client:
            return await send_all(client, steps)

    target = f"{name}:{place.conversation}"
    try:
        count = signals.run(send())
    except (SendError, Undelivered) as error:
        audit.put("cli", "message.sent", target, error.code, {"why": error.message, "test": True})
        raise _failed(name, error.code, error.message) from None
    audit.put("cli", "message.sent", target, "ok", {"requests": count, "test": True})
    return count


def _failed(name: str, code: str, message: str) -> ToolError:
    why = f"{code}: {message}" if message else code
    return ToolError(ErrorCode.IO_ERROR, f"{name}: {why}", "see its settings and secrets, or try again")


def _receives(settings: Settings, name: str) -> bool:
    chat = settings.chat[name]
    if chat.kind == "feishu":  # its app_secret is for answering
        return chat.encrypt_key is not None or chat.verification_token is not None
    return any(getattr(chat, secret, None) is not None for secret in _INBOUND_SECRETS)


def _words(lang: str) -> Callable[..., str]:
    return lambda code, *values, **named: str(fill(plain, words(lang)["chats"][code], *values, **named))


@contextmanager
def _open() -> Iterator[tuple[Stores, Settings]]:
    settings = load()
    with open_default() as kb:
        yield kb, settings
