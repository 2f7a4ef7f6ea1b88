"""Cards, and results of commands on them, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.symptom_check import explanatory_phrases
from whystall.prompts.escape import Safe
from whystall.prompts.render import render, words

if TYPE_CHECKING:
    from whystall.knowledge_base.exchange import Imported
    from whystall.knowledge_base.models import Feedback, Incident, Lang, Record
    from whystall.knowledge_base.occurrences import Recurrence
    from whystall.knowledge_base.statistics import Stats
    from whystall.knowledge_base.ticket_models import Ticket


def card_text(card: Incident, seen: Recurrence, record: Record, feedback: Sequence[Feedback], lang: Lang) -> str:
    """Return a card with its recurrence, feedback and history; for a draft, with explanatory phrases in its symptom."""
    odd = explanatory_phrases(card, load_causes().get(card.cause or "")) if card.state == "draft" else []
    return render("card.txt", lang, i=card, seen=seen, record=record, feedback=feedback, odd=odd)


def backlog_text(cards: Sequence[Incident], records: Mapping[str, Record], lang: Lang) -> str:
    """Return the cards to review, one per line, and how to review one; or that there are none."""
    return render("backlog.txt", lang, cards=cards, records=records)


def stats_text(counts: Stats, lang: Lang) -> str:
    titles = {id: Safe(cause.title.get(lang)) for id, cause in load_causes().items()}
    return render("stats.txt", lang, s=counts, titles=titles)


def imported_text(done: Imported, lang: Lang) -> str:
    return render("imported.txt", lang, d=done)


def resolved_text(ticket: Ticket, card: Incident, lang: Lang) -> str:
    """Return that a ticket was resolved, its card, and whether that needs a review."""
    return render("resolved.txt", lang, k=ticket, i=card)


def review_words(lang: Lang) -> dict[str, Any]:
    """Return the texts for reviewing a card on a terminal, and the names of the states."""
    found: dict[str, Any] = words(lang)["cards"]
    return found
