"""Puts a card into the tables it is found by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.tokens import terms

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase


def put_incident(db: SqliteDatabase, incident: Incident) -> None:
    """Store the new card `incident`, within the transaction that is open."""
    found = terms(text_of(incident))
    db.execute(
        "INSERT INTO incidents (id, origin, body, words, grams) VALUES (?, ?, ?, ?, ?)",
        [incident.id, incident.origin, incident.model_dump_json(), " ".join(found.words), " ".join(found.grams)],
    )
    own = [*incident.signatures, *([f"cause:{incident.cause}"] if incident.cause else [])]
    for value in dict.fromkeys(own):
        db.execute("INSERT INTO signatures (value, incident) VALUES (?, ?)", [value, incident.id])


def text_of(incident: Incident) -> str:
    """What an incident is found by."""
    words = (incident.title, incident.symptom, incident.root_cause, incident.fix)
    names = [incident.id, incident.cause or "", *incident.components, *incident.kinds, incident.source]
    return "\n".join([*(w.en for w in words), *(w.zh for w in words), *names])
