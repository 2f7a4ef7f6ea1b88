"""Ask to confirm commands that change something, and execute them when the same person confirms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.author import Author
from whystall.agent_server.integrations.chat.commands import Commands, PendingCommand, expires
from whystall.agent_server.integrations.chat.intents import Intent
from whystall.agent_server.integrations.chat.message_texts import outgoing, which_ticket
from whystall.agent_server.integrations.chat.references import meant_tickets
from whystall.agent_server.integrations.chat.turn import Turn
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import LIVE, Ticket
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.prompts.chat import say
from whystall.prompts.errors import error_text
from whystall.tools.contract.errors import ErrorCode, ToolError

TRANSIENT = (ErrorCode.DATABASE, ErrorCode.DISK_FULL)
"""Errors after which the same message may be answered later."""

_READ = 100  # latest open tickets


@dataclass(frozen=True)
class Confirming:
    """Commands from request to execution."""

    kb: Stores
    ticket_service: TicketService
    settings: Settings | None

    async def request(self, intent: Intent, author: Author, now: float, context: dict[str, Any]) -> Turn:
        """Return the question to confirm the command `intent`, or which ticket it concerns: no ticket is guessed."""
        kb, local = self.kb, datetime.fromtimestamp(now, author.zone)
        if author.may_change and intent.name != "silence":
            meant = await in_thread(lambda: meant_tickets(kb, intent, context))
            if len(meant) != 1:
                fit = [one for one in meant if isinstance(one, Ticket)]
                shown = fit or await in_thread(lambda: sorted(kb.tickets.list(Wanted(states=LIVE), _READ), key=_worst))
                message = which_ticket(shown, intent.get("about"), bool(fit), author.lang)
                topic = {**context, "listed": [one.id for one in shown], "lang": author.lang}

                def ask() -> Outgoing:
                    kb.pending_commands.put_topic(*author.key, topic, now)
                    return message

                return Turn(ask)
            id = meant[0] if isinstance(meant[0], str) else meant[0].id
            intent = replace(intent, slots={**{k: v for k, v in intent.slots.items() if k != "about"}, "id": id})
        commands = Commands(kb, self.ticket_service, self.settings)
        command, message = await in_thread(lambda: commands.prepare(intent, author, local))
        target = "silence" if intent.name == "silence" else f"ticket:{intent.get('id')}"

        def act() -> Outgoing:
            detail = {
                "command": intent.name,
                "sender": author.incoming.sender,
                "channel": author.incoming.place.channel,
            }
            if command is not None:
                kb.pending_commands.put(*author.key, {**command.body(), "lang": author.lang}, expires(now))
                kb.audit.put(author.name, "chat.asked", target, "to_confirm", {**detail, "slots": command.slots})
                if id := command.slots.get("id"):
                    kb.pending_commands.put_topic(*author.key, {**context, "ticket": id, "lang": author.lang}, now)
            elif not author.may_change:
                kb.audit.put(author.name, "chat.asked", target, "not_allowed", detail)
            return message

        return Turn(act)

    def confirm(self, yes: bool, author: Author, now: float) -> Turn:
        """Execute or drop the pending command."""
        kb = self.kb
        commands = Commands(kb, self.ticket_service, self.settings)

        def act() -> Outgoing:
            body = kb.pending_commands.take(*author.key, now)
            command = PendingCommand.read(body) if body is not None else None
            if command is None:
                return outgoing(author.lang, [say(author.lang, "dropped" if body is not None else "nothing_waits")])
            detail = {
                "command": command.command,
                "sender": author.incoming.sender,
                "channel": author.incoming.place.channel,
            }
            target = f"ticket:{command.slots['id']}" if "id" in command.slots else "silence"
            if not yes:
                kb.audit.put(author.name, "chat.confirmed", target, "dropped", detail)
                return outgoing(author.lang, [say(author.lang, "dropped")])
            try:
                with kb.transaction():
                    message = commands.execute(command, author, datetime.fromtimestamp(now, author.zone))
                    kb.audit.put(
                        author.name, "chat.confirmed", target, "ok" if author.may_change else "not_allowed", detail
                    )
            except ToolError as error:
                if error.code in TRANSIENT:
                    raise
                kb.audit.put(author.name, "chat.confirmed", target, error.code.value, detail)
                return error_message(error, author.lang)
            return message

        return Turn(act)


def _worst(ticket: Ticket) -> int:
    return -ticket.severity.rank


def error_message(error: ToolError, lang: Lang) -> Outgoing:
    """Return `error` with its remedy as a message."""
    return outgoing(lang, [say(lang, "failed", error_text(lang, error.code.value, error.message, error.remedy))])
