"""Store of cards (past incidents): review, retirement, feedback, recurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from whystall.knowledge_base import card_life, exchange, feedback, occurrences
from whystall.knowledge_base import statistics as counting
from whystall.knowledge_base.cards import draft_card, reported_card
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.diagnoses import get_diagnosis
from whystall.knowledge_base.exchange import Imported
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Diagnosis, Feedback, Incident, Record
from whystall.knowledge_base.occurrences import Recurrence
from whystall.knowledge_base.statistics import Stats
from whystall.knowledge_base.ticket_models import LESSON, Ticket
from whystall.knowledge_base.times import now
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from sqlite3 import Connection

State = Literal["draft", "reviewed", "retired"]
_COMMENT = 1000
_ENOUGH = 10_000


class CardStore:
    """The cards in `file`; errors as of `KnowledgeBase`. `by`: the person or component that makes a change."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def get(self, id: str) -> Incident:
        """Return the card `id`; raise `ToolError` (not_found) if there is none."""
        with self._file.read() as db:
            return self._get(db, id)

    def list(self, state: State | None = None, prefix: str = "", limit: int = 100) -> Sequence[Incident]:
        """Return cards in `state` (None: any) whose ids start with `prefix`, latest changed first."""
        first = clean(prefix, card_life.NAME)
        with self._file.read() as db:
            rows = db.execute(
                "SELECT body FROM incidents WHERE (? IS NULL OR state = ?) AND id >= ? AND id < ?"
                " ORDER BY updated DESC, id LIMIT ?",
                [state, state, first, f"{first}\U0010ffff", max(0, min(limit, _ENOUGH))],
            ).fetchall()
        return [self._file.record(Incident, row[0]) for row in rows]

    def backlog(self, limit: int = 100) -> Sequence[Incident]:
        """Return the cards to review: those with too many rejected matches, those with an unreviewed remedy, then
        drafts; oldest first within each.
        """
        limit = max(0, min(limit, _ENOUGH))
        with self._file.read() as db:
            worst = [id for id, record in feedback.rated(db).items() if record.flagged]
            noted = db.execute(
                "SELECT DISTINCT i.id FROM occurrences o JOIN incidents i ON i.id = o.incident"
                " WHERE i.state = 'reviewed' AND i.body LIKE '%\"reviewed\":false%' ORDER BY i.updated, i.id LIMIT ?",
                [limit],
            ).fetchall()
            drafts = db.execute(
                "SELECT id FROM incidents WHERE state = 'draft' ORDER BY updated, id LIMIT ?", [limit]
            ).fetchall()
            ids = dict.fromkeys([*worst, *(id for (id,) in [*noted, *drafts])])
            rows = (db.execute("SELECT body FROM incidents WHERE id = ?", [id]).fetchone() for id in ids)
            cards = [self._file.record(Incident, row[0]) for row in rows if row is not None]
        return [c for c in cards if c.state != "retired" and (c.id in worst or card_life.needs_review(c))][:limit]

    def track_record(self, id: str) -> tuple[Recurrence, Record, Sequence[Feedback]]:
        """Return how often the incident `id` recurred, how well its card matched, and the latest feedback on it."""
        with self._file.read() as db:
            return occurrences.recurrences(db, [id])[id], feedback.records(db, [id])[id], feedback.feedback_on(db, id)

    def records(self, ids: Sequence[str]) -> dict[str, Record]:
        with self._file.read() as db:
            return feedback.records(db, ids)

    def stats(self) -> Stats:
        with self._file.read() as db:
            return counting.stats(db)

    def add(self, incident: Incident, by: str = "") -> Incident:
        """Store `incident` as a new card of the user, with an empty history, and return it.

        Raises `ToolError` (bad_argument) if the id is taken or `card_life.checked` refuses the card.
        """
        if incident.id.startswith(LESSON):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"ids in {LESSON}* are for resolved tickets", "choose another id")
        at = now()
        fresh = incident.model_copy(update={"origin": "user", "created": at, "history": [], "notes": []})
        own = card_life.with_entry(card_life.checked(fresh), "added", by, at)
        with self._file.write() as db:
            if db.execute("SELECT 1 FROM incidents WHERE id = ?", [own.id]).fetchone():
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"incident {own.id!r} exists", "choose another id")
            put_card(db, own)
        return own

    def record(
        self,
        *,
        title: str,
        symptom: str,
        fix: str,
        root_cause: str = "",
        cause: str | None = None,
        diagnosis: str | None = None,
        by: str = "assistant",
    ) -> Incident:
        """Store a draft from a person's texts, with the evidence of the stored `diagnosis` if given.

        Identical content is not stored again: the existing card is returned. Raises `ToolError`: bad_argument for a
        text that is empty or too long, or an unknown cause; not_found for the diagnosis.
        """
        causes = load_causes()
        if cause is not None and cause not in causes:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown cause {cause!r}", f"valid: {', '.join(sorted(causes))}")
        about = self._diagnosis(diagnosis) if diagnosis is not None else None
        texts = {"title": title, "symptom": symptom, "fix": fix, "root_cause": root_cause}
        made = reported_card("draft", texts, causes.get(cause or ""), about, clean(by, card_life.NAME), now())
        made = card_life.checked(made)
        hash = card_life.content_hash(made)
        card = made.model_copy(update={"id": exchange.content_id(hash)})
        with self._file.write() as db:
            if (known := exchange.card_with_content(db, hash)) is not None:
                return self._get(db, known)
            put_card(db, card)
        return card

    def accept(self, id: str, by: str = "", *, shown: Incident | None = None) -> Incident:
        """Mark the card `id` and its notes as reviewed, so that it may be quoted as known; earlier feedback no longer
        flags it.

        `shown`: the card as the reviewer read it. Raises `ToolError` (bad_argument) if it was changed since.
        """
        with self._file.write() as db:
            card = self._get(db, id)
            if shown is not None and card != shown:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{card.id} was changed meanwhile", "read it again")
            card = card_life.accepted(card, by, now())
            feedback.settle(db, card.id)
            put_card(db, card)
        return card

    def retire(self, id: str, because: str, by: str = "") -> Incident:
        """Retire the card `id`: keep it, but match it no more. Raises `ToolError` (bad_argument) without a reason."""
        reason = clean(" ".join(because.split()), card_life.TEXT)
        if not reason:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "no reason given", "state why it must not be used")
        with self._file.write() as db:
            card = card_life.with_entry(self._get(db, id), "retired", by, now(), reason, state="retired")
            feedback.settle(db, card.id)
            put_card(db, card)
        return card

    def edit(self, id: str, changes: Mapping[str, Any], by: str = "") -> Incident:
        """Change the card `id`; see `card_life.edited`. Curated cards are refused (bad_argument): the next version of
        whystall would restore them.
        """
        with self._file.write() as db:
            before = self._get(db, id)
            if before.origin == "curated":
                remedy = "retire it, and add a card of your own with `whystall kb add`"
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{before.id} is a curated card", remedy)
            card = card_life.edited(before, changes, by, now())
            put_card(db, card)
        return card

    def feedback(
        self, incident: str, verdict: Literal["helped", "wrong"], *, diagnosis: str, comment: str = ""
    ) -> Record:
        """Store feedback on the match of `incident` with `diagnosis`, replacing earlier feedback on it.

        Raises `ToolError`: not_found for either; bad_argument if that diagnosis did not match that card, or the comment
        is too long.
        """
        if len(comment) > _COMMENT:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "the comment is too long", f"at most {_COMMENT} characters")
        matched = [match.incident for match in self._diagnosis(diagnosis).matches]
        card = self.get(incident)
        if card.id not in matched:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"diagnosis {diagnosis} did not match {card.id}",
                f"it matched {', '.join(matched) or 'no card'}",
            )
        comment = clean(" ".join(comment.split()), 2 * _COMMENT)
        given = Feedback(
            incident=card.id, diagnosis=clean(diagnosis, card_life.NAME), verdict=verdict, comment=comment, at=now()
        )
        with self._file.write() as db:
            feedback.put(db, given)
            return feedback.records(db, [card.id])[card.id]

    def export(self, write: Callable[[str], object]) -> int:
        """Write every card as a line of JSON with `write`; return their number. See `exchange`."""
        return exchange.export(self._file, write)

    def import_(self, stream: BinaryIO, *, reviewed: bool = False, skip: bool = False, by: str = "") -> Imported:
        """Import the cards of `stream`, all or none; see `exchange.read` and `exchange.store_imported`."""
        with exchange.read(stream, skip=skip) as lines, self._file.write() as db:
            return exchange.store_imported(db, lines, put_card, reviewed=reviewed, by=by)

    def learn(self, db: Connection, ticket: Ticket, by: str) -> Incident:
        """Update the card of the fault of the resolved `ticket` with what solved it, or draft one, within the open
        transaction.

        Raises `ToolError` (bad_argument) for a ticket without a diagnosis.
        """
        row = db.execute(
            "SELECT body FROM diagnoses WHERE ticket = ? ORDER BY created, rowid LIMIT 1", [int(ticket.id)]
        ).fetchone()
        first = self._file.record(Diagnosis, row[0]) if row is not None else None
        diagnosis = ticket.diagnosed()
        known = occurrences.card_of(db, diagnosis)
        if known is not None:
            card = card_life.with_remedy(self._get(db, known), ticket, by)
        else:
            card = draft_card(ticket, load_causes(), first, by)
        put_card(db, card)
        occurrences.record_sighting(db, card.id, diagnosis, int(ticket.id))
        return card

    def _get(self, db: Connection, id: str) -> Incident:
        row = db.execute("SELECT body FROM incidents WHERE id = ?", [clean(id, card_life.NAME)]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no incident {id!r}", "find one with `whystall kb search`")
        return self._file.record(Incident, row[0])

    def _diagnosis(self, id: str) -> Diagnosis:
        with self._file.read() as db:
            return get_diagnosis(self._file, db, id)


def put_card(db: Connection, card: Incident) -> None:
    """Store `card` and the hash of its content, within the open transaction."""
    put_incident(db, card)
    exchange.remember_content(db, card)
