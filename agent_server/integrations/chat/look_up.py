"""Answer a message by retrieval: what the knowledge base, open alerts and open tickets hold about its words.

Used for how-to questions, for a host or a job that is not on this machine, and for what no rule understands. It
diagnoses nothing and changes nothing. All functions block on the database; call them in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from whystall.agent_server.incident_search.search import SearchNote
from whystall.agent_server.integrations.alerts.related import hosts_of, other_hosts, things_of
from whystall.agent_server.integrations.chat.alert_overview import (
    Firing,
    alert_lines,
    at_time,
    firing,
    listed_tickets,
    named_alerts,
    terms_of,
)
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.intents import corrected
from whystall.agent_server.integrations.chat.message_texts import outgoing, past_line, similar_message, ticket_line
from whystall.agent_server.integrations.chat.ticket_words import ENDED
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.presentation.xid_lines import xid_lines
from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.models import Lang, Match
from whystall.knowledge_base.retrieval import query_of
from whystall.knowledge_base.ticket_models import LIVE, State, Ticket
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.knowledge_base.tokens import CONCEPT
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.intents import intent_rules
from whystall.prompts.render import words
from whystall.prompts.topics import divided, topics_of

_TELLING = 0.8
"""Least informativeness (`knowledge_base.background`) of a plain word that a ticket is searched for; an estimate."""
NEAREST, NEAREST_ASKED = 0.3, 0.1
"""Least confidence of an incident that is shown as the nearest one, if none is likely enough to be an answer; the
second if the message asks about a fault.
"""
_PLAIN = 0.3
"""Least informativeness of a word that counts as shared; below are words such as "all" and "from"."""
# In most texts: that something fails on a machine, in a container, on a GPU. They liken none.
_USUAL = frozenset(
    {"node", "host", "machin", "server", "cluster", "pod", "e_machine", "e_error_words", "c_container", "c_gpu"}
)
_SHARED = 2  # words or concepts that make a text similar
_PART = 2  # letters
_COMPARED = 200  # worst alerts, latest open tickets
_ALERT_NAME = re.compile(r"(?<![\w.-])[A-Z]\w*[a-z]\w*[A-Z]\w*(?![\w.-])", re.ASCII)  # NodeDiskLatencyHigh
_TOOL = re.compile(r"whystall run (\w+)")
_NO_ALERTS = ("Error", "Exception", "Killed")  # classes of exceptions, and OOMKilled
_NAMES = 2
_NAME = 120
_HOSTS = 3
_DESCRIBED = 300
_SHOWN = 5
_CARDS = 3


@dataclass(frozen=True)
class Found:
    """An answer by retrieval. `listed`: the ticket of each line of its lists, empty for a line without just one."""

    message: Outgoing
    listed: list[str]


def look_up(
    known: Answers,
    text: str,
    lang: Lang,
    now: datetime,
    *,
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    asked: bool = False,
) -> Found | None:
    """Return what is stored about the words of `text`, between the lines `first` and `last`; None if nothing is.

    `last` is for a name that was searched for on this machine; where alerts of another host have it, the answer states
    what to run there instead. `asked`: the message asks about a fault or a term: explanations come first, and the
    nearest incidents need less confidence. Incidents that are not likely to fit are shown only as the nearest ones, and
    only if nothing else was found.
    """
    text = corrected(text)
    named = named_alerts(firing(known.kb), text)
    alerts, tickets = named or _alike_alerts(known, text), _tickets(known, text)
    explained = topic_lines(text, lang)
    lines = xid_lines(text, lang)
    if asked:
        lines += [*_name_lines(known, text, lang, now), *explained]
    if alerts:
        lines += [say(lang, "look_up.alerts"), *alert_lines(alerts, lang, now)]
        lines += _runbook_lines(alerts, lang) if asked else []
    lines += [line for line in _advice(named, lang) if line not in lines]
    shown = tickets[:_SHOWN]
    folded = listed_tickets(alerts)
    left = [ticket for ticket in shown if ticket.id not in folded]
    if left:
        lines += [say(lang, "look_up.tickets"), *(f"- {ticket_line(ticket, lang)}" for ticket in left)]
    run = run_lines(known, text, named, lang)
    there = Safe("\n".join(run)) if run else _there(named, lang)
    stored = len(lines) > (len(explained) if asked else 0)
    nearest = 1.0 if stored else NEAREST if explained else NEAREST_ASKED if asked else NEAREST
    cards, notes = _cards(known, text, lang, nearest)
    if not asked:
        lines += topic_lines(text, lang, means=False) if stored else explained
    if cards:
        lines += [say(lang, "look_up.incidents"), similar_message(cards, lang, notes).text]
    if not lines:
        return None
    listed = [*folded, *(ticket.id for ticket in left)]
    return Found(outgoing(lang, [*first, *lines, *([there] if there else []), *([] if named else last)]), listed)


def look_up_named(known: Answers, text: str, lang: Lang, now: datetime) -> Found | None:
    """Return the firing alerts that `text` names, and the open tickets of a place in it; None if there is nothing."""
    alerts = named_alerts(firing(known.kb), text)
    folded = listed_tickets(alerts)
    terms = terms_of(text)
    open_ones = known.kb.tickets.list(Wanted(states=LIVE), _COMPARED)
    tickets = [one for one in open_ones if one.id not in folded and not terms.isdisjoint(_places(one))][:_SHOWN]
    lines = [say(lang, "look_up.alerts"), *alert_lines(alerts, lang, now)] if alerts else []
    if tickets:
        lines += [say(lang, "look_up.tickets"), *(f"- {ticket_line(one, lang)}" for one in tickets)]
    return Found(outgoing(lang, lines), [*folded, *(one.id for one in tickets)]) if lines else None


def _places(ticket: Ticket) -> set[str]:
    """Return the names of the host, pod and job that `ticket` concerns."""
    return terms_of(" ".join(thing.partition(":")[2] for thing in things_of(ticket.labels)))


def topic_lines(text: str, lang: Lang, most: int = 2, *, means: bool = True) -> list[str]:
    """Return what the faults and terms in `text` mean, what is usual, and what to examine first.

    The definition of a term is left out unless `text` asks for one. `means`: False: also what a fault means.
    """
    usual, define = (asks.search(text) is not None for asks in (intent_rules().normal, intent_rules().define))
    lines: list[str] = []
    for topic in topics_of(corrected(text), most):
        first, normal = topic.first.get(lang), topic.normal.get(lang)
        if define or (means and not topic.term):
            lines.append(normal if usual and normal else topic.means[lang])
        if first:
            lines.append(say(lang, "look_up.first", first))
    return lines


def run_lines(known: Answers, text: str, alerts: Sequence[Firing], lang: Lang) -> list[str]:
    """Return what to run for the fault in `text`, and where: on the hosts of `alerts`, else those that it names; with a
    fleet, also from here. Empty if nothing is to be run for it.
    """
    commands = next((topic.run for topic in topics_of(corrected(text)) if topic.run), ())
    if not commands:
        return []
    hosts = other_hosts(thing for one in alerts for thing in things_of(one.alert.labels))
    hosts = (list(hosts) or list(dict.fromkeys(intent_rules().host.findall(text))))[:_HOSTS]
    comma: str = words(lang)["marks"]["comma"]
    where = Safe(comma.join(name(short(host, _NAME)) for host in hosts)) if hosts else say(lang, "look_up.that_host")
    lines: list[str] = [say(lang, "look_up.run", where, Safe(comma.join(name(command) for command in commands)))]
    if hosts and known.settings is not None and known.settings.fleet.configured:
        tools = [found[1] for command in commands if (found := _TOOL.fullmatch(command)) is not None]
        asked = f"whystall fleet run {tools[0] if tools else 'host_snapshot'} --hosts {quote(','.join(hosts))}"
        lines.append(say(lang, "look_up.fleet", name(short(asked, 2 * _DESCRIBED))))
    return lines


def _there(alerts: Sequence[Firing], lang: Lang) -> Safe | None:
    """Return what to run on the other hosts that `alerts` concern; None if they concern no other host."""
    other = other_hosts(thing for one in alerts for thing in things_of(one.alert.labels))
    if not other:
        return None
    comma: str = words(lang)["marks"]["comma"]
    return say(lang, "look_up.there", Safe(comma.join(name(short(host, _NAME)) for host in other[:_HOSTS])))


def host_lines(text: str, lang: Lang) -> list[str]:
    """Return what to run on the hosts that `text` names, of which nothing is stored; empty if it names none."""
    hosts = list(dict.fromkeys(intent_rules().host.findall(text)))[:_HOSTS]
    comma: str = words(lang)["marks"]["comma"]
    return [say(lang, "look_up.there", Safe(comma.join(name(short(host, _NAME)) for host in hosts)))] if hosts else []


def _advice(alerts: Sequence[Firing], lang: Lang) -> list[str]:
    """Return what the catalogue asks for, for the Xid codes in the descriptions of `alerts`."""
    return xid_lines(" ".join(one.description for one in alerts[:_COMPARED]), lang)


def _name_lines(known: Answers, text: str, lang: Lang, now: datetime) -> list[str]:
    """Return when the alerts named in `text` that do not fire were last received, and what their sender wrote."""
    firing_now = {one.alert.name for one in firing(known.kb)}
    lines: list[str] = []
    for word in list(dict.fromkeys(_ALERT_NAME.findall(text)))[:_NAMES]:
        if word in firing_now:
            continue
        latest = next(iter(known.kb.alerts.find(name=word, limit=1)), None)
        if latest is None and word.endswith(_NO_ALERTS):
            continue
        if latest is None:
            lines.append(say(lang, "look_up.no_alert", name(word)))
            continue
        one = Firing(latest.alert, "")
        what = one.description or "-"
        at = at_time(latest.alert.starts, now)
        lines.append(say(lang, "look_up.earlier_alert", alert=name(word), at=at, what=short(what, _DESCRIBED)))
    return lines


def _runbook_lines(alerts: Sequence[Firing], lang: Lang) -> list[str]:
    """Return the runbook that the sender names for the first of `alerts` that has one."""
    runbook = next((url for one in alerts if (url := one.alert.annotations.get("runbook_url"))), None)
    return [say(lang, "look_up.runbook", name(short(runbook, _DESCRIBED)))] if runbook else []


def is_named(known: Answers, text: str) -> bool:
    """Return whether a firing alert or an open ticket has a name in `text`."""
    return bool(named_alerts(firing(known.kb), text)) or any(shared for shared, _ in _ticket_names(known, text))


def _alike_alerts(known: Answers, text: str) -> list[Firing]:
    """Return the firing alerts in words similar to `text`."""
    asked = _ideas(text)
    return [
        one
        for one in firing(known.kb)[:_COMPARED]
        if len(asked & _ideas(f"{divided(one.alert.name)} {one.description}")) >= _SHARED
    ]


def past_tickets(known: Answers, text: str) -> list[Ticket]:
    """Return the ended tickets that have a name of `text`, else those in similar words; at most `_SHOWN`."""
    return _tickets(known, text, ENDED)[:_SHOWN]


def similar_or_past(known: Answers, text: str, lang: Lang) -> Outgoing:
    """Return ended tickets and past incidents about the words of `text`, and open tickets that have a name in it."""
    past = past_tickets(known, text)
    live = [one for shared, one in _ticket_names(known, text) if shared][:_SHOWN]
    found = known.incidents(text, _CARDS, lang)
    cards = [match for match in found.matches if not match.weak or match.judged] if past else found.matches
    lines: list[str] = []
    if past:
        lines += [say(lang, "look_up.past"), *(f"- {past_line(one, lang)}" for one in past)]
    if live:
        lines += [say(lang, "look_up.tickets"), *(f"- {ticket_line(one, lang)}" for one in live)]
    if cards or not lines:
        lines += [similar_message(cards, lang, found.notes).text]
    return outgoing(lang, lines, say(lang, "title.similar"))


def _tickets(known: Answers, text: str, states: Sequence[State] = LIVE) -> list[Ticket]:
    """Return the tickets of `states` that have a name of `text`, else those in similar words; those that share most
    first. Those of other hosts than the ones that `text` names are left out.
    """
    hosts = {host.casefold() for host in intent_rules().host.findall(text)}
    found = [
        (shared, one)
        for shared, one in _ticket_names(known, text, states)
        if not hosts or not hosts_of(things_of(one.labels)) or hosts & _places(one)
    ]
    if not any(shared for shared, _ in found):
        asked = _ideas(text)
        alike = ((len(asked & _ideas(f"{one.human.title} {one.human.description}")), one) for _, one in found)
        found = [(shared, one) for shared, one in alike if shared >= _SHARED]
    return [ticket for shared, ticket in sorted(found, key=lambda one: -one[0]) if shared]


def _ticket_names(known: Answers, text: str, states: Sequence[State] = LIVE) -> list[tuple[int, Ticket]]:
    """Return the latest tickets of `states`, with how many names of `text` each has in a label or in its text."""
    names = {term for term in terms_of(text) if any(map(str.isdigit, term)) or informativeness(term) >= _TELLING}
    found: list[tuple[int, Ticket]] = []
    for ticket in known.kb.tickets.list(Wanted(states=states), _COMPARED):
        places = " ".join(value.partition(":")[0] for value in ticket.labels.values())
        held = terms_of(f"{ticket.human.title} {ticket.human.description} {places}")
        found.append((len(names & held), ticket))
    return found


def _ideas(text: str) -> set[str]:
    """Return the concepts and stems of `text`, each thing once: a word of a concept is not counted beside it."""
    query = query_of(text)
    concepts = {word for word in query.words if word.startswith(CONCEPT)}
    own = {word for word in query.words if f"{CONCEPT}{word}" not in concepts and len(word) > _PART}
    own = {word for word in own if not word.startswith(CONCEPT) and informativeness(word) >= _PLAIN}
    return (concepts | own) - _USUAL


def _cards(known: Answers, text: str, lang: Lang, nearest: float) -> tuple[list[Match], list[SearchNote]]:
    """Return the incidents that fit `text`, else those with the confidence `nearest`, and notes on the search."""
    found = known.incidents(text, _CARDS, lang)
    fitting = [match for match in found.matches if not match.weak or match.judged]
    return fitting or [match for match in found.matches if (match.confidence or 0.0) >= nearest], found.notes
