"""Recurrences of the incident of a card.

A diagnosis is of a card's fault if it has the card's cause and shares a signature that names one fault at one place
(see `signatures.names_a_fault`); a cause or its system call is shared by many faults.

Outages count, not diagnoses, since a lasting stall is diagnosed several times. A ticket is one outage from its first
diagnosis until it is resolved; without a ticket, sightings less than `QUIET` apart are one. A sighting has the time of
its observation, so that a recording judged twice counts once; an observation before the end of a counted outage belongs
to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.cards import card_signatures
from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.indexing import SIGNATURE
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.ticket_models import LESSON, LIVE
from whystall.knowledge_base.times import moment, rfc3339

if TYPE_CHECKING:
    from sqlite3 import Connection

# A stalled job may be diagnosed only now and then during a night; after a quarter of a day it is another outage.
QUIET = timedelta(hours=6)
_TICKET, _DIAGNOSIS = "ticket:", "diagnosis:"
_SURE = (Verdict.CONFIRMED, Verdict.LIKELY)


@dataclass(frozen=True)
class Recurrence:
    """How often an incident occurred, including the first time. `last`: RFC 3339, None if it never occurred here."""

    count: int
    last: str | None


def recurrences(db: Connection, ids: Iterable[str]) -> dict[str, Recurrence]:
    """Return the recurrence of each card of `ids`. The outage of a ticket's card has its own row; the first occurrence
    of other cards has none.
    """
    wanted = list(ids)
    rows = db.execute(
        "SELECT incident, count(*), sum(key = ? || substr(incident, ?)), max(seen) FROM occurrences"
        " WHERE incident IN (SELECT value FROM json_each(?)) GROUP BY incident",
        [_TICKET, len(LESSON) + 1, json.dumps(wanted)],
    )
    found = {id: Recurrence(count + 1 - first, last) for id, count, first, last in rows}
    return {id: found.get(id, Recurrence(1, None)) for id in wanted}


def card_of(db: Connection, diagnosis: Diagnosis) -> str | None:
    """Return the card of the fault of `diagnosis`, or None. Retired cards are excluded; the key of the fault decides
    first, then most shared evidence, then reviewed before draft.
    """
    named = [key for key in card_signatures(diagnosis) if keys.names_a_fault(key)]
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


def count_recurrence(db: Connection, diagnosis: Diagnosis) -> str | None:
    """Count `diagnosis` as a recurrence of its card, within the open transaction.

    Returns the card's id if a new outage was counted; None if it was counted already, no card fits, or the verdict is
    below `LIKELY`.
    """
    card = card_of(db, diagnosis) if diagnosis.verdict in _SURE else None
    if card is None:
        return None
    return card if record_sighting(db, card, diagnosis, _ticket_of(db, diagnosis)) else None


def record_sighting(db: Connection, card: str, diagnosis: Diagnosis, ticket: int | None) -> bool:
    """Store that `diagnosis`, with its `ticket` if any, is of the fault of `card`; return whether the outage is new."""
    at = observed(diagnosis)
    own_key = f"{_DIAGNOSIS}{diagnosis.id}" if ticket is None else f"{_TICKET}{ticket}"
    rows = {key: moment(when) or at for key, when in _rows(db, card)}
    same = own_key if own_key in rows else _same_outage(rows, f"{_DIAGNOSIS}{diagnosis.id}", at)
    if same is not None:
        # An outage that gets a ticket later takes the ticket's key.
        key = own_key if ticket is not None and same.startswith(_DIAGNOSIS) else same
        last = rfc3339(max(at, rows[same]))
        db.execute("DELETE FROM occurrences WHERE incident = ? AND key = ?", [card, same])
        db.execute("INSERT OR REPLACE INTO occurrences VALUES (?, ?, ?, ?)", [card, key, last, _host(diagnosis)])
        return False
    if any((end := _end(db, key, when)) is not None and at < end for key, when in rows.items()):
        return False
    db.execute("INSERT INTO occurrences VALUES (?, ?, ?, ?)", [card, own_key, rfc3339(at), _host(diagnosis)])
    return True


def merged(db: Connection, one: int, original: int) -> None:
    """Merge the outages of ticket `one` into those of `original`, its duplicate."""
    keys_of = f"{_TICKET}{original}", f"{_TICKET}{one}"
    db.execute("UPDATE OR IGNORE occurrences SET key = ? WHERE key = ?", keys_of)
    db.execute("DELETE FROM occurrences WHERE key = ?", keys_of[1:])


def observed(diagnosis: Diagnosis) -> datetime:
    """Return when `diagnosis` was observed; never in the future, whatever the clock of a recording was."""
    now = datetime.now(timezone.utc)
    starts = [m for coverage in diagnosis.coverage if (m := moment(coverage.start)) is not None]
    at = max(starts, default=None) or moment(diagnosis.created) or now
    return min(at, now)


def _same_outage(rows: dict[str, datetime], own: str, at: datetime) -> str | None:
    if own in rows:
        return own
    near = [key for key, when in rows.items() if key.startswith(_DIAGNOSIS) and abs(at - when) < QUIET]
    return near[0] if near else None


def _end(db: Connection, key: str, last: datetime) -> datetime | None:
    """Return when the outage of `key` ended; None for a live ticket."""
    if key.startswith(_DIAGNOSIS):
        return last
    number = key.removeprefix(_TICKET)
    row = db.execute(
        "SELECT state, coalesce(json_extract(body, '$.ended'), updated) FROM tickets WHERE id = ?", [int(number)]
    ).fetchone()
    if row is None or row[0] in LIVE:
        return None if row else last
    return moment(row[1]) or last


def _ticket_of(db: Connection, diagnosis: Diagnosis) -> int | None:
    """Return the ticket that `diagnosis` counts in, else the live one of its fault."""
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


def _rows(db: Connection, card: str) -> list[tuple[str, str]]:
    return list(db.execute("SELECT key, seen FROM occurrences WHERE incident = ? ORDER BY seen DESC", [card]))


def _host(diagnosis: Diagnosis) -> str:
    return diagnosis.coverage[0].host if diagnosis.coverage else ""
