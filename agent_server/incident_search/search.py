"""Search past incidents by words; with an embedding model also by meaning; and let a language model choose one.

Both models are optional. What they fail at is noted, and the search goes on without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from whystall.agent_server.incident_search.judge import ask_model
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.settings.load import load_embeddings, load_llm
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.agent_server.settings.sources import read_section
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.embeddings import EmbeddingError
from whystall.knowledge_base.models import Lang, Match
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.text import clean

_DETAIL = 300

Code = Literal["no_embeddings", "not_embedded", "not_judged", "judged", "judged_none"]


class SearchNote(BaseModel):
    """How a search was made. The codes, with what `detail` holds:

    * ``no_embeddings``: searched by words only; the reason
    * ``not_embedded``: some cards have no vector yet; their number
    * ``not_judged``: no model chose a card; the reason
    * ``judged``: a model chose the first card (unverified); the model
    * ``judged_none``: a model found that none of the compared cards fits (unverified); the model
    """

    model_config = ConfigDict(extra="forbid")

    code: Code
    detail: str = ""


@dataclass(frozen=True)
class FoundIncidents:
    """Incidents, best first, and how they were searched for."""

    matches: list[Match]
    notes: list[SearchNote] = field(default_factory=list)


def search_incidents(kb: Stores, text: str, limit: int = 5, lang: Lang = "en", *, judge: bool = True) -> FoundIncidents:
    """Return at most `limit` past incidents for `text`; see `text_search.search`.

    With ``[embeddings]`` the cards near in meaning are fused with those found by words. With ``[llm]``, unless its
    `rerank` is off or `judge` is false, the model is asked which of the first `rerank_cards` cards describes the same
    mechanism; that one becomes the first, `judged`, and keeps its confidence. Blocks for up to the timeouts of both:
    call it in a thread.
    """
    notes: list[SearchNote] = []
    model = _judging(notes) if judge else None
    found = _candidates(kb, text, limit if model is None else max(limit, model.rerank_cards), notes)
    if model is not None and found:
        found = _judged(kb, model, text, found, lang, notes)
    shown = [match.model_copy(update={"rank": rank}) for rank, match in enumerate(found[:limit], 1)]
    return FoundIncidents(shown, notes)


def embed_all(kb: Stores) -> int:
    """Embed all cards without a current vector; return how many. Raises `ToolError` (no_model)."""
    settings = load_embeddings()
    if settings is None:
        message = "no embedding model is set up"
        raise ToolError(ErrorCode.NO_MODEL, message, "write base_url and model into [embeddings] of the settings")
    with extra("llm"):
        from whystall.agent_server.llm.embeddings import EmbeddingClient
    try:
        return kb.embed_cards(EmbeddingClient(settings, seconds=None))
    except EmbeddingError as error:
        message = f"cards were not embedded: {error}"
        raise ToolError(ErrorCode.NO_MODEL, message, "correct [embeddings], and call again; it goes on there") from None


def _judging(notes: list[SearchNote]) -> LlmSettings | None:
    try:
        if not read_section("llm").values["llm"]:
            return None
        settings = load_llm()
    except ToolError as error:
        notes.append(_note("not_judged", error.message))
        return None
    return settings if settings.rerank else None


def _candidates(kb: Stores, text: str, limit: int, notes: list[SearchNote]) -> list[Match]:
    try:
        settings = load_embeddings()
        if settings is None:
            return kb.search(text, limit)
        with extra("llm"):
            from whystall.agent_server.llm.embeddings import EmbeddingClient
        embedder = EmbeddingClient(settings, seconds=settings.search_timeout)
    except ToolError as error:
        notes.append(_note("no_embeddings", error.message))
        return kb.search(text, limit)
    try:
        found, missing = kb.search_with(embedder, text, limit)
    except EmbeddingError as error:
        notes.append(_note("no_embeddings", str(error)))
        return kb.search(text, limit)
    if missing:
        notes.append(_note("not_embedded", str(missing)))
    return found


def _judged(
    kb: Stores, model: LlmSettings, text: str, found: list[Match], lang: Lang, notes: list[SearchNote]
) -> list[Match]:
    """Return `found` with the card that the model chooses first."""
    cards = [kb.cards.get(match.incident) for match in found[: model.rerank_cards]]
    try:
        chosen = ask_model(model, text, cards, lang)
    except ToolError as error:
        notes.append(_note("not_judged", error.message))
        return found
    except LlmError as error:
        notes.append(_note("not_judged", str(error)))
        return found
    name = clean(model.model, 100)
    if chosen is None:
        notes.append(_note("judged_none", name))
        return found
    notes.append(_note("judged", name))
    first = next(match for match in found if match.incident == chosen)
    others = [match for match in found if match.incident != chosen]
    return [first.model_copy(update={"judged": True}), *others]


def _note(code: Code, detail: str) -> SearchNote:
    return SearchNote(code=code, detail=clean(detail, _DETAIL))
