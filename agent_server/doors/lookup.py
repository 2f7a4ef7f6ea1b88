"""Past incidents as both doors give them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from whystall.agent_server.app import App
from whystall.knowledge_base.models import Incident, Match


class Hit(BaseModel):
    """A past incident, and why it was found."""

    model_config = ConfigDict(extra="forbid")

    match: Match
    incident: Incident


class Hits(BaseModel):
    """Past incidents, best first; empty when none is known that resembles the query."""

    model_config = ConfigDict(extra="forbid")

    hits: list[Hit]


def search(app: App, query: str, limit: int) -> Hits:
    """At most `limit` past incidents for `query`."""
    base = app.kb()
    return Hits(hits=[Hit(match=m, incident=base.get_incident(m.incident)) for m in base.search(query, limit=limit)])
