"""Escalates unacknowledged tickets to the next level, whose users are notified in their chats."""

from __future__ import annotations

from datetime import datetime, timezone

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.messages import Outgoing, Place
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.oncall.escalate import due_escalation, escalates_at
from whystall.knowledge_base.ticket_models import Assignment, Origin, Ticket
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.knowledge_base.times import rfc3339
from whystall.prompts.escape import markdown, short
from whystall.prompts.render import fill, words

EVERY_S = 15.0
_ORIGINS: tuple[Origin, ...] = ("alert", "person")
"""Not imported tickets, nor those of a diagnosis, which was requested and is read anyway."""
_MOST = 10_000
_TITLE = 120  # characters


class Escalation:
    """Escalates open tickets of `kb`. One without a next level is read again only after it changed."""

    def __init__(self, kb: Stores, settings: Settings) -> None:
        self._kb = kb
        self._settings = settings
        self._final: dict[str, int] = {}

    async def step(self, now: float) -> None:
        """Escalate what is due at `now` (seconds since the epoch)."""
        await in_thread(lambda: self.escalate(datetime.fromtimestamp(now, timezone.utc)))

    def escalate(self, now: datetime) -> int:
        """Escalate what is due; return the number of tickets."""
        lines = self._kb.tickets.lines(Wanted(states=("open",), origins=_ORIGINS), _MOST)
        known = self._final
        self._final = {line.id: line.revision for line in lines if known.get(line.id) == line.revision}
        return sum(self._one(line.id, now) for line in lines if line.id not in self._final)

    def _one(self, id: str, now: datetime) -> bool:
        ticket = self._kb.tickets.get(id)
        if escalates_at(ticket, self._settings.oncall) is None:
            self._final[id] = ticket.revision
            return False
        overrides = self._kb.overrides.all()
        if due_escalation(ticket, self._settings.oncall, overrides, now) is None:
            return False
        with self._kb.transaction():
            ticket = self._kb.tickets.get(id)  # it may have been acknowledged meanwhile
            assignment = due_escalation(ticket, self._settings.oncall, overrides, now)
            if assignment is not None:
                self._reassign(ticket, assignment, now)
        return assignment is not None

    def _reassign(self, ticket: Ticket, assignment: Assignment, now: datetime) -> None:
        self._kb.tickets.assign(ticket.id, assignment, "engine", rfc3339(now))
        detail = {"users": assignment.users, "level": assignment.level, "schedule": assignment.schedule}
        self._kb.audit.put("engine", "ticket.escalated", f"ticket:{ticket.id}", detail=detail)
        lang = self._settings.tickets.lang
        message = escalated(ticket, assignment, lang)
        for user in assignment.users:
            person = self._settings.users.get(user)
            for channel, conversation in (person.chats if person else {}).items():
                if channel not in self._settings.chat:
                    continue
                place = Place(channel=channel, conversation=conversation)
                key = f"escalated:{ticket.id}:{assignment.at}:{assignment.level}:{channel}:{user}"
                self._kb.messages.put(key, channel, place.model_dump(), message.model_dump())


def escalated(ticket: Ticket, assignment: Assignment, lang: str) -> Outgoing:
    """Return the message to the new assignees of `ticket`."""
    texts = words(lang)
    values = {
        "id": ticket.id,
        "severity": texts["severities"][ticket.severity.value],
        "title": markdown(short(ticket.human.title or ticket.component, _TITLE)),
        "level": assignment.level,
        "schedule": markdown(assignment.schedule or ""),
    }
    title = fill(markdown, texts["work"]["escalated_title"], id=ticket.id)
    return Outgoing(
        title=title, text=fill(markdown, texts["work"]["escalated"], **values), lang="zh" if lang == "zh" else "en"
    )
