"""Receivers: what is done with the groups of alerts that a route sends there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from whystall.agent_server.integrations.alerts.yaml_reader import Item
from whystall.knowledge_base.classify.rules import categories
from whystall.tools.contract.findings import Severity

_FIELDS = {"name", "ticket", "triage", "resolved", "chat", "sinks", "schedule", "given", "lang"}
_GIVEN: tuple[Literal["category", "component", "severity"], ...] = ("category", "component", "severity")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class ChatTarget:
    """A chat channel of the settings and the conversation in it; empty: the channel's default one."""

    channel: str
    conversation: str = ""


@dataclass(frozen=True)
class Receiver:
    """One receiver.

    `ticket`: file a ticket per group; `triage`: find and diagnose the process that the alerts concern; `resolved`: what
    to do with the ticket when the last alert ends; `chat`: whom to notify; `sinks`: trackers of its tickets (None: the
    default ones); `schedule`: who is on call; `given`: fixed category, component and severity; `line`: in its file.
    `lang`: of its messages and tickets; None: of messages that of each chat, of tickets English.
    """

    name: str
    ticket: bool = True
    triage: bool = False
    resolved: Literal["resolve", "keep"] = "resolve"
    chat: tuple[ChatTarget, ...] = ()
    sinks: tuple[str, ...] | None = None
    schedule: str | None = None
    given: tuple[tuple[Literal["category", "component", "severity"], str], ...] = ()
    lang: Literal["en", "zh"] | None = None
    line: int = 0


def receiver(item: Item) -> Receiver:
    """Parse a receiver; raises `ToolError` (bad_argument)."""
    table = item.table(_FIELDS)
    if "name" not in table:
        item.fail("`name` is missing")
    ticket = table["ticket"].flag() if "ticket" in table else True
    if not ticket and (odd := next((table[n] for n in ("triage", "sinks", "schedule", "given") if n in table), None)):
        odd.fail("needs `ticket: true`")
    given = table["given"].table(set(_GIVEN)) if "given" in table else {}
    resolved = table["resolved"].word(("resolve", "keep")) if "resolved" in table else "resolve"
    return Receiver(
        name=_short(table["name"]),
        ticket=ticket,
        triage=table["triage"].flag() if "triage" in table else False,
        resolved="keep" if resolved == "keep" else "resolve",
        chat=tuple(map(_place, table["chat"].items())) if "chat" in table else (),
        sinks=tuple(map(_name, table["sinks"].items())) if "sinks" in table else None,
        schedule=_name(table["schedule"]) if "schedule" in table else None,
        given=tuple((name, _given(name, given[name])) for name in _GIVEN if name in given),
        lang=_lang(table["lang"]) if "lang" in table else None,
        line=item.line,
    )


def _lang(item: Item) -> Literal["en", "zh"]:
    return "zh" if item.word(("en", "zh")) == "zh" else "en"


def _place(item: Item) -> ChatTarget:
    table = item.table({"channel", "conversation"})
    if "channel" not in table:
        item.fail("`channel` is missing")
    conversation = _short(table["conversation"]) if "conversation" in table else ""
    return ChatTarget(_name(table["channel"]), conversation)


def _short(item: Item) -> str:
    text = item.text()
    if not 0 < len(text) <= 200 or not text.isprintable():
        item.fail("1 to 200 printable characters are expected")
    return text


def _name(item: Item) -> str:
    if not _NAME.fullmatch(item.text()):
        item.fail("a name of the settings has letters, digits, `_`, `-` and `.`")
    return item.text()


def _given(name: Literal["category", "component", "severity"], item: Item) -> str:
    if name == "severity":
        return item.word(tuple(s.value for s in Severity))
    if name == "category":
        return item.word((*categories(), "none"))
    return _short(item)
