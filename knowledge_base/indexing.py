"""The search index of cards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from whystall.knowledge_base import features
from whystall.knowledge_base.data import catalog
from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.tokens import known_concepts, terms

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

    from whystall.knowledge_base.database import Database

# Increment when the terms or features of stored cards change.
_INDEX_VERSION = 2
SIGNATURE = "sig:"
_AT_ONCE = 500  # cards held in memory


class Indexed(NamedTuple):
    """Index terms of a card. `symptom`: words of the initial symptom; `later`: words of the rest, written with the
    cause known; `concepts` and `grams` (see `tokens`): of both.
    """

    symptom: list[str]
    concepts: list[str]
    later: list[str]
    grams: list[str]
    features: list[str]


def put_incident(db: SqliteDatabase, incident: Incident) -> None:
    """Store and index the card `incident`, replacing one with its id, within the open transaction.

    A retired card is stored without index terms.
    """
    found = Indexed([], [], [], [], []) if incident.state == "retired" else indexed(incident)
    values = [incident.origin, incident.state, incident.cause, incident.updated, incident.model_dump_json()]
    values += [" ".join(column) for column in found[:4]]
    row = db.execute("SELECT n FROM incidents WHERE id = ?", [incident.id]).fetchone()
    if row is None:
        n = db.execute(
            "INSERT INTO incidents (origin, state, cause, updated, body, symptom, concepts, later, grams, id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [*values, incident.id],
        ).lastrowid
    else:
        n = row[0]
        db.execute(
            "UPDATE incidents SET origin = ?, state = ?, cause = ?, updated = ?, body = ?, symptom = ?, concepts = ?,"
            " later = ?, grams = ? WHERE n = ?",
            [*values, n],
        )
        db.execute("DELETE FROM features WHERE n = ?", [n])
    db.conn.executemany("INSERT INTO features (feature, n) VALUES (?, ?)", [(f, n) for f in found.features])


def indexed(incident: Incident) -> Indexed:
    first = terms(f"{incident.symptom.en}\n{incident.symptom.zh}")
    words = (incident.title, incident.root_cause, incident.fix)
    names = [incident.id, incident.cause or "", *incident.components, *incident.kinds, incident.source]
    rest = terms("\n".join([*(w.en for w in words), *(w.zh for w in words), incident.environment, *names]))
    concepts = {f"c_{name}" for name in known_concepts()}
    seen = set(first.words)
    return Indexed(
        symptom=[w for w in first.words if w not in concepts],
        concepts=[w for w in dict.fromkeys([*first.words, *rest.words]) if w in concepts],
        later=[w for w in rest.words if w not in concepts and w not in seen],
        grams=list(dict.fromkeys([*first.grams, *rest.grams])),
        features=[*(f"{SIGNATURE}{s}" for s in dict.fromkeys(incident.signatures)), *features.of_card(incident)],
    )


def index_hash() -> str:
    """Return a hash that changes when stored cards have to be indexed again: other code, or another glossary."""
    tables = b"".join(catalog(name).read_bytes() for name in ("glossary.yaml", "traditional.txt"))
    return hashlib.sha256(tables).hexdigest()[:32] + f".{_INDEX_VERSION}"


def stored_cards(file: Database) -> Iterator[Incident]:
    """Yield every card in order of creation, holding no lock between batches."""
    last = -1
    while True:
        with file.read() as db:
            asked = "SELECT n, body FROM incidents WHERE n > ? ORDER BY n LIMIT ?"
            rows = db.execute(asked, [last, _AT_ONCE]).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        yield from (file.record(Incident, body) for _, body in rows)


def reindex(file: Database, db: SqliteDatabase) -> None:
    """Index every card again, within the open transaction; raise `ToolError` (database) for an unreadable one."""
    for card in stored_cards(file):
        put_incident(db, card)
