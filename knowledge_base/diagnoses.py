"""Diagnoses in the file, within a transaction that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Diagnosis

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase


def put_diagnosis(db: SqliteDatabase, diagnosis: Diagnosis) -> None:
    """Store `diagnosis`, in place of an earlier one with its id."""
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


def counted_in(db: SqliteDatabase, id: str) -> int | None:
    """The ticket that the stored diagnosis `id` is counted in."""
    row = db.execute("SELECT ticket FROM diagnoses WHERE id = ?", [id]).fetchone()
    return None if row is None or row[0] is None else int(row[0])
