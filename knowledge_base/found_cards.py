"""Cards found by a search or a case, and the matches made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.feedback import records
from whystall.knowledge_base.models import Incident, Match, Record
from whystall.knowledge_base.occurrences import recurrences

if TYPE_CHECKING:
    from sqlite3 import Connection

How = Literal["signature", "evidence", "text"]


@dataclass
class Card:
    """A candidate: its row, and what it shares with the case."""

    n: int
    id: str
    state: str
    cause: str | None
    origin: str
    features: frozenset[str] = frozenset()
    exact: list[str] = field(default_factory=list)
    distinctive: list[str] = field(default_factory=list)
    supporting: list[str] = field(default_factory=list)
    alike: bool = False
    score: float = 0.0
    occurrences: int = 1
    last_seen: str | None = None
    record: Record = field(default_factory=Record)


def cards_of(db: Connection, rows: Iterable[int]) -> dict[int, Card]:
    """Return the cards in `rows`, in that order."""
    wanted = list(rows)
    asked = "SELECT n, id, state, cause, origin FROM incidents WHERE n IN (SELECT value FROM json_each(?))"
    found = {row[0]: Card(*row) for row in db.execute(asked, [json.dumps(wanted)]).fetchall()}
    return {n: found[n] for n in wanted if n in found}  # the index of a damaged file may name others


def add_records(db: Connection, cards: Iterable[Card]) -> None:
    """Set how often and when the incidents of `cards` recurred, and how well they matched."""
    by_id = {card.id: card for card in cards}
    often, well = recurrences(db, by_id), records(db, by_id)
    for id, card in by_id.items():
        card.occurrences, card.last_seen, card.record = often[id].count, often[id].last, well[id]


def bodies_of(file: Database, db: Connection, cards: Iterable[Card]) -> dict[int, Incident]:
    """Return the incidents of `cards`, by row."""
    found = {}
    for card in cards:
        (body,) = db.execute("SELECT body FROM incidents WHERE n = ?", [card.n]).fetchone()
        found[card.n] = file.record(Incident, body)
    return found


def as_match(card: Card, incident: Incident, how: How, shared: list[str], ran: frozenset[str]) -> Match:
    return Match(
        incident=incident.id,
        title=incident.title,
        how=how,
        shared=shared,
        rank=1,
        state=incident.state,
        unchecked=[name for name in incident.checks if name not in ran],
        occurrences=card.occurrences,
        last_seen=card.last_seen,
        record=card.record,
    )


def numbered(matches: Iterable[Match]) -> list[Match]:
    """Return `matches` with their ranks."""
    return [match.model_copy(update={"rank": rank}) for rank, match in enumerate(matches, 1)]
