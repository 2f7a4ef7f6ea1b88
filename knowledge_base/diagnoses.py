"""Rows of diagnoses, within an open transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from sqlite3 import Connection


def put_diagnosis(db: Connection, diagnosis: Diagnosis) -> None:
    """Store `diagnosis`, replacing an earlier one with its id."""
    ticket = int(diagnosis.ticket) if diagnosis.ticket else None
    db.execute(
        "INSERT OR REPLACE INTO diagnoses (id, created, verdict, cause, ticket, body) VALUES (?, ?, ?, ?, ?, ?)",
        [
            diagnosis.id,
            diagnosis.created,
            diagnosis.verdict.value,
            diagnosis.cause,
            ticket,
            diagnosis.model_dump_json(),
        ],
    )


def get_diagnosis(file: Database, db: Connection, id: str) -> Diagnosis:
    """Return the diagnosis `id`; raise `ToolError` (not_found) if there is none."""
    row = db.execute("SELECT body FROM diagnoses WHERE id = ?", [clean(id, 200)]).fetchone()
    if row is None:
        raise ToolError(ErrorCode.NOT_FOUND, f"there is no diagnosis {id!r}", "run `whystall diagnose` first")
    return file.record(Diagnosis, row[0])


def diagnoses_of(file: Database, db: Connection, comm: str, limit: int) -> list[Diagnosis]:
    """Return the latest `limit` diagnoses whose victim is called `comm`, the newest first."""
    query = "SELECT body FROM diagnoses WHERE json_extract(body, '$.victim.comm') = ? ORDER BY created DESC LIMIT ?"
    return [file.record(Diagnosis, body) for (body,) in db.execute(query, [comm, limit]).fetchall()]


class DiagnosisLine(NamedTuple):
    """A diagnosis in a list. `cause`, `ticket`: empty without one."""

    id: str
    created: str
    verdict: str
    cause: str
    ticket: str
    target: str
    symptom: str


def latest_lines(db: Connection, limit: int, offset: int) -> list[DiagnosisLine]:
    """Return diagnoses after the first `offset`, the newest first."""
    query = (
        "SELECT id, created, verdict, cause, ticket, json_extract(body, '$.target'), json_extract(body, '$.symptom')"
        " FROM diagnoses WHERE id IN (SELECT id FROM diagnoses ORDER BY created DESC, id DESC LIMIT ? OFFSET ?)"
        " ORDER BY created DESC, id DESC"  # the records of the others are not read
    )
    return [DiagnosisLine(*(str(value or "") for value in row)) for row in db.execute(query, [limit, offset])]


def counted_in(db: Connection, id: str) -> int | None:
    """Return the ticket that the stored diagnosis `id` counts in."""
    row = db.execute("SELECT ticket FROM diagnoses WHERE id = ?", [id]).fetchone()
    return None if row is None or row[0] is None else int(row[0])
