"""What trackers are to be told of tickets: the state they shall show, not a list of messages to them.

A delivery is a ticket and a sink. It is due while the ticket's revision is ahead of the one the sink was told. It is
taken under a lease, and whoever lost the lease may begin nothing more: two processes never create the same issue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.tools.contract.text import clean

FARTHEST_S = 7200.0
"""Nothing is put off for longer; what seems to be was put off before the clock was set back, and is due."""
_ERROR = 500
_COLUMNS = "sink, ticket, wanted, told, remote, url, underway, attempts, due, parked, error, owner, lease, memory"
_PATCH = "memory = json_patch(memory, ?)"
# `?1` now, `?2` the farthest time that is believed
_DUE = "parked = 0 AND told < wanted AND (due <= ?1 OR due > ?2)"


class Delivery(BaseModel):
    """One ticket in one sink. `wanted`, `told`: revisions of the ticket. `remote`: what the tracker calls it, empty
    until that is known; `url` for people. `underway`: since when (seconds since the epoch) a creation has been under
    way of which nobody knows yet whether it happened. `attempts`: that failed since the last success. `parked`: not
    tried again until a person asks; `error` says why. `memory`: what the sink keeps of what it did.
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
        """Whether the sink is behind its ticket."""
        return self.delivered < self.wanted


