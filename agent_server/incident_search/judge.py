"""Asks a language model which of some cards describes the same mechanism as a text, or whether none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from whystall.agent_server.llm.wire import LlmError, Message
from whystall.prompts.fence import Fence
from whystall.prompts.render import render
from whystall.tools.contract.extras import extra
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.llm.wire import LanguageModel
    from whystall.agent_server.settings.sections.llm import LlmSettings
    from whystall.knowledge_base.models import Incident, Lang, Words

NONE = "none"
# Characters that the model reads: 40 cards are some 6,000 tokens.
_TEXT, _TITLE, _SYMPTOM, _CAUSE = 4000, 160, 300, 200
_QUOTES = "\"'`.。「」“” \t\r\n"
_RETRIES = 1


def ask_model(settings: LlmSettings, text: str, cards: Sequence[Incident], lang: Lang = "en") -> str | None:
    """Return the id that the configured model chooses of `cards`, None if it answers that none fits.

    Blocks for at most ``rerank_timeout`` seconds. Raises `LlmError` if there is no usable answer, `ToolError` if the
    key cannot be read or no HTTP client is installed.
    """
    with extra("llm"):
        from whystall.agent_server.llm.client import ChatClient

    timeout = min(settings.timeout, settings.rerank_timeout)
    bounded = settings.model_copy(update={"timeout": timeout, "retries": min(settings.retries, _RETRIES)})

    async def ask() -> str | None:
        async with ChatClient(bounded) as model:
            return await choose_card(model, text, cards, lang)

    return anyio.run(ask)


async def choose_card(model: LanguageModel, text: str, cards: Sequence[Incident], lang: Lang = "en") -> str | None:
    """Return the id of the card of `cards` that `model` chooses for `text`, None if it answers that none fits.

    Raises `LlmError`, with the code ``bad_answer`` for an answer that is neither one of the ids nor ``none``.
    """
    fence = Fence()
    question = {"report": text[:_TEXT], "cards": [_shown(card, lang) for card in cards]}
    system = render("model/same_mechanism.txt", lang, opening=fence.opening, closing=fence.closing)
    messages = [Message(role="system", content=system), Message(role="user", content=fence.put(question))]
    reply = await model.complete(messages, [])
    answer = reply.content.strip(_QUOTES)
    if answer.lower() == NONE:
        return None
    if answer not in {card.id for card in cards}:
        raise LlmError("bad_answer", f"the model named none of the cards: {clean(answer, 60)!r}")
    return answer


def _shown(card: Incident, lang: Lang) -> dict[str, str]:
    return {
        "id": card.id,
        "title": _either(card.title, lang)[:_TITLE],
        "symptom": _either(card.symptom, lang)[:_SYMPTOM],
        "cause": _either(card.root_cause, lang)[:_CAUSE],
    }


def _either(words: Words, lang: Lang) -> str:
    """Return the text in `lang`, or in the other language where that is missing."""
    return words.get(lang) or words.en or words.zh
