"""What became of a ticket as texts; the words are imported only when a text is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.presentation.cards import resolved_text
from whystall.agent_server.presentation.ticket_texts import history_text as text
from whystall.knowledge_base.tickets.life import original_of
from whystall.prompts.escape import plain, plain_code
from whystall.prompts.render import fill, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Lang
    from whystall.knowledge_base.tickets.models import Event, Ticket


def done_text(kb: Stores, ticket: Ticket, what: str, other: str, lang: Lang) -> str:
    """That a step was done (`what`: a code of the words), with `other` where it names one; of a lesson that was learnt,
    the card that remembers it.
    """
    if what == "resolved" and ticket.card is not None:
        return resolved_text(ticket, kb.cards.get(ticket.card), lang)
    values: list[object] = [ticket.id, plain_code(other)]
    if what == "duplicate":
        original = kb.tickets.get(original_of(ticket) or other)
        values = [ticket.id, original.id, original.occurrences]
    elif what == "merged":
        values = [other, ticket.id]
    return str(fill(plain, words(lang)["tickets"]["done"][what], *values))


def history_text(events: Sequence[Event], lang: Lang) -> str:
    """One line for each change of a ticket."""
    return text(events, lang)
