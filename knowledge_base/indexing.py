"""The search index of cards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from whystall.knowledge_base import features
from whystall.knowledge_base.data import catalog
from whystall.knowledge_base.models import Incident, Words
from whystall.knowledge_base.references import references
from whystall.knowledge_base.tokens import is_group, pieces, stem, terms

if TYPE_CHECKING:
    from sqlite3 import Connection

    from whystall.knowledge_base.database import Database

# Increment when the terms or features of stored cards change.
_INDEX_VERSION = 4
SIGNATURE = "sig:"
REFERENCE = "ref:"
PHRASED = "|"  # before the terms that only the phrasings of a card have
_AT_ONCE = 500  # cards held in memory
_COMPACTED = 10  # the index is merged when it has grown by one part of so many


class Indexed(NamedTuple):
    """Index terms of a card. `symptom`: stems of title and initial symptom; `later`: of the rest, written with the
    cause known, and after `PHRASED` all terms that only the phrasings have; `concepts` and `grams` (see `tokens`): of
    all but the phrasings; `pieces`: character n-grams of all words.
    `features`: typed features, and with a prefix exact signatures (`SIGNATURE`) and references (`REFERENCE`).
    """

    symptom: list[str]
    concepts: list[str]
    later: list[str]
    grams: list[str]
    pieces: list[str]
    features: list[str]


def put_incident(db: Connection, incident: Incident) -> None:
    """Store and index the card `incident`, replacing one with its id, within the open transaction.

    A retired card is stored without index terms.
    """
    found = Indexed([], [], [], [], [], []) if incident.state == "retired" else indexed(incident)
    left_out = (
        None if incident.phrasings.en or incident.phrasings.zh else {"phrasings"}
    )  # most cards of a site have none
    body = incident.model_dump_json(exclude=left_out)
    values = [incident.origin, incident.state, incident.cause, incident.updated, body]
    values += [" ".join(column) for column in found[:5]]
    row = db.execute("SELECT n FROM incidents WHERE id = ?", [incident.id]).fetchone()
    if row is None:
        n = db.execute(
            "INSERT INTO incidents (origin, state, cause, updated, body, symptom, concepts, later, grams, pieces, id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [*values, incident.id],
        ).lastrowid
    else:
        n = row[0]
        db.execute(
            "UPDATE incidents SET origin = ?, state = ?, cause = ?, updated = ?, body = ?, symptom = ?, concepts = ?,"
            " later = ?, grams = ?, pieces = ? WHERE n = ?",
            [*values, n],
        )
        db.execute("DELETE FROM features WHERE n = ?", [n])
    db.executemany("INSERT INTO features (feature, n) VALUES (?, ?)", [(f, n) for f in found.features])


def indexed(incident: Incident) -> Indexed:
    reported = _texts(incident.title, incident.symptom)
    explained = _texts(incident.root_cause, incident.fix)
    names = [
        incident.id,
        incident.cause or "",
        *incident.components,
        *incident.kinds,
        *incident.features,
        incident.source,
    ]
    first = terms(reported, everyday=True)
    rest = terms("\n".join([explained, incident.environment, *names]), everyday=True)
    other = terms("\n".join([*incident.phrasings.en, *incident.phrasings.zh]), everyday=True)
    symptom, later, phrased = (
        dict.fromkeys(stem(word) for word in found.words if not is_group(word)) for found in (first, rest, other)
    )
    own = {*symptom, *later, *first.words, *rest.words, *first.grams, *rest.grams}
    groups = [word for word in other.words if is_group(word)]
    phrasings = [term for term in (*phrased, *groups, *other.grams) if term not in own]
    keys = "\n".join([reported, explained, incident.environment, *incident.signatures, *incident.features])
    return Indexed(
        symptom=list(symptom),
        concepts=[word for word in dict.fromkeys([*first.words, *rest.words]) if is_group(word)],
        later=[*later, *([PHRASED, *phrasings] if phrasings else [])],
        grams=list(dict.fromkeys([*first.grams, *rest.grams])),
        pieces=pieces(word for found in (first, rest, other) for word in found.words if not is_group(word)),
        features=[
            *(f"{SIGNATURE}{s}" for s in dict.fromkeys(incident.signatures)),
            *(f"{REFERENCE}{r}" for r in references(keys)),
            *features.of_card(incident),
        ],
    )


def compact(db: Connection, added: int) -> None:
    """Merge the full-text index within the open transaction, if `added` cards are a tenth of it or more.

    Every transaction adds a segment to it, and a query looks up each of its terms in every segment. SQLite merges a few
    at a time; merging all takes time proportional to the index.
    """
    (total,) = db.execute("SELECT cards FROM feature_counts WHERE feature = ''").fetchone() or (0,)
    if added * _COMPACTED >= total:
        db.execute("INSERT INTO incidents_fts (incidents_fts) VALUES ('optimize')")


def _texts(*parts: Words) -> str:
    return "\n".join([*(part.en for part in parts), *(part.zh for part in parts)])


def index_hash() -> str:
    """Return a hash that changes when stored cards have to be indexed again: other code, or another glossary."""
    tables = b"".join(catalog(name).read_bytes() for name in ("glossary.yaml", "everyday.yaml", "traditional.txt"))
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


def reindex(file: Database, db: Connection) -> None:
    """Index every card again, within the open transaction; raise `ToolError` (database) for an unreadable one."""
    for card in stored_cards(file):
        put_incident(db, card)
