"""Find tickets by words in their title, labels and description, as people name them: "the NFS one", "checkpoint".

All functions block on the database; call them in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from whystall.agent_server.integrations.chat.alert_overview import WORD
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.ticket_models import LIVE, State, Ticket
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.knowledge_base.tokens import concepts
from whystall.prompts.intents import intent_rules
from whystall.prompts.topics import divided

ENDED: tuple[State, ...] = ("resolved", "closed")
_READ = 500  # latest tickets
_PREFIX = 3  # minimum letters of the beginning of a word that stands for it
_PLAIN = 0.3
"""Least informativeness (`knowledge_base.background`) of a word that a ticket is found by."""
_CJK = re.compile(r"[\u3400-\u9fff]+")


@dataclass(frozen=True)
class DescribingWords:
    """The words of a message that can describe a ticket. `words`: in lower case; `chinese`: runs of characters."""

    words: frozenset[str]
    chinese: tuple[str, ...]
    concepts: frozenset[str]


def describing_words(text: str) -> DescribingWords:
    """Return the words of `text` without those that describe nothing, such as "the" and "ticket"."""
    filler = intent_rules().filler
    words = {word.casefold() for word in WORD.findall(divided(text)) if not word.isdigit()}
    for word in sorted((one for one in filler if not one.isascii()), key=len, reverse=True):
        text = text.replace(word, " ")
    chinese = tuple(_CJK.findall(text))
    return DescribingWords(frozenset(words - filler), chinese, frozenset(concepts(" ".join(chinese))))


def fitting(kb: Stores, text: str, states: Sequence[State] = LIVE) -> list[Ticket]:
    """Return the tickets that have every word of `text` in title, labels or description."""
    asked = describing_words(text)
    if not asked.words and not asked.chinese:
        return []
    tickets = kb.tickets.list(Wanted(states=states), _READ)
    return [ticket for ticket in tickets if _has_all(asked, _text(ticket, described=True))]


def nearest(kb: Stores, text: str, states: Sequence[State] = LIVE) -> list[Ticket]:
    """Return the tickets with most informative words of a question in title or labels; none without any."""
    asked = describing_words(text)
    words = {word for word in asked.words if any(map(str.isdigit, word)) or informativeness(word) >= _PLAIN}
    scored = []
    for ticket in kb.tickets.list(Wanted(states=states), _READ):
        held = _text(ticket, described=False)
        own = _words(held)
        shared = sum(is_in(word, own) for word in words) + len(asked.concepts & concepts(held))
        scored.append((shared, ticket))
    most = max((shared for shared, _ in scored), default=0)
    return [ticket for shared, ticket in scored if most and shared == most]


def _has_all(asked: DescribingWords, held: str) -> bool:
    own = _words(held)
    if not all(is_in(word, own) for word in asked.words):
        return False
    found = concepts(held)
    return all(run in held or (concepts(run) and concepts(run) <= found) for run in asked.chinese)


def _text(ticket: Ticket, described: bool) -> str:
    values = " ".join(value.partition(":")[0] for value in ticket.labels.values())
    text = f"{ticket.human.title} {values}"
    return divided(f"{text} {ticket.human.description}" if described else text)


def _words(text: str) -> set[str]:
    return {word.casefold() for word in WORD.findall(text)}


def is_in(word: str, words: set[str]) -> bool:
    """Return whether `word` is one of `words`, or the beginning of one without digits: node1 is not node12."""
    exact = word in words or len(word) < _PREFIX or any(map(str.isdigit, word))
    return word in words if exact else any(one.startswith(word) for one in words)
