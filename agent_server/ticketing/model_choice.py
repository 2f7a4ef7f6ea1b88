"""Lets a model choose among the categories that rules, incidents and words left open."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from whystall.agent_server.llm.wire import Message
from whystall.knowledge_base.classify.rules import UNKNOWN
from whystall.knowledge_base.ticket_models import Decision

if TYPE_CHECKING:
    from whystall.agent_server.llm.wire import LanguageModel
    from whystall.knowledge_base.models import Lang
    from whystall.knowledge_base.ticket_models import Ticket

_TEXT = 3000  # characters of a ticket that the model reads
_NUMBER = re.compile(r"\s*(\d{1,2})\s*[.。]?\s*")
# A model's choice is only checked to be one of the candidates.
_CONFIDENCE = 0.5


def left_open(ticket: Ticket) -> list[str]:
    """Return the candidate categories of `ticket`; empty if one was decided."""
    classification = ticket.classification
    if classification is None or classification.category.value != UNKNOWN:
        return []
    return [name for name in dict.fromkeys(classification.category.rivals) if name != UNKNOWN]


async def choose(model: LanguageModel, ticket: Ticket, lang: Lang = "en") -> Decision | None:
    """Ask `model` to choose one of `left_open`; None if it answers anything but a number of the list.

    Raises `LlmError` if the model does not answer.
    """
    from whystall.prompts.fence import Fence
    from whystall.prompts.render import render

    candidates = left_open(ticket)
    if len(candidates) < 2:
        return None
    fence = Fence()
    question = {
        "title": ticket.human.title,
        "text": ticket.human.description[:_TEXT],
        "labels": ticket.labels,
        "categories": {str(number): name for number, name in enumerate(candidates, 1)},
    }
    system = render("model/choose.txt", lang, opening=fence.opening, closing=fence.closing)
    messages = [Message(role="system", content=system), Message(role="user", content=fence.put(question))]
    reply = await model.complete(messages, [])
    number = _NUMBER.fullmatch(reply.content)
    if number is None or not 1 <= int(number[1]) <= len(candidates):
        return None
    value = candidates[int(number[1]) - 1]
    return Decision(
        value=value,
        by="model",
        confidence=_CONFIDENCE,
        because=[f"model:{model.name[:100]}"],
        rivals=[name for name in candidates if name != value],
    )
