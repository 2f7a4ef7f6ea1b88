"""The knowledge base: past incidents, diagnoses and tickets in one SQLite file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whystall.knowledge_base import matching, occurrences
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence, evidence_of
from whystall.knowledge_base.journal.audit import Audit
from whystall.knowledge_base.journal.deliveries import Deliveries
from whystall.knowledge_base.journal.messages import Messages
from whystall.knowledge_base.journal.seen import Seen
from whystall.knowledge_base.journal.tasks import Tasks
from whystall.knowledge_base.models import Diagnosis, Incident, Match, Verdict
from whystall.knowledge_base.seeding import seed
from whystall.knowledge_base.shelf import Cards
from whystall.knowledge_base.tickets import drafting
from whystall.knowledge_base.tickets.models import Ticket, Verification
from whystall.knowledge_base.times import now
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

_REASON = 2000  # characters


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
            seed(self._file)
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

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything that is changed in the block, by whatever method, is stored together or not at all.

        Another thread waits meanwhile: nothing slow belongs inside, and no ``await``.
        """
        with self._file.write():
            yield

    # --- what is under way ----------------------------------------------------------------------------------------

    @cached_property
    def tasks(self) -> Tasks:
        """What is to be done in the background."""
        return Tasks(self._file)

    @cached_property
    def deliveries(self) -> Deliveries:
        """What trackers are to be told of tickets."""
        return Deliveries(self._file)

    @cached_property
    def seen(self) -> Seen:
        """What came in and was taken already."""
        return Seen(self._file)

    @cached_property
    def messages(self) -> Messages:
        """What is to be said in chats."""
        return Messages(self._file)

    @cached_property
    def audit(self) -> Audit:
        """Who sent or changed what."""
        return Audit(self._file)

    # --- incidents ------------------------------------------------------------------------------------------------

    @cached_property
    def cards(self) -> Cards:
        """The incidents as cards, and their life."""
        return Cards(self._file)

    def add_incident(self, incident: Incident, by: str = "") -> Incident:
        """Store `incident` as the user's own; see `Cards.add`."""
        return self.cards.add(incident, by)

    def get_incident(self, id: str) -> Incident:
        """The incident `id`; `ToolError` (not_found) when there is none."""
        return self.cards.get(id)

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

    def remember(self, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
        """Store `diagnosis` with the past incidents it resembles, counted as an occurrence of the one whose fault it
        shows, and with a drafted ticket where `ticket` asks for one; returns it so completed. Nothing of this is done
        for a healthy job but to store it.

        The match of the incident it is counted for says how often that was seen with this time, and when before.
        """
        if diagnosis.verdict is Verdict.HEALTHY:
            self.save_diagnosis(diagnosis)
            return diagnosis
        matches = self.match(diagnosis)
        with self._file.write() as db:
            again = occurrences.recur(db, diagnosis)
            counted = [
                m.model_copy(update={"occurrences": m.occurrences + 1}) if m.incident == again else m for m in matches
            ]
            diagnosis = diagnosis.model_copy(update={"matches": counted})
            if ticket:
                diagnosis = diagnosis.model_copy(update={"ticket": self._draft(db, diagnosis).id})
            _put_diagnosis(db, diagnosis)
        return diagnosis

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
        with self._file.write() as db:
            return self._draft(db, diagnosis)

    def _draft(self, db: SqliteDatabase, diagnosis: Diagnosis) -> Ticket:
        fresh = drafting.draft(diagnosis, load_causes(), now())
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
        numbered = diagnosis.model_copy(update={"ticket": ticket.id})
        _put_diagnosis(db, numbered)
        occurrences.recur(db, numbered)  # an outage that is counted goes by its ticket from now on
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

    def ticket_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Ids of tickets that begin with `prefix`, the latest first."""
        wanted = _plain(prefix)
        with self._file.read() as db:
            rows = db.execute(
                "SELECT id FROM tickets WHERE substr(id, 1, ?) = ? ORDER BY id DESC LIMIT ?",
                [len(wanted), wanted, max(0, limit)],
            ).fetchall()
        return [str(row[0]) for row in rows]

    def resolve_ticket(self, id: str, because: str, by: str = "") -> Ticket:
        """Close ticket `id` and remember why: on the card of its fault, or on a draft ``ticket-ID`` where it has none
        (`Ticket.card`). `by`: who says so.

        `ToolError`: not_found; bad_argument when it is resolved already, or no reason or too long a one is given.
        """
        reason = " ".join(because.split())
        if not reason:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "no reason is given", "say in a sentence what solved it")
        if len(reason) > _REASON:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "the reason is too long", f"say it in {_REASON} characters")
        with self._file.write() as db:
            ticket = self._ticket(db, id)
            if ticket.state == "resolved":
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"ticket {id} is resolved", "see `whystall tickets show`")
            solved = {"state": "resolved", "resolution": clean(reason, 2 * _REASON), "updated": now()}
            ticket = ticket.model_copy(update=solved)
            _put_ticket(db, ticket)
            if ticket.diagnosis is not None:
                ticket = ticket.model_copy(update={"card": self.cards.learn(db, ticket, by).id})
                _put_ticket(db, ticket)
        return ticket

    def add_verification(self, id: str, verification: Verification) -> Ticket:
        """Append `verification` to ticket `id`; `ToolError` (not_found) when there is none."""
        with self._file.write() as db:
            ticket = self._ticket(db, id)
            done = [*ticket.verifications, verification]
            ticket = ticket.model_copy(update={"verifications": done, "updated": now()})
            _put_ticket(db, ticket)
        return ticket

    def _ticket(self, db: SqliteDatabase, id: str) -> Ticket:
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 16 else -1
        row = db.execute("SELECT body FROM tickets WHERE id = ?", [number]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no ticket {id!r}", "see `whystall tickets list`")
        return self._file.record(Ticket, row[0])


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
