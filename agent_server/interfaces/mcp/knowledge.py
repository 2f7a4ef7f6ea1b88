"""The MCP tools of the knowledge base."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.app import App
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.incident_lookup import Hits, SimilarParams, search, similar
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import TEXT_LIMITS, Answer, Entry
from whystall.agent_server.job_lookup.models import Resolution
from whystall.agent_server.presentation import results as words
from whystall.agent_server.presentation.cards import card_text
from whystall.knowledge_base.models import Incident, Lang, Record
from whystall.tools.contract.params import Params

_Id = Annotated[str, Field(min_length=1, max_length=200, description="id of a past incident")]
_BY = "assistant"


class KbSearchParams(Params):
    """Search past incidents."""

    query: Annotated[
        str, Field(min_length=1, max_length=1000, description="symptom, error text, names: slow fsync nfs")
    ]
    limit: Annotated[int, Field(ge=1, le=20, description="incidents")] = 5


class KbRecordParams(Params):
    """Draft a card; limits are those of the knowledge base."""

    title: Annotated[str, Field(min_length=1, max_length=300, description="what happened, in one line")]
    symptom: Annotated[str, Field(min_length=1, max_length=4000, description="as first observed")]
    fix: Annotated[str, Field(min_length=1, max_length=4000, description="what helped")]
    root_cause: Annotated[str, Field(max_length=4000, description="why it happened")] = ""
    cause: Annotated[str | None, Field(min_length=1, max_length=200, description="id of a cause: dns_timeout")] = None
    diagnosis: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="id of a diagnosis; its evidence is copied"),
    ] = None


class KbFeedbackParams(Params):
    """Rate a match."""

    incident: _Id
    diagnosis: Annotated[
        str, Field(min_length=1, max_length=200, description="id of a diagnosis that names the incident")
    ]
    verdict: Annotated[Literal["helped", "wrong"], Field(description="helped or wrong")]
    comment: Annotated[str, Field(max_length=1000, description="why")] = ""


class Rated(BaseModel):
    """A rated match, and the ratings of its card so far."""

    model_config = ConfigDict(extra="forbid")

    incident: str
    diagnosis: str
    verdict: Literal["helped", "wrong"]
    record: Record


RESULTS: dict[str, type[BaseModel]] = {
    "kb_search": Hits,
    "kb_similar": Hits,
    "kb_record": Incident,
    "kb_feedback": Rated,
    "find_job": Resolution,
}
"""Result models of these tools and of ``find_job``."""


def knowledge_entries(app: App, lang: Lang) -> list[Entry]:
    """Return the tools of the knowledge base."""
    return [_search(app, lang), _similar(app, lang), _record(app, lang), _feedback(app, lang)]


def _search(app: App, lang: Lang) -> Entry:
    async def call(given: dict[str, Any], _progress: Progress) -> Answer:
        hits = await in_thread(lambda: search(app.kb(), given["query"], given.get("limit", 5), lang))
        return hits, words.hits_text(hits, lang, TEXT_LIMITS[lang])

    text = "Finds past incidents by words, English or Chinese; reports when none is similar."
    return Entry("kb_search", "Search past incidents", text, KbSearchParams, call)


def _similar(app: App, lang: Lang) -> Entry:
    async def call(given: dict[str, Any], _progress: Progress) -> Answer:
        hits = similar(app.kb(), SimilarParams.model_validate(given))
        return hits, words.hits_text(hits, lang, TEXT_LIMITS[lang])

    text = "Finds past incidents with the same findings: which are known, why, and what to check next."
    return Entry("kb_similar", "Similar past incidents", text, SimilarParams, call)


def _record(app: App, lang: Lang) -> Entry:
    async def call(given: dict[str, Any], _progress: Progress) -> Answer:
        cards = app.kb().cards
        card = cards.record(**given, by=_BY)
        return card, card_text(card, *cards.track_record(card.id), lang)

    text = "Drafts a card of an incident. Nothing quotes it as known before a person has reviewed it."
    return Entry("kb_record", "Record an incident", text, KbRecordParams, call, False, True, scope="tickets")


def _feedback(app: App, lang: Lang) -> Entry:
    async def call(given: dict[str, Any], _progress: Progress) -> Answer:
        comment = given.get("comment", "")
        record = app.kb().cards.feedback(
            given["incident"], given["verdict"], diagnosis=given["diagnosis"], comment=comment
        )
        rated = Rated(**{name: given[name] for name in ("incident", "diagnosis", "verdict")}, record=record)
        return rated, words.rated_text(rated, lang)

    text = "Says whether a similar incident helped or was wrong, for a person or from what was verified."
    return Entry("kb_feedback", "Rate a match", text, KbFeedbackParams, call, False, True, scope="tickets")
