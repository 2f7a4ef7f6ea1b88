"""Who works on what, and what is known before somebody acts on a host. Read-only, but blocking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from whystall.agent_server.integrations.alerts.related import hosts_of, things_of
from whystall.agent_server.integrations.chat.alert_overview import (
    alert_lines,
    firing,
    listed_tickets,
    named_alerts,
    terms_of,
)
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.intents import Intent, corrected
from whystall.agent_server.integrations.chat.look_up import Found, look_up
from whystall.agent_server.integrations.chat.message_texts import outgoing, ticket_line
from whystall.agent_server.integrations.chat.ticket_words import nearest
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import LIVE, Ticket
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import words

_READ = 200
_SHOWN = 6
_CONTACT = 300


def handled_message(known: Answers, intent: Intent, context: dict[str, Any], lang: Lang, now: datetime) -> Found:
    """Return whether anybody works on the tickets that the question describes, else on the last one shown, else on any
    open one. Of an alert that it names, and that has no ticket, nobody has been notified here.
    """
    text = corrected(intent.text)
    tickets: Sequence[Ticket] = nearest(known.kb, text)
    alerts = [one for one in named_alerts(firing(known.kb), text) if not one.ticket]
    if alerts:
        places = terms_of(" ".join(host for one in alerts for host in hosts_of(things_of(one.alert.labels))))
        tickets = [one for one in tickets if places & terms_of(f"{one.human.title} {one.human.description}")]
        stated: list[str] = [
            say(lang, "look_up.alerts"),
            *alert_lines(alerts, lang, now),
            say(lang, "handled.no_ticket"),
        ]
        stated += [
            f"- {ticket_line(one, lang)}{say(lang, 'handled.colon')}{_by_whom(known, one, lang)}" for one in tickets
        ]
        listed = [*listed_tickets(alerts), *(one.id for one in tickets)]
        return Found(outgoing(lang, stated, say(lang, "title.tickets")), listed)
    if not tickets and (last := context.get("ticket")):
        tickets = [known.kb.tickets.get(str(last))]
    tickets = tickets or known.kb.tickets.list(Wanted(states=LIVE), _READ)
    shown = sorted(tickets, key=lambda ticket: -ticket.severity.rank)[:_SHOWN]
    if not shown:
        return Found(outgoing(lang, [say(lang, "ticket.none")]), [])
    lines: list[str] = []
    for ticket in shown:
        lines.append(f"- {ticket_line(ticket, lang)}{say(lang, 'handled.colon')}{_by_whom(known, ticket, lang)}")
    if len(tickets) > len(shown):
        lines.append(f"- {say(lang, 'ticket.more', len(tickets) - len(shown))}")
    return Found(outgoing(lang, lines, say(lang, "title.tickets")), [ticket.id for ticket in shown])


def _by_whom(known: Answers, ticket: Ticket, lang: Lang) -> Safe:
    """Return who acknowledged `ticket`, or who was notified and has not."""
    if ticket.state == "acknowledged":
        taken = next((e for e in reversed(known.kb.tickets.events(ticket.id)) if e.what == "acknowledged"), None)
        return say(lang, "handled.acknowledged", name(short(taken.by, _CONTACT)) if taken else Safe("-"))
    if ticket.state != "open":
        return say(lang, "handled.ended", words(lang)["states"][ticket.state])
    users = ticket.assignment.users if ticket.assignment is not None else []
    if not users:
        return say(lang, "handled.nobody")
    semicolon: str = words(lang)["marks"]["semicolon"]
    return say(lang, "handled.open", Safe(semicolon.join(known.person(user) for user in users)))


def may_act_message(known: Answers, intent: Intent, lang: Lang, now: datetime) -> Found:
    """Return what is stored about the machine that somebody wants to change, and who can decide."""
    found = look_up(known, intent.text, lang, now)
    listed = found.listed if found is not None else []
    body = found.message.text if found is not None else say(lang, "look_up.nothing")
    duty = known.on_call(Intent("on_call", "", intent.lang), lang, now).text
    return Found(outgoing(lang, [say(lang, "may_act"), body, say(lang, "may_act_who"), duty]), listed)
