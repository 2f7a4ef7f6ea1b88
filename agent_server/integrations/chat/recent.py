"""What was recorded in a past period: alerts that began or ended, changes of tickets. Read-only, but blocking."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from whystall.agent_server.integrations.chat.alert_overview import (
    Firing,
    alert_lines,
    at_time,
    firing,
    listed_tickets,
    named_alerts,
    terms_of,
    worst_first,
)
from whystall.agent_server.integrations.chat.look_up import Found
from whystall.agent_server.integrations.chat.message_texts import clock, outgoing, ticket_line
from whystall.agent_server.integrations.chat.ticket_words import describing_words
from whystall.agent_server.integrations.chat.times import period
from whystall.agent_server.journal.alerts import Alert
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.lexicon import plain_word
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.times import moment
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import words

_ALERTS, _TICKETS, _EVENTS = 5000, 500, 200  # latest ones that are read
_SHOWN = 8
_NAME = 120
_HOST = re.compile(r"[a-z][a-z.]*\d[\w.]*")
"""A word that names a host or job, whether it is known or not."""
_COUNTED = ("opened", "acknowledged", "resolved", "closed", "reopened", "escalated", "commented")
"""Changes of tickets that are counted, in this order."""


def recent_message(kb: Stores, text: str, lang: Lang, now: datetime) -> Found:
    """Return what was recorded in the period that `text` names, about the host, job or alert that it names.

    Alerts count by their sender's times, tickets by their history.
    """
    begin, end = period(text, now)
    names = {term for term in terms_of(text) if any(map(str.isdigit, term)) or not plain_word(term)}
    tickets, counts = _changed(kb, begin, end)
    of_alert = {stored.alert.fingerprint: one.id for one in tickets for stored in kb.alerts.find(ticket=one.id)}
    of_alert |= {one.alert.fingerprint: one.ticket for one in firing(kb) if one.ticket}
    began, ended = _alerts(kb, begin, end)
    started = worst_first([Firing(alert, of_alert.get(alert.fingerprint, "")) for alert in began])
    over = [Firing(alert, of_alert.get(alert.fingerprint, "")) for alert in ended]
    named = named_alerts(started, text), named_alerts(over, text)
    about = {one.ticket for alerts in named for one in alerts}
    its = [one for one in tickets if one.id in about or names & _names(one)]
    # a word that names nothing recorded leaves nothing out: it may be any word
    if names and (its or any(named)):
        (started, over), tickets, names = named, its, set()
    known = [ticket for ticket in tickets if ticket.id not in listed_tickets(started)]
    total = sum((counts[ticket.id] for ticket in tickets), Counter())
    lines: list[str] = [say(lang, "recent.head", begin=Safe(clock(begin, now)), end=Safe(clock(end, now)))]
    if unknown := [term for term in sorted(names) if _HOST.fullmatch(term)]:
        lines.append(say(lang, "recent.none_of", Safe(words(lang)["marks"]["comma"].join(map(name, unknown)))))
    if started:
        lines += [say(lang, "recent.began", len(started)), *alert_lines(started, lang, now)]
    if over:
        lines.append(say(lang, "recent.ended", len(over)))
        lines += [f"- {_ended_line(one.alert, lang, now)}" for one in over[:_SHOWN]]
        lines += [f"- {say(lang, 'ticket.more', len(over) - _SHOWN)}"] if len(over) > _SHOWN else []
    if total:
        events = words(lang)["tickets"]["events"]
        comma: str = words(lang)["marks"]["comma"]
        lines.append(
            say(lang, "recent.tickets", Safe(comma.join(f"{events[w]} {total[w]}" for w in _COUNTED if total[w])))
        )
        lines += [f"- {ticket_line(one, lang)}" for one in known[:_SHOWN]]
    if not (started or over or total):
        lines.append(say(lang, "recent.nothing"))
    lines.append(say(lang, "recent.not_recorded"))
    listed = [*listed_tickets(started), *("" for _ in over[:_SHOWN]), *(one.id for one in known[:_SHOWN])]
    return Found(outgoing(lang, lines, say(lang, "title.recent")), listed)


def _alerts(kb: Stores, begin: datetime, end: datetime) -> tuple[list[Alert], list[Alert]]:
    """Return the alerts that began and those that ended from `begin` to `end`, each once."""
    since, until = begin.timestamp(), end.timestamp()
    began: dict[str, Alert] = {}
    ended: dict[str, Alert] = {}
    for stored in kb.alerts.find(limit=_ALERTS):
        alert = stored.alert
        if since <= alert.starts <= until:
            began.setdefault(alert.fingerprint, alert)
        if alert.status == "resolved" and since <= (alert.ends or stored.received) <= until:
            ended.setdefault(alert.fingerprint, alert)
    return list(began.values()), list(ended.values())


def _changed(kb: Stores, begin: datetime, end: datetime) -> tuple[list[Ticket], dict[str, Counter[str]]]:
    """Return the tickets with changes from `begin` to `end`, the worst first, and how many of each kind."""
    found: list[Ticket] = []
    counts: dict[str, Counter[str]] = {}
    for ticket in kb.tickets.list(limit=_TICKETS):
        updated = moment(ticket.updated)
        if updated is not None and updated < begin:
            continue
        events = kb.tickets.events(ticket.id, limit=_EVENTS)
        kinds: Counter[str] = Counter(e.what for e in events if (at := moment(e.at)) is not None and begin <= at <= end)
        shown: Counter[str] = Counter({what: kinds[what] for what in _COUNTED if kinds[what]})
        if shown:
            found.append(ticket)
            counts[ticket.id] = shown
    return sorted(found, key=lambda ticket: -ticket.severity.rank), counts


def _names(ticket: Ticket) -> set[str]:
    places = " ".join(value.partition(":")[0] for value in ticket.labels.values())
    text = f"{ticket.human.title} {ticket.human.description} {places}"
    return terms_of(text) | describing_words(text).words


def _ended_line(alert: Alert, lang: Lang, now: datetime) -> Safe:
    places: Sequence[str] = Firing(alert, "").places
    on = say(lang, "alerts.on", name(short(places[0], _NAME))) if places else Safe("")
    at = at_time(alert.ends, now) if alert.ends is not None else Safe("-")
    return say(lang, "recent.over", alert=name(short(alert.name or "-", _NAME)), places=on, at=at)
