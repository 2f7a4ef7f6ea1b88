"""Cards and what became of them as texts; the words are imported only when a text is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.hindsight import hindsight
from whystall.prompts.escape import Safe
from whystall.prompts.render import render, words

if TYPE_CHECKING:
    from whystall.knowledge_base.exchange import Imported
    from whystall.knowledge_base.models import Feedback, Incident, Lang, Record
    from whystall.knowledge_base.occurrences import Recurrence
    from whystall.knowledge_base.statistics import Stats
    from whystall.knowledge_base.tickets.models import Ticket


def card_text(card: Incident, seen: Recurrence, record: Record, said: Sequence[Feedback], lang: Lang) -> str:
    """A card whole: what it tells, how often it was seen, how its matches went, what was done to it; of a draft, what
    of its symptom looks like hindsight.
    """
    odd = hindsight(card, load_causes().get(card.cause or "")) if card.state == "draft" else []
    return render("card.txt", lang, i=card, seen=seen, record=record, said=said, odd=odd)


def backlog_text(cards: Sequence[Incident], records: Mapping[str, Record], lang: Lang) -> str:
    """What wants a review, one line for each card, and how to go on; or that nothing does."""
    return render("backlog.txt", lang, cards=cards, records=records)


def stats_text(counts: Stats, lang: Lang) -> str:
    """Counts over all cards."""
    titles = {id: Safe(cause.title.get(lang)) for id, cause in load_causes().items()}
    return render("stats.txt", lang, s=counts, titles=titles)


def imported_text(done: Imported, lang: Lang) -> str:
    """What became of an import."""
    return render("imported.txt", lang, d=done)


def resolved_text(ticket: Ticket, card: Incident, lang: Lang) -> str:
    """What became of a resolved ticket: the card that remembers it, and whether it wants a review."""
    return render("resolved.txt", lang, k=ticket, i=card)


def review_words(lang: Lang) -> dict[str, Any]:
    """What a person is asked on a terminal who reviews a card, and the names of the states."""
    found: dict[str, Any] = words(lang)["cards"]
    return found
