"""How often the incident of a card was seen.

A diagnosis shows the fault of a card again if it has the card's cause and shares a signature that names one fault at
one place (see `signatures.names_a_fault`); the cause alone, or its system call, is shared by many faults.

Occurrences count outages, not diagnoses: people look several times at a stall that lasts. A ticket is one outage from
its first diagnosis until it is resolved. Without a ticket, sightings that follow each other within `QUIET` are one. A
sighting is as old as its observation, so that a recording judged twice was seen once, and what was observed before the
end of an outage that is counted belongs to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.cards import signatures_of
from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.indexing import SIGNATURE
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.tickets.models import LESSON, LIVE
from whystall.knowledge_base.times import moment, rfc3339

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

# Long jobs stall through a night and are looked at in between; what was not seen for a quarter of a day and comes back
# is the next time.
QUIET = timedelta(hours=6)
_TICKET, _DIAGNOSIS = "ticket:", "diagnosis:"
_SURE = (Verdict.CONFIRMED, Verdict.LIKELY)


@dataclass(frozen=True)
class Recurrence:
    """How often an incident was seen, with the first time. `last`: RFC 3339, None for what only the literature saw."""

    count: int
    last: str | None


def recurrences(db: SqliteDatabase, ids: Iterable[str]) -> dict[str, Recurrence]:
    """For each card of `ids`. The outage that a ticket's card was made of has a row of its own; others began unseen."""
    wanted = list(ids)
    rows = db.execute(
        "SELECT incident, count(*), sum(key = ? || substr(incident, ?)), max(seen) FROM occurrences"
        " WHERE incident IN (SELECT value FROM json_each(?)) GROUP BY incident",
        [_TICKET, len(LESSON) + 1, json.dumps(wanted)],
    )
    found = {id: Recurrence(count + 1 - first, last) for id, count, first, last in rows}
    return {id: found.get(id, Recurrence(1, None)) for id in wanted}


def card_of(db: SqliteDatabase, diagnosis: Diagnosis) -> str | None:
    """The card whose fault `diagnosis` shows, None without one. A retired card is none; the key of the fault goes
    first, then the card that shares most of the evidence, a reviewed one before a draft.
    """
    named = [key for key in signatures_of(diagnosis) if keys.names_a_fault(key)]
    for weight in sorted({keys.weight(key) for key in named}, reverse=True):
        row = db.execute(
            "SELECT i.id FROM features f JOIN incidents i ON i.n = f.n"
            " WHERE f.feature IN (SELECT value FROM json_each(?)) AND i.state != 'retired' AND i.cause IS ?"
            " GROUP BY i.n ORDER BY count(*) DESC, i.state = 'reviewed' DESC, i.n LIMIT 1",
            [json.dumps([f"{SIGNATURE}{key}" for key in named if keys.weight(key) == weight]), diagnosis.cause],
        ).fetchone()
        if row is not None:
            return str(row[0])
    return None


def recur(db: SqliteDatabase, diagnosis: Diagnosis) -> str | None:
    """Count `diagnosis` as an occurrence of the card whose fault it shows, within the transaction that is open.

    Returns the card's id where an outage was counted that was not before, else None: another sighting of the same
    outage, no such card, or a verdict that is not sure enough (`LIKELY`).
    """
    card = card_of(db, diagnosis) if diagnosis.verdict in _SURE else None
    if card is None:
        return None
    return card if record_sighting(db, card, diagnosis, _ticket_of(db, diagnosis)) else None


def record_sighting(db: SqliteDatabase, card: str, diagnosis: Diagnosis, ticket: int | None) -> bool:
    """Store that `diagnosis`, of `ticket` where it has one, shows the fault of `card`; whether that is a new outage."""
    at = observed(diagnosis)
    mine = f"{_DIAGNOSIS}{diagnosis.id}" if ticket is None else f"{_TICKET}{ticket}"
    rows = {key: moment(when) or at for key, when in _rows(db, card)}
    same = mine if mine in rows else _same_outage(rows, f"{_DIAGNOSIS}{diagnosis.id}", at)
    if same is not None:
        # An outage that got its ticket later goes by that ticket from now on.
        key = mine if ticket is not None and same.startswith(_DIAGNOSIS) else same
        last = rfc3339(max(at, rows[same]))
        db.execute("DELETE FROM occurrences WHERE incident = ? AND key = ?", [card, same])
        db.execute("INSERT OR REPLACE INTO occurrences VALUES (?, ?, ?, ?)", [card, key, last, _host(diagnosis)])
        return False
    if any((end := _end(db, key, when)) is not None and at < end for key, when in rows.items()):
        return False
    db.execute("INSERT INTO occurrences VALUES (?, ?, ?, ?)", [card, mine, rfc3339(at), _host(diagnosis)])
    return True


def merged(db: SqliteDatabase, one: int, original: int) -> None:
    """Ticket `one` turned out to be a duplicate of `original`: both are one outage."""
    keys_of = f"{_TICKET}{original}", f"{_TICKET}{one}"
    db.execute("UPDATE OR IGNORE occurrences SET key = ? WHERE key = ?", keys_of)
    db.execute("DELETE FROM occurrences WHERE key = ?", keys_of[1:])


def observed(diagnosis: Diagnosis) -> datetime:
    """When what `diagnosis` tells was observed; never later than now, whatever the clock of a recording said."""
    now = datetime.now(timezone.utc)
    starts = [m for coverage in diagnosis.coverage if (m := moment(coverage.start)) is not None]
    at = max(starts, default=None) or moment(diagnosis.created) or now
    return min(at, now)


def _same_outage(rows: dict[str, datetime], own: str, at: datetime) -> str | None:
    if own in rows:
        return own
    near = [key for key, when in rows.items() if key.startswith(_DIAGNOSIS) and abs(at - when) < QUIET]
    return near[0] if near else None


def _end(db: SqliteDatabase, key: str, last: datetime) -> datetime | None:
    """When the outage of `key` was over; None for a ticket that is still live."""
    if key.startswith(_DIAGNOSIS):
        return last
    number = key.removeprefix(_TICKET)
    row = db.execute(
        "SELECT state, coalesce(json_extract(body, '$.ended'), updated) FROM tickets WHERE id = ?", [int(number)]
    ).fetchone()
    if row is None or row[0] in LIVE:
        return None if row else last
    return moment(row[1]) or last


def _ticket_of(db: SqliteDatabase, diagnosis: Diagnosis) -> int | None:
    """The ticket that `diagnosis` is counted in, else the live one of its fault."""
    row = db.execute("SELECT ticket FROM diagnoses WHERE id = ?", [diagnosis.id]).fetchone()
    if diagnosis.ticket:
        return int(diagnosis.ticket)
    if row is not None and row[0] is not None:
        return int(row[0])
    key = dedup_key(diagnosis)
    row = db.execute(
        "SELECT id FROM tickets WHERE state IN ('open', 'acknowledged') AND id IN (SELECT id FROM tickets"
        " WHERE fault = ? UNION SELECT id FROM tickets WHERE dedup_key = ?) ORDER BY id",
        [key, key],
    ).fetchone()
    return int(row[0]) if row else None


def _rows(db: SqliteDatabase, card: str) -> list[tuple[str, str]]:
    return list(db.execute("SELECT key, seen FROM occurrences WHERE incident = ? ORDER BY seen DESC", [card]))


def _host(diagnosis: Diagnosis) -> str:
    return diagnosis.coverage[0].host if diagnosis.coverage else ""
