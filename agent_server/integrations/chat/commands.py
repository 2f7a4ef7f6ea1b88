"""Commands that change something. Each must be confirmed by the same person in the same conversation.

A command is checked when it is prepared and again when it is executed, by `TicketService` with its history and the
audit log. A model never issues one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, get_args

from whystall.agent_server.integrations.alerts.silencing import add, matchers_of
from whystall.agent_server.integrations.chat.alert_overview import firing
from whystall.agent_server.integrations.chat.author import Author
from whystall.agent_server.integrations.chat.intents import Intent
from whystall.agent_server.integrations.chat.message_texts import clock, outgoing, ticket_name
from whystall.agent_server.integrations.chat.silence_words import matcher_of
from whystall.agent_server.integrations.chat.times import until
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import ClosedAs, State
from whystall.knowledge_base.tickets.life import refusal
from whystall.prompts.chat import chat_words, name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import words

CONFIRM_S = 300.0
"""Seconds until a pending command expires."""
CHANGE = "change"
_STATES: dict[str, State] = {"acknowledge": "acknowledged", "resolve": "resolved", "close": "closed", "reopen": "open"}
_SHOWN = 300
_KNOWN = 10
_AS: tuple[tuple[str, ClosedAs], ...] = (
    (r"dup(?:licated?)?|same as|重复|相同", "duplicate"),
    (
        r"false (?:alarm|positive)|no[ _-]?fault|not a (?:fault|problem|bug)|invalid|works as|误报|没有?问题|无故障",
        "no_fault",
    ),
    (r"won'?t[ _-]?fix|will not fix|wontfix|不修复?|不处理|不解决|暂不", "wont_fix"),
    (
        r"can(?:no|')?t[ _-]?reproduce|cannot[ _-]?reproduce|not reproducible|无法复现|不能复现|复现不了",
        "cannot_reproduce",
    ),
    (r"stale|outdated|expired|too old|obsolete|过期|过时|陈旧", "stale"),
    (r"fixed|solved|resolved|done|repaired|已?修复|修好|已?解决|搞定", "fixed"),
)


@dataclass(frozen=True)
class PendingCommand:
    """A command that waits for confirmation. `command`: the name of its intent; `slots`: its arguments."""

    command: str
    slots: dict[str, str]

    def body(self) -> dict[str, Any]:
        """Return the form stored in `kb.pending_commands`."""
        return {"kind": CHANGE, "command": self.command, "slots": self.slots}

    @classmethod
    def read(cls, body: dict[str, Any]) -> PendingCommand | None:
        """Return the command in `body`; None for another kind of entry."""
        if body.get("kind") != CHANGE:
            return None
        return cls(str(body["command"]), {str(k): str(v) for k, v in body["slots"].items()})


@dataclass(frozen=True)
class Commands:
    """Prepares and executes commands."""

    kb: Stores
    ticket_service: TicketService
    settings: Settings | None

    def prepare(self, intent: Intent, author: Author, now: datetime) -> tuple[PendingCommand | None, Outgoing]:
        """Return the command and the question to confirm it, or None and what is missing or forbidden.

        Raises `ToolError` if its ticket does not exist.
        """
        lang = author.lang
        if not author.may_change:
            return None, outgoing(lang, [say(lang, "not_you")])
        slots = {name: value for name, value in intent.slots.items() if name not in ("time", "nth", "it")}
        missing = self._complete(intent, slots, author, now)
        if missing is not None:
            return None, outgoing(lang, [missing])
        made = PendingCommand(intent.name, slots)
        what = self._describe("wish", made, author, now)
        question = say(lang, "confirm", what=what, minutes=int(CONFIRM_S // 60))
        return made, outgoing(lang, [question], say(lang, "title.question"))

    def execute(self, command: PendingCommand, author: Author, now: datetime) -> Outgoing:
        """Execute a `command` that `author` confirmed, in the caller's transaction; raises `ToolError`."""
        lang = author.lang
        if not author.may_change:
            return outgoing(lang, [say(lang, "not_you")])
        number = self._run(command, author, now)
        return outgoing(lang, [self._describe("done", command, author, now, number)])

    def _complete(self, intent: Intent, slots: dict[str, str], author: Author, now: datetime) -> Safe | None:
        """Complete the `slots` of `intent`; return a message if something is missing."""
        lang, id = author.lang, slots.get("id", "")
        if id:
            slots["id"] = self.kb.tickets.get(id.lstrip("0") or "0").id
        if self._forbidden(intent.name, slots.get("id", "")):
            ticket = self.kb.tickets.get(slots["id"])
            return say(lang, "lacks.state", ticket=ticket_name(ticket, lang), state=words(lang)["states"][ticket.state])
        if intent.name == "resolve" and not slots.get("because"):
            return say(lang, "lacks.because", id=id)
        if intent.name == "close":
            return self._resolve_reason(slots, lang)
        if intent.name == "link":
            slots["other"] = self.kb.tickets.get(slots["other"].lstrip("0") or "0").id
        if intent.name == "assign":
            return self._resolve_person(slots, lang)
        if intent.name == "silence":
            if (missing := self._resolve_words(slots, lang)) is not None:
                return missing
            return self._resolve_silence(intent, slots, lang, now)
        return None

    def _forbidden(self, command: str, id: str) -> bool:
        """Return whether the state of ticket `id` does not allow `command`."""
        to = _STATES.get(command)
        return to is not None and bool(id) and refusal(self.kb.tickets.get(id), to) is not None

    def _resolve_reason(self, slots: dict[str, str], lang: Lang) -> Safe | None:
        reason = slots.pop("as", "")
        found = next((code for pattern, code in _AS if re.search(pattern, reason, re.I)), None)
        if found is None:
            return say(lang, "lacks.as", id=slots["id"])
        slots["as"] = found
        if found == "duplicate":
            other = re.search(r"[0-9]{1,9}", reason)
            if other is None:
                return say(lang, "lacks.other", id=slots["id"])
            slots["other"] = self.kb.tickets.get(other[0].lstrip("0") or "0").id
            if slots["other"] == slots["id"]:
                return say(lang, "lacks.other", id=slots["id"])
        elif found == "fixed":
            slots["because"] = reason
        return None

    def _resolve_person(self, slots: dict[str, str], lang: Lang) -> Safe | None:
        people = self.settings.users if self.settings is not None else {}
        wanted = slots["to"].lstrip("@").lower()
        for user, person in people.items():
            if wanted in (user.lower(), person.name.lower()):
                slots["to"] = user
                return None
        comma = words(lang)["marks"]["comma"]
        known = Safe(comma.join(name(user) for user in sorted(people)[:_KNOWN])) or Safe("-")
        return say(lang, "lacks.person", name(short(slots["to"], _SHOWN)), known)

    def _resolve_words(self, slots: dict[str, str], lang: Lang) -> Safe | None:
        """Replace words for alerts ("node7", "NFS") by a matcher; return a message if not just one thing is meant."""
        words_ = slots.pop("about", "") or slots["matchers"]
        if re.search(r"[=~]", words_):
            return None
        found = matcher_of(words_, firing(self.kb))
        if found is None:
            return say(lang, "lacks.matcher", name(short(words_, _SHOWN)))
        slots["matchers"] = found
        return None

    def _resolve_silence(self, intent: Intent, slots: dict[str, str], lang: Lang, now: datetime) -> Safe | None:
        ends = until(intent.get("time"), now)
        if ends is None:
            return say(lang, "lacks.until")
        texts = [
            _quoted(part) for part in re.split(r"[,，] *(?=[\w.]+ *[=!])| +(?=[\w.]+(?:=|!=|=~|!~))", slots["matchers"])
        ]
        matchers_of(texts)  # raises on invalid ones
        slots["matchers"] = ", ".join(texts)
        slots["until"] = str(int(ends.timestamp()))
        return None

    def _run(self, command: PendingCommand, author: Author, now: datetime) -> str:
        ticket_service, slots = self.ticket_service, command.slots
        at = now.astimezone(timezone.utc)
        id, by, source = slots.get("id", ""), author.name, author.source
        if command.command == "acknowledge":
            ticket_service.acknowledge(id, by, source, at)
        elif command.command == "resolve":
            ticket_service.resolve(id, slots["because"], by, source, at)
        elif command.command == "close" and slots["as"] == "duplicate":
            ticket_service.link(id, slots["other"], "duplicate", by, source, at)
        elif command.command == "close":
            reason = next(code for code in get_args(ClosedAs) if code == slots["as"])
            ticket_service.close(id, reason, by, source, at, because=slots.get("because", ""))
        elif command.command == "reopen":
            ticket_service.reopen(id, by, source, at, because=slots.get("because", ""))
        elif command.command == "comment":
            ticket_service.comment(id, slots["text"], by, source, at, key=f"{source}:{author.incoming.event}")
        elif command.command == "assign":
            ticket_service.assign(id, [slots["to"]], by, source, at)
        elif command.command == "link":
            ticket_service.link(id, slots["other"], "related", by, source, at)
        else:
            return self._silence(slots, by, at)
        return ""

    def _silence(self, slots: dict[str, str], by: str, at: datetime) -> str:
        kept = add(self.kb, slots["matchers"], float(slots["until"]), by, slots.get("because", ""), at.timestamp())
        return str(kept.id)

    def _describe(self, group: str, command: PendingCommand, author: Author, now: datetime, number: str = "") -> Safe:
        """Return what `command` would do (`group` ``wish``) or has done (``done``)."""
        lang, slots = author.lang, command.slots
        values: dict[str, object] = {"by": name(author.name), "id": number}
        if "id" in slots:
            values["ticket"] = ticket_name(self.kb.tickets.get(slots["id"]), lang)
        if "other" in slots:
            values["other"] = ticket_name(self.kb.tickets.get(slots["other"]), lang)
        if "as" in slots:
            values["as"] = chat_words(lang)["closed_as"][slots["as"]]
        if "until" in slots:
            ends = datetime.fromtimestamp(int(slots["until"]), timezone.utc)
            values["until"] = Safe(clock(ends, now))
        values["because"], values["said"] = (short(slots.get(slot, ""), _SHOWN) for slot in ("because", "text"))
        for slot in ("to", "matchers"):
            values[slot] = name(short(slots.get(slot, ""), _SHOWN))
        code = "duplicate" if group == "wish" and slots.get("as") == "duplicate" else command.command
        return say(lang, f"{group}.{code}", **values)


def expires(now: float) -> float:
    """Return when a command prepared `now` expires, in Unix seconds."""
    return now + CONFIRM_S


def _quoted(matcher: str) -> str:
    """Return ``alertname=X`` with the value quoted."""
    found = re.fullmatch(r' *([\w.]+) *(=~|!~|!=|=) *"?([^"]*?)"? *', matcher)
    return f'{found[1]}{found[2]}"{found[3]}"' if found is not None else matcher
