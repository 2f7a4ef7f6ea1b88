"""Answer a message by retrieval: what the knowledge base, open alerts and open tickets hold about its words.

Used for how-to questions, for a host or a job that is not on this machine, and for what no rule understands. It
diagnoses nothing and changes nothing. All functions block on the database; call them in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from whystall.agent_server.integrations.chat.alert_overview import (
    Firing,
    alert_lines,
    firing,
    named_alerts,
    terms_of,
)
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.intents import corrected
from whystall.agent_server.integrations.chat.message_texts import outgoing, similar_message, ticket_line
from whystall.agent_server.integrations.messages import Outgoing
from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.classify.severities import xid_action, xids
from whystall.knowledge_base.models import Lang, Match
from whystall.knowledge_base.retrieval import query_of
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.knowledge_base.tokens import CONCEPT
from whystall.prompts.chat import chat_words, say
from whystall.prompts.escape import Safe
from whystall.prompts.render import words

_TELLING = 0.8
"""Least informativeness (`knowledge_base.background`) of a plain word that a ticket is searched for; an estimate."""
NEAREST, NEAREST_ASKED = 0.3, 0.1
"""Least confidence of an incident that is shown as the nearest one, if none is likely enough to be an answer; the
second if the message asks what to do about a fault.
"""
_PLAIN = 0.3
"""Least informativeness of a word that counts as shared; below are words such as "all" and "from"."""
_SHARED = 2  # words or concepts that make a text similar
_PART = 2  # letters
_COMPARED = 200  # worst alerts, latest open tickets
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHOWN = 5
_CARDS = 3
_XIDS = 3


def look_up(
    known: Answers,
    text: str,
    lang: Lang,
    now: datetime,
    *,
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    nearest: float = NEAREST,
) -> Outgoing | None:
    """Return what is stored about the words of `text`, between the lines `first` and `last`; None if nothing is.

    Incidents that are not likely to fit are shown only as the nearest ones, with at least the confidence `nearest`, and
    only if nothing else was found.
    """
    text = corrected(text)
    alerts, tickets = _alerts(known, text), _tickets(known, text)
    lines = _xid_lines(text, lang)
    if alerts:
        lines += [say(lang, "look_up.alerts"), *alert_lines(alerts, lang, now)]
    if tickets:
        lines += [say(lang, "look_up.tickets"), *(f"- {ticket_line(ticket, lang)}" for ticket in tickets[:_SHOWN])]
    cards = _cards(known, text, 1.0 if lines else nearest)
    if cards:
        lines += [say(lang, "look_up.incidents"), similar_message(cards, lang).text]
    return outgoing(lang, [*first, *lines, *last]) if lines else None


def is_named(known: Answers, text: str) -> bool:
    """Return whether a firing alert or an open ticket has a name in `text`."""
    return bool(named_alerts(firing(known.kb), text)) or any(shared for shared, _ in _ticket_names(known, text))


def _alerts(known: Answers, text: str) -> list[Firing]:
    """Return the alerts that `text` names, else those in similar words."""
    found = firing(known.kb)
    asked = _ideas(text)
    return named_alerts(found, text) or [
        one
        for one in found[:_COMPARED]
        if len(asked & _ideas(f"{_CAMEL.sub(' ', one.alert.name)} {one.description}")) >= _SHARED
    ]


def _tickets(known: Answers, text: str) -> list[Ticket]:
    """Return the open tickets that have a name of `text`, else those in similar words; those that share most first."""
    found = _ticket_names(known, text)
    if not any(shared for shared, _ in found):
        asked = _ideas(text)
        alike = ((len(asked & _ideas(f"{one.human.title} {one.human.description}")), one) for _, one in found)
        found = [(shared, one) for shared, one in alike if shared >= _SHARED]
    return [ticket for shared, ticket in sorted(found, key=lambda one: -one[0]) if shared]


def _ticket_names(known: Answers, text: str) -> list[tuple[int, Ticket]]:
    """Return the latest open tickets, with how many names of `text` each has in a label or in its text."""
    names = {term for term in terms_of(text) if any(map(str.isdigit, term)) or informativeness(term) >= _TELLING}
    found: list[tuple[int, Ticket]] = []
    for ticket in known.kb.tickets.list(Wanted(states=("open", "acknowledged")), _COMPARED):
        places = " ".join(value.partition(":")[0] for value in ticket.labels.values())
        held = terms_of(f"{ticket.human.title} {ticket.human.description} {places}")
        found.append((len(names & held), ticket))
    return found


def _ideas(text: str) -> set[str]:
    """Return the concepts and stems of `text`, each thing once: a word of a concept is not counted beside it."""
    query = query_of(text)
    concepts = {word for word in query.words if word.startswith(CONCEPT)}
    own = {word for word in query.words if f"{CONCEPT}{word}" not in concepts and len(word) > _PART}
    return concepts | {word for word in own if not word.startswith(CONCEPT) and informativeness(word) >= _PLAIN}


def _cards(known: Answers, text: str, nearest: float) -> list[Match]:
    found = known.matches(text, _CARDS)
    fitting = [match for match in found if not match.weak]
    return fitting or [match for match in found if (match.confidence or 0.0) >= nearest]


def _xid_lines(text: str, lang: Lang) -> list[str]:
    """Return what NVIDIA's catalogue asks for, for each Xid code in `text`."""
    actions = chat_words(lang)["xid_actions"]
    lines: list[str] = []
    for code in list(dict.fromkeys(xids(text.lower())))[:_XIDS]:
        if (found := xid_action(code)) is not None:
            action, severity = found
            shown = words(lang)["severities"][severity.value]
            lines.append(say(lang, "look_up.xid", n=code, severity=shown, action=Safe(actions[action])))
    return lines
