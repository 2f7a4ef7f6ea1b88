"""Resolve what a message refers to in the messages before it: a position in a list, the last ticket."""

from __future__ import annotations

import re
from typing import Any

from whystall.agent_server.integrations.chat.intents import Intent

_ORDINALS = {word: n for n, word in enumerate(("first", "second", "third", "fourth", "fifth"), 1)}
_ORDINALS |= {word: n for n, word in enumerate("一二三四五六七八九十", 1)} | {"last": -1, "最后": -1}


def ticket_of(intent: Intent, context: dict[str, Any]) -> str | None:
    """Return the number of the ticket that is meant: a number, a position in the last list, or the last ticket."""
    if intent.name == "spoken":
        found = context.get("ticket")
        return str(found) if found else None
    if intent.name in ("ticket", "history"):
        return intent.get("id").lstrip("0") or "0"
    shown = [str(id) for id in context.get("listed") or []]
    nth = intent.get("nth").lower()
    position = int(nth) if nth.isdigit() else _ORDINALS.get(nth, 0)
    return shown[position - 1] if 0 < position <= len(shown) else shown[-1] if position < 0 and shown else None


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
