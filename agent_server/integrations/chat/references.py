"""Resolve what a message refers to: a position in the last list, the last ticket, a ticket described by words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from whystall.agent_server.integrations.chat.alert_overview import ALERT
from whystall.agent_server.integrations.chat.intents import Intent
from whystall.agent_server.integrations.chat.ticket_words import ENDED, fitting
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.ticket_models import LIVE, Ticket

_ORDINALS = {word: n for n, word in enumerate(("first", "second", "third", "fourth", "fifth"), 1)}
_ORDINALS |= {word: n for n, word in enumerate(("1st", "2nd", "3rd", "4th", "5th"), 1)}
_ORDINALS |= {word: n for n, word in enumerate("一二三四五六七八九十", 1)} | {"last": -1, "最后": -1}


def ticket_of(intent: Intent, context: dict[str, Any]) -> str | None:
    """Return the number of the ticket that is meant: a number, a position in the last list, or the last ticket; None
    if there is none there.
    """
    if id := intent.get("id"):
        return id.lstrip("0") or "0"
    if intent.get("nth"):
        found = _at_position(intent, context)
        return None if found.startswith(ALERT) else found or None
    last = context.get("ticket")
    return str(last) if last else None


def alert_of(intent: Intent, context: dict[str, Any]) -> str:
    """Return the name of the alert at the position in the last list that is meant; empty if no alert is there."""
    found = _at_position(intent, context)
    return found.removeprefix(ALERT) if found.startswith(ALERT) else ""


def _at_position(intent: Intent, context: dict[str, Any]) -> str:
    nth = intent.get("nth").lower()
    shown = [str(id) for id in context.get("listed") or []]
    position = int(nth) if nth.isdigit() else _ORDINALS.get(nth, 0)
    return shown[position - 1] if 0 < position <= len(shown) else shown[-1] if position < 0 and shown else ""


def meant_tickets(kb: Stores, intent: Intent, context: dict[str, Any]) -> Sequence[str | Ticket]:
    """Return the number of the ticket that a command concerns, or the tickets that fit its words if not just one does.

    Without number, position and words it is the last ticket that was shown. Blocks on the database.
    """
    if about := intent.get("about"):
        return fitting(kb, about, ENDED if intent.name == "reopen" else LIVE)
    id = ticket_of(intent, context)
    return [] if id is None else [id]


def chosen_position(text: str, pending: dict[str, Any]) -> int | None:
    """Return the chosen position, from 1, of a message that is a position or a pid; None for any other
    message. `pending`: the question, with its list of ``jobs``."""
    found = re.fullmatch(r"\s*(?:#|no\.?|number|第|选)?\s*([0-9]{1,7})\s*(?:个|号|\.)?\s*", text, re.I)
    if found is None:
        return None
    number = int(found[1])
    pids = [int(pid) for _, pid in pending["jobs"]]
    if 1 <= number <= len(pids):
        return number
    return pids.index(number) + 1 if number in pids else None
