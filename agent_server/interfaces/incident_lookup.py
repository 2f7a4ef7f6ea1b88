"""Lookup of past incidents for command line and MCP."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.incident_search.search import SearchNote, search_incidents
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.card_store import CardStore
from whystall.knowledge_base.evidence import evidence_from, evidence_of
from whystall.knowledge_base.features import TYPES, unknown
from whystall.knowledge_base.models import Incident, Lang, Match
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.params import Params

_MOST = 64  # entries of a list among the arguments


class SimilarParams(Params):
    """The case to find similar incidents for: a diagnosis, or its evidence."""

    diagnosis: Annotated[str | None, Field(min_length=1, max_length=200, description="id of a diagnosis, or else:")] = (
        None
    )
    kinds: Annotated[
        str | None,
        Field(min_length=1, max_length=4000, description="kinds of findings, by comma: file.slow_sync"),
    ] = None
    features: Annotated[
        str | None, Field(min_length=1, max_length=4000, description="typed facts, by comma: op:fsync, fs:nfs")
    ] = None
    symptom: Annotated[str | None, Field(min_length=1, max_length=2000, description="what was noticed at first")] = None
    ran: Annotated[
        str | None, Field(min_length=1, max_length=1000, description="tools that have run: offcputime,hang")
    ] = None
    limit: Annotated[int, Field(ge=1, le=20, description="incidents")] = 5


class Hit(BaseModel):
    """A past incident, and why it matches."""

    model_config = ConfigDict(extra="forbid")

    match: Match
    incident: Incident


class Hits(BaseModel):
    """Past incidents, best first. `notes`: how they were searched for, where models took part or should have."""

    model_config = ConfigDict(extra="forbid")

    hits: list[Hit]
    notes: list[SearchNote] = Field(default_factory=list)


def similar(base: Stores, params: SimilarParams) -> Hits:
    """Return past incidents with the same evidence as `params`, those known to be the same problem first.

    Raises `ToolError`: bad_argument if nothing or something unknown is given; not_found: the diagnosis.
    """
    given = [name for name in ("kinds", "features", "symptom", "ran") if getattr(params, name) is not None]
    if params.diagnosis is not None:
        if given:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"a diagnosis has its own {given[0]}", "leave one of them out")
        evidence = evidence_of(base.get_diagnosis(params.diagnosis))
    elif given in ([], ["ran"]):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "nothing to compare with", "give diagnosis, kinds, features or symptom")
    else:
        features = [*(f"kind:{kind}" for kind in _kinds(params.kinds)), *_features(params.features)]
        evidence = evidence_from(features=features, symptom=params.symptom or "", ran=_listed("ran", params.ran))
    return _hits(base.cards, base.similar(evidence, params.limit))


def _kinds(text: str | None) -> list[str]:
    found = _listed("kinds", text)
    for kind in found:
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, 3) or ["the kinds of a result's findings"]
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"kinds: unknown {kind!r}", f"perhaps: {', '.join(near)}")
    return found


def _features(text: str | None) -> list[str]:
    found = _listed("features", text)
    if odd := unknown(found):
        remedy = f"type:value, with a type of: {', '.join(TYPES)}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"features: unknown {odd[0]!r}", remedy)
    return found


def _listed(name: str, text: str | None) -> list[str]:
    found = [word for part in (text or "").split(",") if (word := part.strip())]
    if len(found) > _MOST:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {len(found)} entries", f"give at most {_MOST}")
    return list(dict.fromkeys(found))


def search(base: Stores, query: str, limit: int, lang: Lang = "en") -> Hits:
    """Return at most `limit` past incidents for `query`; see `search_incidents`. Blocks: call it in a thread."""
    found = search_incidents(base, query, limit, lang)
    return _hits(base.cards, found.matches).model_copy(update={"notes": found.notes})


def _hits(cards: CardStore, matches: Sequence[Match]) -> Hits:
    return Hits(hits=[Hit(match=match, incident=cards.get(match.incident)) for match in matches])
