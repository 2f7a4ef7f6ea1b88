"""The knowledge base: past incidents, diagnoses and tickets in one SQLite file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base import tickets as drafting
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.data import ModelT
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.incidents import curated, curated_hash
from whystall.knowledge_base.models import Diagnosis, Incident, Match, Ticket, Verification
from whystall.knowledge_base.tokens import Terms, terms
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

# A long ticket text has hundreds of words: the rarest find it, and the time of a query grows with the others.
_QUERY_TERMS = 32
_COUNTED = 2000  # distinct terms whose rarity is looked up; no ticket or log excerpt has more
# Chinese pairs are rare in a base that is half English, so bm25 overrates them beside words and concepts.
_GRAM_WEIGHT = 0.25
_MATCHES = 5


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
            _put_incident(db, own)
        return own

    def get_incident(self, id: str) -> Incident:
        """The incident `id`; `ToolError` (not_found) when there is none."""
        with self._file.read() as db:
            row = db.execute("SELECT body FROM incidents WHERE id = ?", [_plain(id)]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"no incident is called {id!r}", "find one with `whystall kb search`")
        return self._record(Incident, row[0])

    def search(self, text: str, limit: int = 5) -> list[Match]:
        """Incidents ranked by their words in common with `text`, in either language; empty when there are
        none.

        Any text is allowed: it is never read as a query language. `Match.shared` lists the words.
        """
        query = terms(text)
        found = self._ranked(query, max(1, min(limit, 100)))
        return [
            Match(
                incident=incident.id,
                title=incident.title,
                how="text",
                shared=[f"word:{word.removeprefix('c_')}" for word in _common(query, incident)[:12]],
                rank=rank,
            )
            for rank, incident in enumerate(found, 1)
        ]

    def match(self, diagnosis: Diagnosis) -> list[Match]:
        """Past incidents that resemble `diagnosis`, best first; empty when nothing discriminating is shared.

        Exact signatures come first. An incident found by text is accepted only if it shares a kind of
        finding that says to what time was lost, and does not contradict the cause. Scores decide the order,
        never whether to accept.
        """
        mine = keys.signatures(diagnosis)
        shared = self._by_signature(mine)
        kinds = keys.discriminating_kinds(diagnosis)
        order = {incident.id: i for i, incident in enumerate(self._ranked(_query(diagnosis), 50))}
        found: list[tuple[tuple[float, int], Match]] = []
        for incident in self._incidents([*shared, *(i for i in order if i not in shared)]):
            exact = [key for key in mine if key in shared.get(incident.id, ())]
            contradicts = diagnosis.cause is not None and incident.cause not in (None, diagnosis.cause)
            common = sorted(kinds & set(incident.kinds))
            if not exact and (contradicts or not common):
                continue
            match = Match(
                incident=incident.id,
                title=incident.title,
                how="signature" if exact else "text",
                shared=exact + [f"kind:{kind}" for kind in common],
                rank=1,
            )
            points = sum(10 ** keys.weight(key) for key in exact) + len(common)
            found.append(((-points, order.get(incident.id, len(order))), match))
        best = [match for _, match in sorted(found, key=lambda pair: pair[0])[:_MATCHES]]
        return [match.model_copy(update={"rank": rank}) for rank, match in enumerate(best, 1)]

    def _by_signature(self, values: Sequence[str]) -> dict[str, set[str]]:
        """Incidents that hold any of `values`, with those they hold."""
        found: dict[str, set[str]] = {}
        with self._file.read() as db:
            for value in values:
                for (incident,) in db.execute("SELECT incident FROM signatures WHERE value = ?", [value]):
                    found.setdefault(incident, set()).add(value)
        return found

    def _incidents(self, ids: Iterable[str]) -> list[Incident]:
        with self._file.read() as db:
            rows = [db.execute("SELECT body FROM incidents WHERE id = ?", [id]).fetchone() for id in ids]
        return [self._record(Incident, row[0]) for row in rows if row is not None]

    def _ranked(self, query: Terms, limit: int) -> list[Incident]:
        with self._file.read() as db:
            expression = _expression(db, query)
            if not expression:
                return []
            rows = db.execute(
                "SELECT body FROM incidents_fts JOIN incidents ON incidents.n = incidents_fts.rowid"
                " WHERE incidents_fts MATCH ? ORDER BY bm25(incidents_fts, 1.0, ?), incidents.n LIMIT ?",
                [expression, _GRAM_WEIGHT, limit],
            ).fetchall()
        return [self._record(Incident, row[0]) for row in rows]

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
        return self._record(Diagnosis, row[0])

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
                ticket = self._record(Ticket, row[1])
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
        return [self._record(Ticket, row[0]) for row in rows]

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
            _put_incident(db, drafting.lesson(ticket, load_causes()))
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
        return self._record(Ticket, row[0])

    # --- within ---------------------------------------------------------------------------------------------------

    def _record(self, model: type[ModelT], body: str) -> ModelT:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise ToolError(
                ErrorCode.DATABASE,
                f"{self._file.path} holds a record that cannot be read: {error.errors()[0]['msg']}",
                "upgrade whystall if a newer one wrote it, else restore a copy",
            ) from None

    def _seed(self) -> None:
        """Put the curated incidents of this version in place of those of another; the user's own are left
        alone.
        """
        if self._file.read_only:
            return
        wanted = curated_hash()
        with self._file.read() as db:
            row = db.execute("SELECT value FROM state WHERE key = 'curated'").fetchone()
        if row is not None and row[0] == wanted:
            return
        with self._file.write() as db:
            db.execute("DELETE FROM signatures WHERE incident IN (SELECT id FROM incidents WHERE origin = 'curated')")
            db.execute("DELETE FROM incidents WHERE origin = 'curated'")
            taken = {id for (id,) in db.execute("SELECT id FROM incidents")}
            for incident in curated():
                if incident.id not in taken:
                    _put_incident(db, incident)
            db.execute("INSERT OR REPLACE INTO state (key, value) VALUES ('curated', ?)", [wanted])


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


def _put_incident(db: SqliteDatabase, incident: Incident) -> None:
    found = terms(_text(incident))
    db.execute(
        "INSERT INTO incidents (id, origin, body, words, grams) VALUES (?, ?, ?, ?, ?)",
        [incident.id, incident.origin, incident.model_dump_json(), " ".join(found.words), " ".join(found.grams)],
    )
    own = [*incident.signatures, *([f"cause:{incident.cause}"] if incident.cause else [])]
    for value in dict.fromkeys(own):
        db.execute("INSERT INTO signatures (value, incident) VALUES (?, ?)", [value, incident.id])


def _text(incident: Incident) -> str:
    """What an incident is found by."""
    words = (incident.title, incident.symptom, incident.root_cause, incident.fix)
    names = [incident.id, incident.cause or "", *incident.components, *incident.kinds, incident.source]
    return "\n".join([*(w.en for w in words), *(w.zh for w in words), *names])


def _query(diagnosis: Diagnosis) -> Terms:
    """What a case is looked up by: the symptom as told, the cause's name, and what the evidence is about."""
    cause = load_causes().get(diagnosis.cause or "")
    words = [cause.title.en, cause.title.zh] if cause else []
    return terms(
        "\n".join([diagnosis.symptom, *words, *keys.operations(diagnosis), *keys.discriminating_kinds(diagnosis)])
    )


def _expression(db: SqliteDatabase, query: Terms) -> str:
    """An FTS5 expression for any of the rarest terms of `query`; empty when it has none.

    Terms hold only letters, digits, underscores and Chinese characters; quoting makes ``and`` or ``near`` a
    word.
    """
    quoted = [f'"{term}"' for term in (*query.words, *query.grams)][:_COUNTED]
    if len(quoted) > _QUERY_TERMS:
        count = "SELECT count(*) FROM incidents_fts WHERE incidents_fts MATCH ?"
        quoted.sort(key=lambda term: db.execute(count, [term]).fetchone()[0] or float("inf"))
    return " OR ".join(quoted[:_QUERY_TERMS])


def _common(query: Terms, incident: Incident) -> list[str]:
    """Words of `query` that `incident` has too; pairs of Chinese characters only where there is no word."""
    its = terms(_text(incident))
    return [w for w in query.words if w in its.words] or [g for g in query.grams if g in its.grams]
