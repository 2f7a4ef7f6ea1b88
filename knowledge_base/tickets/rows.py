"""Rows of tickets, within a transaction: the record as JSON, columns to filter by, and the history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.ticket_models import Event, Line, Origin, State, Ticket, What
from whystall.knowledge_base.tickets import human
from whystall.tools.contract.findings import Severity
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from sqlite3 import Connection

_INSERT = """INSERT INTO tickets (dedup_key, state, created, updated, revision, origin, fault, severity, category,
        component, occurrences, title, target, cause, verdict, assignee, closed_as, body)
    VALUES (:dedup_key, :state, :created, :updated, :revision, :origin, :fault, :severity, :category, :component,
        :occurrences, :title, :target, :cause, :verdict, :assignee, :closed_as, '')"""
_UPDATE = """UPDATE tickets SET dedup_key = :dedup_key, state = :state, created = :created, updated = :updated,
        revision = :revision, origin = :origin, fault = :fault, severity = :severity, category = :category,
        component = :component, occurrences = :occurrences, title = :title, target = :target, cause = :cause,
        verdict = :verdict, assignee = :assignee, closed_as = :closed_as, body = :body WHERE id = :id"""
# Ordered as an index is: no more rows are read than are filtered and returned.
_WHERE = """WHERE (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
    AND (:severities = '[]' OR severity IN (SELECT value FROM json_each(:severities)))
    AND (:origins = '[]' OR origin IN (SELECT value FROM json_each(:origins)))
    AND (:category IS NULL OR category = :category) AND (:component IS NULL OR component = :component)
    AND (:assignee IS NULL OR assignee = :assignee) AND (:fault IS NULL OR fault = :fault)
    AND (:dedup_key IS NULL OR dedup_key = :dedup_key)
    AND """
_WORDS = 8
_SEARCHED = " || ' ' || ".join(("id", "title", "target", "cause", "category", "component", "assignee"))
# Not a table of words: that would be read for each ticket.
_WHERE += " AND ".join(f"(:word{n} = '' OR instr(lower({_SEARCHED}), :word{n}))" for n in range(_WORDS))
_ORDER = "ORDER BY updated DESC, id DESC LIMIT :limit OFFSET :offset"
_BODIES = " ".join(("SELECT body FROM tickets", _WHERE, _ORDER))
_LINE = tuple(Line.model_fields)
_LINES = " ".join(("SELECT", ", ".join(_LINE), "FROM tickets", _WHERE, _ORDER))
_COUNT = " ".join(("SELECT count(*) FROM tickets", _WHERE))
_DETAIL = 300


@dataclass(frozen=True)
class Wanted:
    """Filter of tickets; empty or None matches all. `assignee`: first assigned user; "" matches unassigned ones.
    `words`: at most 8 words, all of which are in the number, title, target, cause, category, component or assignee;
    only ASCII letters match in either case.
    """

    states: Sequence[State] = ()
    severities: Sequence[Severity] = ()
    origins: Sequence[Origin] = ()
    category: str | None = None
    component: str | None = None
    assignee: str | None = None
    fault: str | None = None
    dedup_key: str | None = None
    words: str = ""


def insert(db: Connection, ticket: Ticket) -> Ticket:
    number = db.execute(_INSERT, _columns(ticket)).lastrowid
    numbered = ticket.model_copy(update={"id": str(number)})
    db.execute("UPDATE tickets SET body = ? WHERE id = ?", [numbered.model_dump_json(), number])
    return numbered


def update(db: Connection, ticket: Ticket) -> None:
    db.execute(_UPDATE, {**_columns(ticket), "id": int(ticket.id), "body": ticket.model_dump_json()})


def body(db: Connection, id: str) -> str | None:
    """Return the record of ticket `id`."""
    number = int(id) if id.isascii() and id.isdigit() and len(id) < 16 else -1
    row = db.execute("SELECT body FROM tickets WHERE id = ?", [number]).fetchone()
    return None if row is None else str(row[0])


def live(db: Connection, dedup_key: str) -> str | None:
    """Return the record of the live ticket of `dedup_key`."""
    row = db.execute(
        "SELECT body FROM tickets WHERE dedup_key = ? AND state IN ('open', 'acknowledged')", [dedup_key]
    ).fetchone()
    return None if row is None else str(row[0])


def latest(db: Connection, key: str) -> str | None:
    """Return the record of the newest ticket of `key`, a `dedup_key` or fault."""
    row = db.execute(
        "SELECT body FROM tickets WHERE id IN"
        " (SELECT id FROM tickets WHERE fault = ? UNION SELECT id FROM tickets WHERE dedup_key = ?)"
        " ORDER BY id DESC LIMIT 1",
        [key, key],
    ).fetchone()
    return None if row is None else str(row[0])


def live_of_fault(db: Connection, fault: str) -> list[str]:
    """Return the records of the live tickets of `fault`, oldest first."""
    # Two index lookups: a condition with OR would scan all tickets.
    rows = db.execute(
        "SELECT body FROM tickets WHERE state IN ('open', 'acknowledged') AND id IN (SELECT id FROM tickets"
        " WHERE fault = ? UNION SELECT id FROM tickets WHERE dedup_key = ?) ORDER BY id",
        [fault, fault],
    ).fetchall()
    return [str(found) for (found,) in rows]


def bodies(db: Connection, wanted: Wanted, limit: int) -> list[str]:
    return [str(found) for (found,) in db.execute(_BODIES, _bound(wanted, limit)).fetchall()]


def listed(db: Connection, wanted: Wanted, limit: int, offset: int = 0) -> list[Line]:
    rows = db.execute(_LINES, _bound(wanted, limit, offset)).fetchall()
    return [Line.model_validate({**dict(zip(_LINE, row, strict=True)), "id": str(row[0])}) for row in rows]


def count(db: Connection, wanted: Wanted) -> int:
    return int(db.execute(_COUNT, _bound(wanted, 0)).fetchone()[0])


def hosts(db: Connection) -> list[tuple[str, int, str]]:
    """Return the hosts that have live tickets here (`ticketing.host_reports`): name, tickets, last change."""
    rows = db.execute(
        "SELECT substr(dedup_key, 6, instr(substr(dedup_key, 6), ':') - 1) AS host, count(*), max(updated) FROM tickets"
        " WHERE dedup_key >= 'host:' AND dedup_key < 'host;' AND state IN ('open', 'acknowledged')"
        " GROUP BY host ORDER BY 2 DESC, host"
    ).fetchall()
    return [(str(host), int(count), str(updated)) for host, count, updated in rows]


def ids(db: Connection, prefix: str, limit: int) -> list[str]:
    begin = clean(prefix, human.NAME)
    rows = db.execute(
        "SELECT id FROM tickets WHERE substr(id, 1, ?) = ? ORDER BY id DESC LIMIT ?",
        [len(begin), begin, max(0, limit)],
    ).fetchall()
    return [str(row[0]) for row in rows]


def add_event(db: Connection, ticket: Ticket, what: What, by: str, at: str, detail: str) -> None:
    db.execute(
        "INSERT INTO ticket_events (ticket, revision, what, by, at, detail) VALUES (?, ?, ?, ?, ?, ?)",
        [int(ticket.id), ticket.revision, what, human.line(by, human.NAME), at, human.line(detail, _DETAIL)],
    )


def events(db: Connection, id: str, after: int, limit: int) -> list[Event]:
    rows = db.execute(
        "SELECT n, ticket, revision, what, by, at, detail FROM ticket_events WHERE ticket = ? AND n > ?"
        " ORDER BY n DESC LIMIT ?",
        [int(id), after, max(0, limit)],
    ).fetchall()
    names = tuple(Event.model_fields)
    return [Event.model_validate({**dict(zip(names, r, strict=True)), "ticket": str(r[1])}) for r in reversed(rows)]


def _columns(ticket: Ticket) -> dict[str, Any]:
    diagnosis, assignment = ticket.diagnosis, ticket.assignment
    return {
        "dedup_key": ticket.dedup_key,
        "state": ticket.state,
        "created": ticket.created,
        "updated": ticket.updated,
        "revision": ticket.revision,
        "origin": ticket.origin,
        "fault": ticket.fault,
        "severity": ticket.severity.value,
        "category": ticket.category,
        "component": ticket.component,
        "occurrences": ticket.occurrences,
        "title": ticket.human.title,
        "target": diagnosis.target if diagnosis else "",
        "cause": (diagnosis.cause or "") if diagnosis else "",
        "verdict": diagnosis.verdict.value if diagnosis else "",
        "closed_as": ticket.closed_as,
        "assignee": assignment.users[0] if assignment and assignment.users else "",
    }


def _bound(wanted: Wanted, limit: int, offset: int = 0) -> dict[str, Any]:
    single = ("category", "component", "assignee", "fault", "dedup_key")
    values = {name: getattr(wanted, name) for name in single}
    words = [_lower(word) for word in clean(wanted.words, 300).split()[:_WORDS]]
    return {
        **{name: None if value is None else clean(value, human.NAME) for name, value in values.items()},
        "states": json.dumps([*wanted.states]),
        "severities": json.dumps([severity.value for severity in wanted.severities]),
        "origins": json.dumps([*wanted.origins]),
        **dict(zip((f"word{n}" for n in range(_WORDS)), [*words, *[""] * _WORDS], strict=False)),
        "limit": max(0, limit),
        "offset": max(0, offset),
    }


def _lower(text: str) -> str:
    """Return `text` with ASCII letters in lower case, as SQLite's lower() does."""
    return "".join(char.lower() if char.isascii() else char for char in text)