class Deliveries:
    """The deliveries in `file`. Tickets are named by their ids, which are numbers as text."""

    def __init__(self, file: Database) -> None:
        self._file = file

    # --- requesting ---------------------------------------------------------------------------------------------------

    def want(self, sink: str, ticket: str, due: float = 0.0) -> bool:
        """Keep `sink` in step with `ticket` from now on, not before the time `due`; whether that is new.

        The ticket is stored already. It is wanted anew by itself whenever its revision changes.
        """
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO deliveries (sink, ticket, wanted, due) SELECT ?, id, max(revision, 1), ? FROM tickets"
                " WHERE id = ? ON CONFLICT (sink, ticket) DO NOTHING RETURNING 1",
                [sink, due, int(ticket)],
            ).fetchone()
        return row is not None

    def adopt(self, sink: str, ticket: str, remote: str, url: str = "") -> bool:
        """Keep `sink` in step with `ticket`, which is there already as `remote`; whether that is new."""
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO deliveries (sink, ticket, wanted, remote, url) SELECT ?, id, max(revision, 1), ?, ?"
                " FROM tickets WHERE id = ? ON CONFLICT (sink, ticket) DO NOTHING RETURNING 1",
                [sink, remote, url, int(ticket)],
            ).fetchone()
        return row is not None

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, sink: str, ticket: str) -> Delivery | None:
        """The delivery of `ticket` to `sink`."""
        return self._one("sink = ? AND ticket = ?", [sink, int(ticket)])

    def of_ticket(self, ticket: str) -> list[Delivery]:
        """All deliveries of `ticket`, by the names of their sinks."""
        return self._all("ticket = ? ORDER BY sink", [int(ticket)])

    def of_remote(self, sink: str, remote: str) -> Delivery | None:
        """The delivery that `sink` calls `remote`, the first where there are several."""
        return self._one("sink = ? AND remote = ? AND remote != '' ORDER BY ticket", [sink, remote])

    def of_sink(self, sink: str, limit: int = 1000, after: str = "0") -> list[Delivery]:
        """Deliveries of `sink`, of tickets with a number above `after`."""
        return self._all("sink = ? AND ticket > ? ORDER BY ticket LIMIT ?", [sink, int(after), limit])

    def troubled(self, sink: str, limit: int = 20) -> list[Delivery]:
        """Deliveries of `sink` that failed and are not made good, parked ones first."""
        where = "sink = ? AND error != '' AND told < wanted ORDER BY parked DESC, ticket LIMIT ?"
        return self._all(where, [sink, limit])

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Per sink: how many tickets it is kept in step with, how many of them it is behind, how many are parked."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT sink, count(*), sum(told < wanted), sum(parked) FROM deliveries GROUP BY sink"
            ).fetchall()
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    def due(self, now: float, sinks: Sequence[str], limit: int = 100) -> list[Delivery]:
        """Deliveries to `sinks` that are to be made, those first that have waited longest."""
        where = f"{_DUE} AND sink IN (SELECT value FROM json_each(?3)) ORDER BY due, ticket LIMIT ?4"  # noqa: S608
        return self._all(where, [now, now + FARTHEST_S, json.dumps(list(sinks)), limit])

    def next_due(self, sinks: Sequence[str]) -> float | None:
        """When the next delivery to `sinks` is due or its lease runs out; None: there is none."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT min(max(due, lease)) FROM deliveries WHERE parked = 0 AND told < wanted"
                " AND sink IN (SELECT value FROM json_each(?))",
                [json.dumps(list(sinks))],
            ).fetchone()
        return None if row[0] is None else float(row[0])

    # --- making them ----------------------------------------------------------------------------------------------

    def take(
        self, sinks: Sequence[str], owner: str, now: float, lease: float, ticket: str | None = None
    ) -> Delivery | None:
        """The delivery to `sinks` that is due longest (of `ticket` alone, where one is named), given to `owner` until
        `now` + `lease` seconds; None: nothing is due, or others are at it.
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
        """A creation is about to be sent: until `made`, `told` or `never_was`, nobody knows whether it happened.
        `memory`: what changes of it, here as everywhere; None takes a name away.

        False, and nothing may be sent: another has taken the delivery meanwhile.
        """
        return self._if_owner(sink, ticket, owner, f"underway = ?, {_PATCH}", [now, _json(memory)])

    def created(self, sink: str, ticket: str, owner: str, remote: str, url: str, memory: Mapping[str, Any]) -> bool:
        """It is there, and called `remote`; what is left to tell follows. False as in `begin`."""
        values = [remote, clean(url, 2000), _json(memory)]
        return self._if_owner(sink, ticket, owner, f"underway = NULL, remote = ?, url = ?, {_PATCH}", values)

    def save_memory(self, sink: str, ticket: str, owner: str, memory: Mapping[str, Any]) -> bool:
        """Remember how far it has come. False as in `begin`."""
        return self._if_owner(sink, ticket, owner, _PATCH, [_json(memory)])

    def patch_memory(self, sink: str, ticket: str, memory: Mapping[str, Any]) -> None:
        """Remember what the tracker itself told, whoever is at the delivery."""
        with self._file.write() as db:
            db.execute(
                f"UPDATE deliveries SET {_PATCH} WHERE sink = ? AND ticket = ?",  # noqa: S608
                [_json(memory), sink, int(ticket)],
            )

    def not_created(self, sink: str, ticket: str, owner: str) -> bool:
        """The creation that was under way did not happen. False as in `begin`."""
        return self._if_owner(sink, ticket, owner, "underway = NULL", [])

    def delivered(self, sink: str, ticket: str, owner: str, revision: int, memory: Mapping[str, Any]) -> bool:
        """The sink shows the ticket as of `revision`. False as in `begin`."""
        end = (
            f"told = max(told, ?), {_PATCH}, underway = NULL, attempts = 0, due = 0, error = '', owner = '', lease = 0"
        )
        return self._if_owner(sink, ticket, owner, end, [revision, _json(memory)])

    def wait_until(self, sink: str, ticket: str, owner: str, due: float) -> bool:
        """It is not to be gone on with before `due`; nothing has failed. False as in `begin`."""
        return self._if_owner(sink, ticket, owner, "due = ?, owner = '', lease = 0", [due])

    def retry_at(self, sink: str, ticket: str, owner: str, due: float, error: str) -> bool:
        """It failed, and is to be tried again at `due`. False as in `begin`."""
        end = "attempts = attempts + 1, due = ?, error = ?, owner = '', lease = 0"
        return self._if_owner(sink, ticket, owner, end, [due, clean(error, _ERROR)])

    def park(self, sink: str, ticket: str, owner: str, error: str) -> bool:
        """It failed, and is not tried again until a person asks (`unpark`). False as in `begin`."""
        end = "attempts = attempts + 1, parked = 1, error = ?, owner = '', lease = 0"
        return self._if_owner(sink, ticket, owner, end, [clean(error, _ERROR)])

    def park_all(self, sink: str, error: str) -> int:
        """Park everything that `sink` is still to be told and nobody is at: it lets us not in; how much that was."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET parked = 1, error = ? WHERE sink = ? AND parked = 0 AND told < wanted"
                " AND owner = ''",
                [clean(error, _ERROR), sink],
            ).rowcount

    def unpark(self, sink: str, ticket: str | None = None) -> int:
        """Try at once what was parked or put off in `sink` (of `ticket` alone, where one is named); how much it is."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET parked = 0, due = 0, attempts = 0 WHERE sink = ? AND told < wanted"
                " AND (? IS NULL OR ticket = ?)",
                [sink, *(2 * [None if ticket is None else int(ticket)])],
            ).rowcount

    def resend(self, sink: str, ticket: str) -> None:
        """Tell the sink the whole of `ticket` once more: somebody changed what it shows."""
        with self._file.write() as db:
            db.execute("UPDATE deliveries SET told = wanted - 1 WHERE sink = ? AND ticket = ?", [sink, int(ticket)])

    def release(self, owner_before: str | None = None) -> int:
        """Give back everything that `owner_before` (None: whoever it was) had taken and is gone; how much that was."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET owner = '', lease = 0 WHERE owner != '' AND (?1 IS NULL OR owner = ?1)",
                [owner_before],
            ).rowcount

    def set_back(self, by: float, now: float) -> int:
        """The clock was set back by so many seconds, to `now`: so is what is put off. How many that were."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE deliveries SET due = due - ? WHERE parked = 0 AND told < wanted AND due > ?", [by, now]
            ).rowcount

    # --- inbound changes ----------------------------------------------------------------------------------------------

    def cursor(self, sink: str) -> dict[str, Any]:
        """How far the news of `sink` were read, as `read_to` kept it; empty at first."""
        with self._file.read() as db:
            row = db.execute("SELECT value FROM state WHERE key = ?", [f"sink:{sink}"]).fetchone()
        return {} if row is None else dict(json.loads(row[0]))

    def read_to(self, sink: str, cursor: Mapping[str, Any]) -> None:
        """The news of `sink` were read so far."""
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
