"""The synchronization of tickets with trackers, as the state to show, not as a list of messages.

A delivery is a ticket and a sink. It is due while the ticket's revision is ahead of the delivered one. It is taken
under a lease, and only the owner may send: two processes never create the same issue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.tools.contract.text import clean

FARTHEST_S = 7200.0
"""Maximum delay of a retry; a longer one dates from before the clock was set back, and is due."""
_ERROR = 500
_COLUMNS = "sink, ticket, wanted, told, remote, url, underway, attempts, due, parked, error, owner, lease, memory"
_PATCH = "memory = json_patch(memory, ?)"
# `?1`: now, `?2`: now + FARTHEST_S
_DUE = "parked = 0 AND told < wanted AND (due <= ?1 OR due > ?2)"


class Delivery(BaseModel):
    """A ticket in a sink. `wanted`, `delivered`: revisions of the ticket. `remote`: id in the tracker, empty until
    known; `url` for people. `underway`: start (seconds since the epoch) of a creation with unknown outcome. `attempts`:
    failures since the last success. `parked`: not retried until a person asks; `error`: the reason. `memory`: the
    sink's own data.
    """

    model_config = ConfigDict(extra="forbid")

    sink: str
    ticket: str
    wanted: int
    delivered: int
    remote: str
    url: str
    underway: float | None
    attempts: int
    due: float
    parked: bool
    error: str
    owner: str
    lease: float
    memory: dict[str, Any]

    @property
    def pending(self) -> bool:
        """Return whether the sink is behind its ticket."""
        return self.delivered < self.wanted


class Deliveries:
    """The deliveries in `file`. Ticket ids are numbers as text."""

    def __init__(self, file: Database) -> None:
        self._file = file

    # --- requesting ---------------------------------------------------------------------------------------------------

    def want(self, sink: str, ticket: str, due: float = 0.0) -> bool:
        """Synchronize the stored `ticket` to `sink` from now on, not before `due`; return whether that is new.

        A trigger updates `wanted` when the ticket's revision changes.
        """
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO deliveries (sink, ticket, wanted, due) SELECT ?, id, max(revision, 1), ? FROM tickets"
                " WHERE id = ? ON CONFLICT (sink, ticket) DO NOTHING RETURNING 1",
                [sink, due, int(ticket)],
            ).fetchone()
        return row is not None

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, sink: str, ticket: str) -> Delivery | None:
        return self._one("sink = ? AND ticket = ?", [sink, int(ticket)])

    def of_ticket(self, ticket: str) -> list[Delivery]:
        """Return all deliveries of `ticket`, by sink."""
        return self._all("ticket = ? ORDER BY sink", [int(ticket)])

    def of_remote(self, sink: str, remote: str) -> Delivery | None:
        """Return the first delivery with the id `remote` in `sink`."""
        return self._one("sink = ? AND remote = ? AND remote != '' ORDER BY ticket", [sink, remote])

    def of_sink(self, sink: str, limit: int = 1000, after: str = "0") -> list[Delivery]:
        """Return deliveries of `sink` for tickets numbered above `after`."""
        return self._all("sink = ? AND ticket > ? ORDER BY ticket LIMIT ?", [sink, int(after), limit])

    def troubled(self, sink: str, limit: int = 20) -> list[Delivery]:
        """Return failed and still pending deliveries of `sink`, parked ones first."""
        where = "sink = ? AND error != '' AND told < wanted ORDER BY parked DESC, ticket LIMIT ?"
        return self._all(where, [sink, limit])

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Return per sink the numbers of deliveries, of pending ones, and of parked ones."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT sink, count(*), sum(told < wanted), sum(parked) FROM deliveries GROUP BY sink"
            ).fetchall()
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    def due(self, now: float, sinks: Sequence[str], limit: int = 100) -> list[Delivery]:
        """Return the due deliveries to `sinks`, longest due first."""
        where = f"{_DUE} AND sink IN (SELECT value FROM json_each(?3)) ORDER BY due, ticket LIMIT ?4"  # noqa: S608
        return self._all(where, [now, now + FARTHEST_S, json.dumps(list(sinks)), limit])

    def next_due(self, sinks: Sequence[str]) -> float | None:
        """Return when the next delivery to `sinks` is due or its lease expires; None: there is none."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT min(max(due, lease)) FROM deliveries WHERE parked = 0 AND told < wanted"
                " AND sink IN (SELECT value FROM json_each(?))",
                [json.dumps(list(sinks))],
            ).fetchone()
        return None if row[0] is None else float(row[0])

    # --- sending ------------------------------------------------------------------------------------------------------

    def take(
        self, sinks: Sequence[str], owner: str, now: float, lease: float, ticket: str | None = None
    ) -> Delivery | None:
        """Give the longest due delivery to `sinks` (only of `ticket` if given) to `owner` until `now` + `lease`
        seconds; return it, or None if none is due or free.
        """
        with self._file.write() as db:
            row = db.execute(
                f"UPDATE deliveries SET owner = ?3, lease = ?4 WHERE (sink, ticket) = (SELECT sink, ticket"  # noqa: S608
                f" FROM deliveries WHERE {_DUE} AND sink IN (SELECT value FROM json_each(?5))"
                " AND (lease <= ?1 OR lease > ?6) AND (?7 IS NULL OR ticket = ?7) ORDER BY due, ticket LIMIT 1)"
                f" RETURNING {_COLUMNS}",
                [
                    now,
                    now + FARTHEST_S,
                    owner,
                    now + lease,
                    json.dumps(list(sinks)),
                    now + 2 * lease,
                    None if ticket is None else int(ticket),
                ],
            ).fetchone()
        return None if row is None else _delivery(row)

    def begin(self, sink: str, ticket: str, owner: str, now: float, memory: Mapping[str, Any]) -> bool:
        """Record that a creation is about to be sent; its outcome is unknown until `created`, `delivered` or
        `not_created`.

        `memory` is merged into the stored one, as in all methods here; a value of None removes a name. Returns False if
        another process has taken the delivery meanwhile: then nothing may be sent.
        """
        return self._if_owner(sink, ticket, owner, f"underway = ?, {_PATCH}", [now, _json(memory)])

    def created(self, sink: str, ticket: str, owner: str, remote: str, url: str, memory: Mapping[str, Any]) -> bool:
        """Record that the issue was created as `remote`. False as in `begin`."""
        values = [remote, clean(url, 2000), _json(memory)]
        return self._if_owner(sink, ticket, owner, f"underway = NULL, remote = ?, url = ?, {_PATCH}", values)

    def save_memory(self, sink: str, ticket: str, owner: str, memory: Mapping[str, Any]) -> bool:
        """Merge `memory`. False as in `begin`."""
        return self._if_owner(sink, ticket, owner, _PATCH, [_json(memory)])

    def patch_memory(self, sink: str, ticket: str, memory: Mapping[str, Any]) -> None:
        """Merge `memory` from an inbound change, for any owner."""
        with self._file.write() as db:
            db.execute(
                f"UPDATE deliveries SET {_PATCH} WHERE sink = ? AND ticket = ?",  # noqa: S608
                [_json(memory), sink, int(ticket)],
            )

    def not_created(self, sink: str, ticket: str, owner: str) -> bool:
        """Record that the pending creation did not happen. False as in `begin`."""
        return self._if_owner(sink, ticket, owner, "underway = NULL", [])

    def delivered(self, sink: str, ticket: str, owner: str, revision: int, memory: Mapping[str, Any]) -> bool:
        """Record that the sink has `revision`. False as in `begin`."""
        end = (
            f"told = max(told, ?), {_PATCH}, underway = NULL, attempts = 0, due = 0, error = '', owner = '', lease = 0"
        )
        return self._if_owner(sink, ticket, owner, end, [revision, _json(memory)])

    def wait_until(self, sink: str, ticket: str, owner: str, due: float) -> bool:
        """Retry at `due`; not an error. False as in `begin`."""
        return self._if_owner(sink, ticket, owner, "due = ?, owner = '', lease = 0", [due])

    def retry_at(self, sink: str, ticket: str, owner: str, due: float, error: str) -> bool:
        """Retry at `due` after an error. False as in `begin`."""
        end = "attempts = attempts + 1, due = ?, error = ?, owner = '', lease = 0"
        return self._if_owner(sink, ticket, owner, end, [due, clean(error, _ERROR)])

    def park(self, sink: str, ticket: str, owner: str, error: str) -> bool:
        """Stop retrying until `unpark`, after an error. False as in `begin`."""
        end = "attempts = attempts + 1, parked = 1, error = ?, owner = '', lease = 0"
        return self._if_owner(sink, ticket, owner, end, [clean(error, _ERROR)])

    def park_all(self, sink: str, error: str) -> int:
        """Park all pending deliveries of `sink` without an owner; return their number."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET parked = 1, error = ? WHERE sink = ? AND parked = 0 AND told < wanted"
                " AND owner = ''",
                [clean(error, _ERROR), sink],
            ).rowcount

    def unpark(self, sink: str, ticket: str | None = None) -> int:
        """Retry now all pending deliveries of `sink` (only of `ticket`, if given), parked or not; return how many."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET parked = 0, due = 0, attempts = 0 WHERE sink = ? AND told < wanted"
                " AND (? IS NULL OR ticket = ?)",
                [sink, *(2 * [None if ticket is None else int(ticket)])],
            ).rowcount

    def resend(self, sink: str, ticket: str) -> None:
        """Send `ticket` again: its issue was changed by others."""
        with self._file.write() as db:
            db.execute("UPDATE deliveries SET told = wanted - 1 WHERE sink = ? AND ticket = ?", [sink, int(ticket)])

    def release(self, owner_before: str | None = None) -> int:
        """Release all deliveries of the dead `owner_before` (None: of all owners); return their number."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET owner = '', lease = 0 WHERE owner != '' AND (?1 IS NULL OR owner = ?1)",
                [owner_before],
            ).rowcount

    def set_back(self, by: float, now: float) -> int:
        """Move due times back by `by` seconds, as the clock was, to `now`; return their number."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET due = due - ? WHERE parked = 0 AND told < wanted AND due > ?", [by, now]
            ).rowcount

    # --- inbound changes ----------------------------------------------------------------------------------------------

    def cursor(self, sink: str) -> dict[str, Any]:
        """Return the position of inbound changes of `sink`, as stored by `read_to`; empty at first."""
        with self._file.read() as db:
            row = db.execute("SELECT value FROM state WHERE key = ?", [f"sink:{sink}"]).fetchone()
        return {} if row is None else dict(json.loads(row[0]))

    def read_to(self, sink: str, cursor: Mapping[str, Any]) -> None:
        """Store the position up to which inbound changes of `sink` were read."""
        with self._file.write() as db:
            db.execute(
                "INSERT INTO state (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [f"sink:{sink}", _json(cursor)],
            )

    def _if_owner(self, sink: str, ticket: str, owner: str, change: str, values: Sequence[Any]) -> bool:
        with self._file.write() as db:
            done = db.execute(
                f"UPDATE deliveries SET {change} WHERE sink = ? AND ticket = ? AND owner = ?",  # noqa: S608
                [*values, sink, int(ticket), owner],
            ).rowcount
        return done == 1

    def _one(self, where: str, values: Sequence[Any]) -> Delivery | None:
        return next(iter(self._all(f"{where} LIMIT 1", values)), None)

    def _all(self, where: str, values: Sequence[Any]) -> list[Delivery]:
        with self._file.read() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM deliveries WHERE {where}", values).fetchall()  # noqa: S608
        return [_delivery(row) for row in rows]


def _json(memory: Mapping[str, Any]) -> str:
    return json.dumps(dict(memory), ensure_ascii=False)


def _delivery(row: Sequence[Any]) -> Delivery:
    values = dict(zip(Delivery.model_fields, row, strict=True))  # the columns in their order
    return Delivery(**{**values, "ticket": str(values["ticket"]), "memory": json.loads(values["memory"])})
