"""Alerts, their groups, and the tickets of these.

There is a row per alert and status (firing, resolved), however often it is received. A group has the current status of
each of its alerts as a member; `Member.notified`: the receiver was notified of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Model

Status = Literal["firing", "resolved"]


class Alert(Model):
    """One notification of an alert, made inert and cut. `key`: deduplication key; `fingerprint`: identity of the alert.
    `starts`, `ends`: seconds since the epoch by the sender's clock. `sender`: input format; `sender_group`: the
    sender's group. `cut`: codes of what was truncated (``labels``, ``values``, ``annotations``).
    """

    key: str
    fingerprint: str
    status: Status
    labels: dict[str, str]
    annotations: dict[str, str] = Field(default_factory=dict)
    starts: float
    ends: float | None = None
    url: str = ""
    sender: str = "alertmanager"
    sender_group: str = ""
    cut: list[str] = Field(default_factory=list)

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")


@dataclass(frozen=True)
class Stored:
    """A stored alert: its number, when it was first and last received, and how often."""

    n: int
    alert: Alert
    received: float
    seen: float
    times: int


@dataclass(frozen=True)
class Member:
    """An alert in a group. `notified`: the receiver was notified of its firing."""

    fingerprint: str
    n: int
    status: Status
    starts: float
    notified: bool
    seen: float


class Group(Model):
    """Alerts that are notified together. `route`: key of the route; `labels`: the labels it groups by. Times are
    seconds since the epoch: `flushed` and `told`: last evaluation and last notification (None: never); `due`: next
    evaluation (None: none). `wait`: seconds from setting `due` until then. `truncated`: alerts that the sender left
    out. `flood`: uses the ticket shared by all groups of a flood.
    """

    id: str
    receiver: str
    route: str
    labels: dict[str, str] = Field(default_factory=dict)
    created: float
    flushed: float | None = None
    told: float | None = None
    due: float | None = None
    wait: float = 0.0
    ticket: str | None = None
    truncated: int = 0
    flood: bool = False


class Alerts:
    def __init__(self, file: Database) -> None:
        self._file = file

    # --- alerts -------------------------------------------------------------------------------------------------------

    def put(self, alert: Alert, now: float) -> tuple[int, bool]:
        """Store `alert` or count a repetition; return its number and whether it is new."""
        times = [alert.starts, now, now]
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO alerts (key, fingerprint, status, starts, received, seen, times, name, body)"
                " VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET times = times + 1, seen = excluded.seen RETURNING n, times",
                [alert.key, alert.fingerprint, alert.status, *times, alert.name, alert.model_dump_json()],
            ).fetchone()
        return int(row[0]), row[1] == 1

    def get(self, n: int) -> Stored | None:
        with self._file.read() as db:
            row = db.execute(_STORED + " WHERE n = ?", [n]).fetchone()
        return None if row is None else self._stored(row)

    def latest(self, fingerprint: str) -> Stored | None:
        """Return the latest notification of the alert `fingerprint`."""
        with self._file.read() as db:
            row = db.execute(
                _STORED + " WHERE fingerprint = ? ORDER BY seen DESC, n DESC LIMIT 1", [fingerprint]
            ).fetchone()
        return None if row is None else self._stored(row)

    def resolved_at(self, fingerprint: str, starts: float) -> float | None:
        """Return when `fingerprint`, started at `starts` or later, was last received as resolved; None: never."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT max(seen) FROM alerts WHERE fingerprint = ? AND status = 'resolved' AND starts >= ?",
                [fingerprint, starts],
            ).fetchone()
        return None if row[0] is None else float(row[0])

    def find(
        self, status: Status | None = None, name: str | None = None, ticket: str | None = None, limit: int = 100
    ) -> Sequence[Stored]:
        """Return alerts of a status, name or ticket (None: any), latest first."""
        with self._file.read() as db:
            rows = db.execute(_FIND, [status, status, name, name, ticket, _number(ticket), limit]).fetchall()
        return [self._stored(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """Return the numbers of stored alerts, of firing alerts, and of groups."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT (SELECT count(*) FROM alerts), (SELECT count(DISTINCT fingerprint) FROM alert_members"
                " WHERE status = 'firing'), (SELECT count(*) FROM alert_groups)"
            ).fetchone()
        return dict(zip(("alerts", "firing", "groups"), map(int, row), strict=True))

    def version(self) -> tuple[float, int]:
        """Return a value that changes when an alert is received or deleted."""
        with self._file.read() as db:
            # two subqueries: the maximum of a single column is read from its index
            row = db.execute("SELECT (SELECT max(seen) FROM alerts), (SELECT max(n) FROM alerts)").fetchone()
        return float(row[0] or 0), int(row[1] or 0)

    def firing(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield fingerprint and labels of every alert that fires in a group."""
        with self._file.read() as db:
            cursor = db.execute(
                "SELECT a.fingerprint, json_extract(a.body, '$.labels') FROM alerts AS a WHERE a.n IN"
                " (SELECT alert FROM alert_members WHERE status = 'firing') ORDER BY a.n"
            )
            for fingerprint, labels in cursor:
                yield fingerprint, json.loads(labels)

    # --- groups -----------------------------------------------------------------------------------------------------

    def group(self, id: str) -> Group | None:
        with self._file.read() as db:
            row = db.execute("SELECT body FROM alert_groups WHERE id = ?", [id]).fetchone()
        return None if row is None else self._file.record(Group, row[0])

    def put_group(self, group: Group) -> None:
        key, ticket = [group.id, group.receiver], _number(group.ticket)
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO alert_groups (id, receiver, ticket, created, due, wait, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [*key, ticket, group.created, group.due, group.wait, group.model_dump_json()],
            )

    def delete_group(self, id: str) -> None:
        """Delete the group `id` and its members, but not the alerts."""
        with self._file.write() as db:
            db.execute("DELETE FROM alert_members WHERE alert_group = ?", [id])
            db.execute("DELETE FROM alert_groups WHERE id = ?", [id])

    def groups(self, limit: int = 1000) -> Sequence[Group]:
        """Return the groups, newest first."""
        with self._file.read() as db:
            rows = db.execute("SELECT body FROM alert_groups ORDER BY created DESC, id LIMIT ?", [limit]).fetchall()
        return [self._file.record(Group, row[0]) for row in rows]

    def due(self, now: float, limit: int) -> list[str]:
        """Return ids of groups to evaluate, longest due first. A group due later than its `wait` allows is due too: the
        clock was set back.
        """
        with self._file.read() as db:
            rows = db.execute(
                "SELECT id FROM alert_groups WHERE due IS NOT NULL AND (due <= ? OR due > ? + wait + 1)"
                " ORDER BY due, created, id LIMIT ?",
                [now, now, limit],
            ).fetchall()
        return [str(row[0]) for row in rows]

    def next_due(self, now: float) -> float | None:
        """Return when the next group is due; None: none is."""
        with self._file.read() as db:
            row = db.execute("SELECT min(min(due, ? + wait)) FROM alert_groups WHERE due IS NOT NULL", [now]).fetchone()
        return None if row[0] is None else float(row[0])

    def firing_on(self, tickets: Sequence[str], besides: str) -> bool:
        """Return whether a notified alert fires in a group other than `besides` with one of `tickets`."""
        numbers = [number for number in map(_number, tickets) if number is not None]
        with self._file.read() as db:
            row = db.execute(
                "SELECT 1 FROM alert_groups AS g JOIN alert_members AS m ON m.alert_group = g.id"
                " WHERE g.ticket IN (SELECT value FROM json_each(?)) AND g.id != ?"
                " AND m.status = 'firing' AND m.told = 1 LIMIT 1",
                [json.dumps(numbers), besides],
            ).fetchone()
        return row is not None

    def first_notifications_since(self, receiver: str, since: float) -> int:
        """Return how many groups `receiver` was first notified of after `since`."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT count(*) FROM alert_first WHERE receiver = ? AND at > ?", [receiver, since]
            ).fetchone()
        return int(row[0])

    def add_first_notification(self, receiver: str, group: str, at: float) -> None:
        """Record the first notification of `receiver` of `group`."""
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO alert_first (receiver, at, alert_group) VALUES (?, ?, ?)", [receiver, at, group]
            )

    # --- members ----------------------------------------------------------------------------------------------------

    def member(self, group: str, fingerprint: str) -> Member | None:
        with self._file.read() as db:
            row = db.execute(
                _MEMBER + " WHERE m.alert_group = ? AND m.fingerprint = ?", [group, fingerprint]
            ).fetchone()
        return None if row is None else _member(row)

    def groups_of(self, fingerprint: str) -> list[str]:
        """Return ids of the groups with the alert."""
        with self._file.read() as db:
            rows = db.execute("SELECT alert_group FROM alert_members WHERE fingerprint = ?", [fingerprint]).fetchall()
        return [str(row[0]) for row in rows]

    def put_member(self, group: str, fingerprint: str, n: int, status: Status, starts: float, notified: bool) -> None:
        """Store the status of an alert in `group`."""
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO alert_members (alert_group, fingerprint, alert, status, starts, told)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [group, fingerprint, n, status, starts, notified],
            )

    def members(self, group: str) -> Sequence[Member]:
        """Return the alerts of `group`, in order of arrival."""
        with self._file.read() as db:
            rows = db.execute(_MEMBER + " WHERE m.alert_group = ? ORDER BY m.alert", [group]).fetchall()
        return [_member(row) for row in rows]

    def bodies(self, numbers: Sequence[int]) -> Iterator[Stored]:
        """Yield the alerts `numbers`, in their order, read in batches."""
        for start in range(0, len(numbers), _BATCH):
            with self._file.read() as db:
                rows = db.execute(_THESE, [json.dumps(numbers[start : start + _BATCH])]).fetchall()
            yield from map(self._stored, rows)

    def mark_notified(self, group: str, fingerprints: Sequence[str], ticket: str | None) -> None:
        """Mark the firing of these alerts as notified, and assign them to `ticket` if given."""
        marks = json.dumps(list(fingerprints))
        with self._file.write() as db:
            self._assign(group, marks, ticket)
            db.execute(_NOTIFY, [group, marks])

    def remove_members(self, group: str, fingerprints: Sequence[str], ticket: str | None = None) -> None:
        """Remove these resolved alerts from the group, and assign their last notification to `ticket` if given."""
        marks = json.dumps(list(fingerprints))
        with self._file.write() as db:
            self._assign(group, marks, ticket)
            db.execute(_REMOVE, [group, marks])

    def _assign(self, group: str, marks: str, ticket: str | None) -> None:
        if ticket is None:
            return
        with self._file.write() as db:
            db.execute(_ASSIGN, [_number(ticket), group, marks])

    # --- related tickets ----------------------------------------------------------------------------------------------

    def put_subjects(self, ticket: str, subjects: Sequence[str], at: float) -> None:
        """Store what `ticket` is about (``node:gpu03``, ``cause:slow_disk``), to find related tickets."""
        with self._file.write() as db:
            for subject in subjects:
                db.execute(
                    "INSERT OR REPLACE INTO alert_things (thing, ticket, at) VALUES (?, ?, ?)",
                    [subject, _number(ticket), at],
                )

    def tickets_about(
        self, subjects: Sequence[str], since: float, until: float, limit: int = 200
    ) -> list[tuple[str, str]]:
        """Return live tickets about one of `subjects`, notified between those times, as (ticket, subject), latest
        first.
        """
        with self._file.read() as db:
            rows = db.execute(
                "SELECT s.ticket, s.thing FROM alert_things AS s JOIN tickets AS t ON t.id = s.ticket"
                " WHERE s.thing IN (SELECT value FROM json_each(?)) AND s.at BETWEEN ? AND ?"
                " AND t.state IN ('open', 'acknowledged') ORDER BY s.at DESC, s.ticket DESC, s.thing LIMIT ?",
                [json.dumps(list(subjects)), since, until, limit],
            ).fetchall()
        return [(str(row[0]), str(row[1])) for row in rows]

    def forget(self, before: float) -> int:
        """Delete alerts last received before `before` and in no group; return their number."""
        with self._file.write() as db:
            count = db.execute(
                "DELETE FROM alerts WHERE seen < ? AND n NOT IN (SELECT alert FROM alert_members)", [before]
            ).rowcount
            db.execute("DELETE FROM ticket_alerts WHERE alert NOT IN (SELECT n FROM alerts)")
            db.execute("DELETE FROM alert_things WHERE at < ?", [before])
            db.execute("DELETE FROM alert_first WHERE at < ?", [before])
        return count

    def _stored(self, row: Sequence[object]) -> Stored:
        n, received, seen, times, body = row
        alert = self._file.record(Alert, str(body))
        return Stored(int(str(n)), alert, float(str(received)), float(str(seen)), int(str(times)))


_BATCH = 500  # alerts in memory at a time
_STORED = "SELECT n, received, seen, times, body FROM alerts"
_THESE = _STORED + " WHERE n IN (SELECT value FROM json_each(?)) ORDER BY n"  # noqa: S608
_FIND = (
    _STORED  # noqa: S608
    + " WHERE (? IS NULL OR status = ?) AND (? IS NULL OR name = ?)"
    " AND (? IS NULL OR n IN (SELECT alert FROM ticket_alerts WHERE ticket = ?)) ORDER BY seen DESC, n DESC LIMIT ?"
)
_MEMBER = (
    "SELECT m.fingerprint, m.alert, m.status, m.starts, m.told, a.seen"
    " FROM alert_members AS m JOIN alerts AS a ON a.n = m.alert"
)
_CHOSEN = " WHERE alert_group = ? AND fingerprint IN (SELECT value FROM json_each(?))"
_ASSIGN = "INSERT OR IGNORE INTO ticket_alerts (ticket, alert) SELECT ?, alert FROM alert_members" + _CHOSEN  # noqa: S608
_NOTIFY = "UPDATE alert_members SET told = 1" + _CHOSEN  # noqa: S608
_REMOVE = "DELETE FROM alert_members" + _CHOSEN  # noqa: S608


def _member(row: Sequence[object]) -> Member:
    fingerprint, n, status, starts, notified, seen = row
    state: Status = "resolved" if status == "resolved" else "firing"
    return Member(str(fingerprint), int(str(n)), state, float(str(starts)), bool(notified), float(str(seen)))


def _number(ticket: str | None) -> int | None:
    return int(ticket) if ticket is not None and ticket.isascii() and ticket.isdigit() and len(ticket) < 16 else None
