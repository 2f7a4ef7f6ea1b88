"""The knowledge base: past incidents, diagnoses and tickets in one SQLite file."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whystall.knowledge_base import matching
from whystall.knowledge_base import tickets as drafting
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence, evidence_of
from whystall.knowledge_base.incidents import curated, curated_hash
from whystall.knowledge_base.indexing import index_hash, put_incident, reindex
from whystall.knowledge_base.models import Diagnosis, Incident, Match, Ticket, Verification
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase


def default_path() -> Path:
    """The knowledge base of this host and user; see `home`."""
    return home() / "knowledge.db"


class KnowledgeBase:
    """An open knowledge base. Writing is refused with `ToolError` (database) where `read_only` is true.

    Every method may raise `ToolError`: database (damaged, locked), disk_full; what a method has returned
    from is stored.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file `path`, and bring the curated incidents in it up to those of this version."""
        self._file = Database(Path(path))
        try:
            self._seed()
        except BaseException:
            self._file.close()
            raise

    @property
    def read_only(self) -> bool:
        """Whether the file may only be read."""
        return self._file.read_only

    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._file.close()

    def __enter__(self) -> KnowledgeBase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- incidents ------------------------------------------------------------------------------------------------

    def add_incident(self, incident: Incident) -> Incident:
        """Store `incident` as the user's own and return it as stored; `ToolError` (bad_argument): the id is
        taken.
        """
        if incident.id.startswith(drafting.LESSON):
            raise ToolError(
                ErrorCode.BAD_ARGUMENT, f"ids in {drafting.LESSON}* are for resolved tickets", "choose another id"
            )
        own = incident.model_copy(update={"origin": "user"})
        with self._file.write() as db:
            if db.execute("SELECT 1 FROM incidents WHERE id = ?", [own.id]).fetchone():
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"incident {own.id!r} exists", "choose another id")
            put_incident(db, own)
        return own

    def get_incident(self, id: str) -> Incident:
        """The incident `id`; `ToolError` (not_found) when there is none."""
        with self._file.read() as db:
            row = db.execute("SELECT body FROM incidents WHERE id = ?", [_plain(id)]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"no incident is called {id!r}", "find one with `whystall kb search`")
        return self._file.record(Incident, row[0])

    def search(self, text: str, limit: int = 5) -> list[Match]:
        """Incidents ranked by their words in common with `text`; see `matching.search`."""
        return matching.search(self._file, text, limit)

    def match(self, diagnosis: Diagnosis) -> list[Match]:
        """Past incidents that resemble `diagnosis`; see `matching.similar`."""
        return matching.similar(self._file, evidence_of(diagnosis))

    def similar(self, evidence: Evidence, limit: int = 5) -> list[Match]:
        """Past incidents that resemble a case of which `evidence` is known; see `matching.similar`."""
        return matching.similar(self._file, evidence, limit)

    # --- diagnoses ------------------------------------------------------------------------------------------------

    def save_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Store `diagnosis`, in place of an earlier one with its id."""
        with self._file.write() as db:
            _put_diagnosis(db, diagnosis)

    def get_diagnosis(self, id: str) -> Diagnosis:
        """The diagnosis `id`; `ToolError` (not_found) when there is none."""
        with self._file.read() as db:
            row = db.execute("SELECT body FROM diagnoses WHERE id = ?", [_plain(id)]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"no diagnosis is called {id!r}", "run `whystall diagnose` first")
        return self._file.record(Diagnosis, row[0])

    # --- tickets --------------------------------------------------------------------------------------------------

    def draft_ticket(self, diagnosis: Diagnosis | str) -> Ticket:
        """The ticket for `diagnosis` (or the stored one of that id).

        An open ticket for the same fault counts one more occurrence and shows the newer diagnosis; the same
        diagnosis counts once. `ToolError` (bad_argument) for a healthy job.
        """
        if isinstance(diagnosis, str):
            diagnosis = self.get_diagnosis(diagnosis)
        fresh = drafting.draft(diagnosis, load_causes(), _now())
        with self._file.write() as db:
            row = db.execute(
                "SELECT id, body FROM tickets WHERE dedup_key = ? AND state = 'open'", [fresh.dedup_key]
            ).fetchone()
            if row is None:
                number = db.execute(
                    "INSERT INTO tickets (dedup_key, state, created, updated, body) VALUES (?, 'open', ?, ?, '')",
                    [fresh.dedup_key, fresh.created, fresh.updated],
                ).lastrowid
                ticket = _named(fresh, str(number), diagnosis)
            else:
                ticket = self._file.record(Ticket, row[1])
                counted = db.execute("SELECT ticket FROM diagnoses WHERE id = ?", [diagnosis.id]).fetchone()
                if counted is not None and counted[0] == row[0]:
                    return ticket
                ticket = drafting.again(ticket, _named(fresh, ticket.id, diagnosis))
            _put_ticket(db, ticket)
            _put_diagnosis(db, diagnosis.model_copy(update={"ticket": ticket.id}))
        return ticket

    def list_tickets(self, state: Literal["open", "resolved"] | None = None, limit: int = 100) -> list[Ticket]:
        """Tickets, last changed first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT body FROM tickets WHERE ? IS NULL OR state = ? ORDER BY updated DESC, id DESC LIMIT ?",
                [state, state, limit],
            ).fetchall()
        return [self._file.record(Ticket, row[0]) for row in rows]

    def get_ticket(self, id: str) -> Ticket:
        """The ticket `id`; `ToolError` (not_found) when there is none."""
        with self._file.read() as db:
            return self._ticket(db, id)

    def resolve_ticket(self, id: str, because: str) -> Ticket:
        """Close ticket `id` and remember why as an incident ``ticket-ID``, so that the same fault is
        recognised.

        `ToolError`: not_found; bad_argument when it is resolved already or no reason is given.
        """
        reason = clean(because.strip(), 2000)
        if not reason:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "no reason is given", "say in a sentence what solved it")
        with self._file.write() as db:
            ticket = self._ticket(db, id)
            if ticket.state == "resolved":
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"ticket {id} is resolved", "see `whystall tickets show`")
            ticket = ticket.model_copy(update={"state": "resolved", "resolution": reason, "updated": _now()})
            _put_ticket(db, ticket)
            put_incident(db, drafting.lesson(ticket, load_causes()))
        return ticket

    def add_verification(self, id: str, verification: Verification) -> Ticket:
        """Append `verification` to ticket `id`; `ToolError` (not_found) when there is none."""
        with self._file.write() as db:
            ticket = self._ticket(db, id)
            done = [*ticket.verifications, verification]
            ticket = ticket.model_copy(update={"verifications": done, "updated": _now()})
            _put_ticket(db, ticket)
        return ticket

    def _ticket(self, db: SqliteDatabase, id: str) -> Ticket:
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 16 else -1
        row = db.execute("SELECT body FROM tickets WHERE id = ?", [number]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no ticket {id!r}", "see `whystall tickets list`")
        return self._file.record(Ticket, row[0])

    # --- within ---------------------------------------------------------------------------------------------------

    def _seed(self) -> None:
        """Put the curated incidents of this version in place of those of another; the user's own are left
        alone.
        """
        if self._file.read_only:
            return
        wanted = {"curated": curated_hash(), "index": index_hash()}
        with self._file.read() as db:
            had = dict(db.execute("SELECT key, value FROM state WHERE key IN ('curated', 'index')").fetchall())
        if had == wanted:
            return
        with self._file.write() as db:
            db.execute("DELETE FROM incidents WHERE origin = 'curated'")
            if had.get("index") != wanted["index"]:
                reindex(self._file, db)
            taken = {id for (id,) in db.execute("SELECT id FROM incidents")}
            for incident in curated():
                if incident.id not in taken:
                    put_incident(db, incident)
            for key, value in wanted.items():
                db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", [key, value])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _plain(id: str) -> str:
    """`id` as SQLite can bind it (it has no lone surrogates, which an argument of a command may)."""
    return clean(id, 200)


def _named(ticket: Ticket, id: str, diagnosis: Diagnosis) -> Ticket:
    return ticket.model_copy(update={"id": id, "diagnosis": diagnosis.model_copy(update={"ticket": id})})


def _put_ticket(db: SqliteDatabase, ticket: Ticket) -> None:
    db.execute(
        "UPDATE tickets SET state = ?, updated = ?, body = ? WHERE id = ?",
        [ticket.state, ticket.updated, ticket.model_dump_json(), int(ticket.id)],
    )


def _put_diagnosis(db: SqliteDatabase, diagnosis: Diagnosis) -> None:
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
