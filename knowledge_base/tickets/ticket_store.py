"""Store of tickets. Every change increments the revision and adds an entry to the ticket's history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base import occurrences
from whystall.knowledge_base.card_store import CardStore
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.diagnoses import counted_in, get_diagnosis, put_diagnosis
from whystall.knowledge_base.faults import dedup_key as fault_of
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.ticket_models import (
    LESSON,
    TICKET_VERSION,
    Assignment,
    ClosedAs,
    Comment,
    Event,
    Line,
    Link,
    Ticket,
    Verification,
    What,
)
from whystall.knowledge_base.tickets import drafting, human, life, rows
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.knowledge_base.times import now
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from sqlite3 import Connection

_OWN = frozenset({"schema_version", "id", "created", "updated", "revision", "state", "closed_as", "ended"})
_REFUTED: tuple[ClosedAs, ...] = ("no_fault", "duplicate", "cannot_reproduce")
"""A ticket closed as one of these was wrong or is described by another, so its draft card is retired."""


class TicketStore:
    """The tickets in `file`; resolved ones update `cards`.

    Methods raise `ToolError`: as `KnowledgeBase`, not_found for an unknown ticket, bad_argument for a transition that
    its state does not allow. `by`: the actor; `at`: RFC 3339, empty for now. A call that changes nothing adds no
    revision and no history.
    """

    def __init__(self, file: Database, cards: CardStore) -> None:
        self._file = file
        self._cards = cards

    # --- reading --------------------------------------------------------------------------------------------------

    def get(self, id: str) -> Ticket:
        with self._file.read() as db:
            return self._get(db, id)

    def original(self, id: str) -> Ticket:
        """Return the ticket at the end of the chain of duplicates from `id`; itself if it is no duplicate."""
        with self._file.read() as db:
            return self._original(db, self._get(db, id))

    def counted_in(self, id: str) -> Sequence[str]:
        """Return `id` and the ids of all its duplicates, transitively."""
        with self._file.read() as db:
            found = [id]
            for one in found:  # grows during iteration
                links = self._get(db, one).links
                found += [link.ticket for link in links if link.kind == "duplicated_by" and link.ticket not in found]
        return found

    def list(self, wanted: Wanted | None = None, limit: int = 100) -> Sequence[Ticket]:
        """Return whole tickets, last changed first."""
        with self._file.read() as db:
            return [self._file.record(Ticket, body) for body in rows.bodies(db, wanted or Wanted(), limit)]

    def lines(self, wanted: Wanted | None = None, limit: int = 100, offset: int = 0) -> Sequence[Line]:
        """Return summary lines of tickets after the first `offset`, last changed first, without reading their
        records.
        """
        with self._file.read() as db:
            return rows.listed(db, wanted or Wanted(), limit, offset)

    def hosts(self) -> Sequence[tuple[str, int, str]]:
        """Return the hosts whose reports are live tickets here: name, number of tickets, last change."""
        with self._file.read() as db:
            return rows.hosts(db)

    def count(self, wanted: Wanted | None = None) -> int:
        with self._file.read() as db:
            return rows.count(db, wanted or Wanted())

    def ids(self, prefix: str = "", limit: int = 100) -> Sequence[str]:
        """Return ids that start with `prefix`, latest first."""
        with self._file.read() as db:
            return rows.ids(db, prefix, limit)

    def live(self, dedup_key: str) -> Ticket | None:
        """Return the live ticket that another report of `dedup_key` counts in; if the last one was closed as a
        duplicate, its live original.
        """
        with self._file.read() as db:
            return self._live_ticket(db, dedup_key)

    def of_fault(self, fault: str) -> Sequence[Ticket]:
        """Return the live tickets of `fault` (`Ticket.fault`), oldest first."""
        with self._file.read() as db:
            return [self._file.record(Ticket, body) for body in rows.live_of_fault(db, fault)]

    def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Return the newest `limit` history entries of ticket `id` numbered above `after`, oldest first."""
        with self._file.read() as db:
            return rows.events(db, self._get(db, id).id, after, limit)

    def create(self, fresh: Ticket, by: str, detail: str = "") -> Ticket:
        """Store `fresh` (its `id` is empty) and return it with its number.

        Raises `ToolError` (bad_argument) if a live ticket has its `dedup_key`: call `live` first, in the same
        transaction.
        """
        with self._file.write() as db:
            self._check_free(db, fresh)
            made = rows.insert(
                db, life.inert(fresh).model_copy(update={"schema_version": TICKET_VERSION, "revision": 1})
            )
            rows.add_event(db, made, "opened", by, made.updated, detail)
        return made

    def seen_again(self, id: str, by: str, at: str = "", detail: str = "", *, times: int = 1, **fields: Any) -> Ticket:
        """Add `times` occurrences to ticket `id` and set `fields`."""
        with self._file.write() as db:
            before = self._get(db, id)
            after = _with(before, {**fields, "occurrences": before.occurrences + max(0, times)})
            return self._put(db, before, after, "seen_again", by, at, detail)

    def draft(self, diagnosis: Diagnosis | str, by: str = "engine", labels: Mapping[str, str] | None = None) -> Ticket:
        """Return the ticket for `diagnosis` (an object or the id of a stored one). `labels`: of a new one.

        A live ticket of the same fault gets one more occurrence, counted once per diagnosis, and the newer diagnosis.
        Raises `ToolError` (bad_argument) for a healthy or idle job.
        """
        with self._file.write() as db:
            if isinstance(diagnosis, str):
                diagnosis = get_diagnosis(self._file, db, diagnosis)
            fresh = drafting.draft(diagnosis, load_causes(), now()).model_copy(update={"labels": dict(labels or {})})
            before = self._live_ticket(db, fresh.dedup_key)
            if before is None:
                ticket = rows.insert(db, fresh)
                ticket = _named(ticket, diagnosis)
                rows.update(db, ticket)
                rows.add_event(db, ticket, "opened", by, ticket.created, diagnosis.id)
            else:
                if counted_in(db, diagnosis.id) == int(before.id):
                    return before
                after = drafting.with_recurrence(before, _named(fresh.model_copy(update={"id": before.id}), diagnosis))
                ticket = self._put(db, before, after, "seen_again", by, fresh.created, diagnosis.id)
            self._count(db, diagnosis.model_copy(update={"ticket": ticket.id}))
        return ticket

    def attach(self, id: str, diagnosis: Diagnosis, by: str, at: str = "", **fields: Any) -> Ticket:
        """Replace the diagnosis of ticket `id`, and set the `fields` that follow from it; the same diagnosis again
        changes nothing.

        Sets `Ticket.fault` unless the job is healthy or idle. Other tickets of that fault are not changed: see
        `of_fault` and `duplicate`.
        """
        fault = None if diagnosis.verdict.no_fault else fault_of(diagnosis)
        with self._file.write() as db:
            before = self._get(db, id)
            diagnosis = diagnosis.model_copy(update={"ticket": before.id})
            if before.diagnosis is not None and before.diagnosis.id == diagnosis.id:
                return before
            after = _with(before, {**fields, "diagnosis": diagnosis, "fault": fault})
            ticket = self._put(db, before, after, "diagnosed", by, at, diagnosis.id)
            self._count(db, diagnosis)
        return ticket

    def verified(self, id: str, verification: Verification, by: str = "engine") -> Ticket:
        return self._change(
            id, lambda t: _with(t, {"verifications": [*t.verifications, verification]}), "verified", by, "", ""
        )

    # --- state --------------------------------------------------------------------------------------------------------

    def acknowledge(self, id: str, by: str, at: str = "") -> Ticket:
        """Mark ticket `id` as being worked on."""
        return self._change(id, life.acknowledged, "acknowledged", by, at, "")

    def resolve(self, id: str, because: str, by: str, at: str = "", *, lesson: bool = True) -> Ticket:
        """Mark ticket `id` as resolved, and store `because` on the card of its fault, or on a new draft ``ticket-ID``
        (`Ticket.card`).

        No card is written without a diagnosed fault, or if not `lesson`: `because` is then no solution.
        """
        at = at or now()
        with self._file.write() as db:
            before = self._get(db, id)
            after = life.resolved(before, because, at)
            if lesson:
                after = self._with_card(db, after, by, at)
            return self._put(db, before, after, "resolved", by, at, after.resolution)

    def close(self, id: str, as_: ClosedAs, by: str, at: str = "", because: str = "") -> Ticket:
        """Close ticket `id`. One closed as ``fixed`` with a reason updates a card, as `resolve` does; the draft of one
        that proves no fault is retired.
        """
        at = at or now()
        with self._file.write() as db:
            before = self._get(db, id)
            after = life.closed(before, as_, at, because)
            if as_ == "fixed" and because.strip() and before.card is None:
                after = self._with_card(db, after, by, at)
            elif as_ in _REFUTED:
                self._retire_card(before, f"ticket {before.id} was closed as {as_}", by)
            detail = f"{as_}: {after.resolution}" if because.strip() else as_
            return self._put(db, before, after, "closed", by, at, detail)

    def reopen(self, id: str, by: str, at: str = "", because: str = "") -> Ticket:
        """Reopen ticket `id`; a duplicate no longer counts in its original, and the draft card of its resolution is
        retired.

        Raises `ToolError` (bad_argument) if another live ticket has its `dedup_key`.
        """
        with self._file.write() as db:
            before = self._get(db, id)
            after = life.reopened(before)
            self._check_free(db, after)
            if self._retire_card(before, f"ticket {before.id} was reopened", by):
                after = after.model_copy(update={"card": None})
            other = life.original_of(before)
            while other is not None:  # originals further along the chain count it too
                original = self._get(db, other)
                kept = life.unlinked(original, before.id, ("duplicated_by",))
                kept = _with(kept, {"occurrences": max(1, kept.occurrences - before.occurrences)})
                self._put(db, original, kept, "unlinked", by, at, f"duplicated_by:{before.id}")
                other = life.original_of(original)
            return self._put(db, before, after, "reopened", by, at, because)

    def assign(self, id: str, assignment: Assignment, by: str, at: str = "") -> Ticket:
        """Assign ticket `id`; recorded as ``escalated`` if the level rises."""
        users = ", ".join(assignment.users)
        detail = f"{users or '-'} ({assignment.rule})"
        with self._file.write() as db:
            before = self._get(db, id)
            level = before.assignment.level if before.assignment else 0
            what: What = "escalated" if assignment.level > level else "assigned"
            return self._put(db, before, _with(before, {"assignment": assignment}), what, by, at, detail)

    # --- people's texts -----------------------------------------------------------------------------------------------

    def comment(self, id: str, comment: Comment) -> Ticket:
        """Add `comment` to ticket `id`, once per `key`."""
        return self._change(
            id, lambda t: life.commented(t, comment), "commented", comment.by, comment.at, _start(comment.text)
        )

    def edit(
        self, id: str, by: str, at: str = "", *, title: str | None = None, description: str | None = None
    ) -> Ticket:
        """Change title or description of ticket `id`; None leaves one unchanged."""
        what = ", ".join(name for name, text in (("title", title), ("description", description)) if text is not None)
        return self._change(id, lambda t: life.edited(t, title, description), "edited", by, at, what)

    # --- links ------------------------------------------------------------------------------------------------------

    def link(self, id: str, link: Link) -> Ticket:
        """Link ticket `id` in both directions. A ``duplicate`` link closes it and counts it there: see `duplicate`."""
        if link.kind == "duplicate":
            self.duplicate(id, link.ticket, link.by, link.at, link.why)
            return self.get(id)
        if link.kind == "duplicated_by":
            self.duplicate(link.ticket, id, link.by, link.at, link.why)
            return self.get(id)
        with self._file.write() as db:
            one, other = self._get(db, id), self._get(db, link.ticket)
            forth = link.model_copy(update={"ticket": other.id})
            back = forth.model_copy(update={"ticket": one.id})
            self._put(db, other, life.linked(other, back), "linked", link.by, link.at, f"related:{one.id}")
            return self._put(db, one, life.linked(one, forth), "linked", link.by, link.at, f"related:{other.id}")

    def unlink(self, id: str, other: str, by: str, at: str = "") -> Ticket:
        """Remove the ``related`` links between tickets `id` and `other`. (Reopen a duplicate instead.)"""
        with self._file.write() as db:
            pair = self._get(db, id), self._get(db, other)
            for one, far in (pair[::-1], pair):
                kept = life.unlinked(one, far.id, ("related",))
                done = self._put(db, one, kept, "unlinked", by, at, f"related:{far.id}")
        return done

    def duplicate(self, id: str, of: str, by: str, at: str = "", why: Sequence[str] = ()) -> Ticket:
        """Close ticket `id` as a duplicate of `of`, or of its original, and return that; idempotent.

        The original gets its occurrences, and a newer diagnosis of the same fault. Raises `ToolError` (bad_argument) if
        both are one ticket, or `id` is a duplicate of another.
        """
        at = at or now()
        with self._file.write() as db:
            one, original = self._get(db, id), self._original(db, self._get(db, of))
            if original.id == one.id:
                message = f"ticket {one.id} is no duplicate of itself, nor of its own duplicates"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, "name another ticket")
            known = life.original_of(one)
            if known == original.id:
                return original
            if known is not None:
                message = f"ticket {one.id} is a duplicate of ticket {known} already"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"reopen it first: `whystall tickets reopen {one.id}`")
            base = Link(kind="duplicate", ticket=original.id, why=[*why], by=by, at=at)
            ended = life.linked(one, base)
            if ended.state == "closed":  # closed with another code before: replace it
                ended = ended.model_copy(update={"closed_as": "duplicate"})
            else:
                ended = life.closed(ended, "duplicate", at)
            kept = life.linked(original, base.model_copy(update={"kind": "duplicated_by", "ticket": one.id}))
            kept = _with(drafting.merged(kept, one), {"occurrences": original.occurrences + one.occurrences})
            self._retire_card(one, f"ticket {one.id} was closed as duplicate", by)
            self._put(db, one, ended, "closed", by, at, f"duplicate:{original.id}")
            original = self._put(db, original, kept, "seen_again", by, at, f"duplicated_by:{one.id}")
            self._move_diagnoses(db, one.id, original.id)
        return original

    def change(self, id: str, what: What, by: str, at: str = "", detail: str = "", **fields: Any) -> Ticket:
        """Set `fields` of ticket `id`, recorded as `what`. The state changes only by the methods for it."""
        return self._change(id, lambda t: _with(t, fields), what, by, at, detail)

    # --- internal -----------------------------------------------------------------------------------------------------

    def _change(self, id: str, step: Callable[[Ticket], Ticket], what: What, by: str, at: str, detail: str) -> Ticket:
        with self._file.write() as db:
            before = self._get(db, id)
            return self._put(db, before, step(before), what, by, at, detail)

    def _put(self, db: Connection, before: Ticket, after: Ticket, what: What, by: str, at: str, detail: str) -> Ticket:
        """Store `after` as the next revision of `before`, with a history entry; do nothing if they are equal."""
        if after == before:
            return before
        after = life.inert(after)
        at = at or now()
        fresh = {"schema_version": TICKET_VERSION, "revision": before.revision + 1, "updated": at}
        after = after.model_copy(update=fresh)
        rows.update(db, after)
        rows.add_event(db, after, what, by, at, detail)
        return after

    def _get(self, db: Connection, id: str) -> Ticket:
        body = rows.body(db, id)
        if body is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no ticket {id!r}", "see `whystall tickets list`")
        return self._file.record(Ticket, body)

    def _original(self, db: Connection, ticket: Ticket) -> Ticket:
        """Return the original of `ticket`, or itself. Chains are short: a duplicate is linked to the end of one."""
        seen = {ticket.id}
        while (other := life.original_of(ticket)) is not None and other not in seen:
            seen.add(other)
            ticket = self._get(db, other)
        return ticket

    def _live_ticket(self, db: Connection, key: str) -> Ticket | None:
        """Return the live ticket of `key` (a `dedup_key` or fault), else the live original of the last one."""
        body = next(iter(rows.live_of_fault(db, key)), None)
        if body is not None:
            return self._file.record(Ticket, body)
        body = rows.latest(db, key)
        if body is None:
            return None
        original = self._original(db, self._file.record(Ticket, body))
        return original if life.is_live(original) else None

    def _check_free(self, db: Connection, ticket: Ticket) -> None:
        body = rows.live(db, ticket.dedup_key)
        if body is not None and (other := self._file.record(Ticket, body)).id != ticket.id:
            message = f"ticket {other.id} is {other.state}, for the same fault"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "use that ticket, or link both")

    def _count(self, db: Connection, diagnosis: Diagnosis) -> None:
        put_diagnosis(db, diagnosis)
        occurrences.count_recurrence(db, diagnosis)  # updates the key of a counted outage to its ticket

    def _with_card(self, db: Connection, ticket: Ticket, by: str, at: str) -> Ticket:
        if ticket.diagnosis is None or ticket.diagnosis.verdict.no_fault:
            return ticket
        card = self._cards.learn(db, ticket.model_copy(update={"updated": at}), by)
        return ticket.model_copy(update={"card": card.id})

    def _retire_card(self, ticket: Ticket, because: str, by: str) -> bool:
        """Retire the draft card of `ticket` and return whether there was one; a reviewed card is left alone."""
        if ticket.card != f"{LESSON}{ticket.id}" or self._cards.get(ticket.card).state != "draft":
            return False
        self._cards.retire(ticket.card, because, by)
        return True

    def _move_diagnoses(self, db: Connection, one: str, original: str) -> None:
        """Move the diagnoses and outages of ticket `one` to `original`."""
        occurrences.merged(db, int(one), int(original))
        for (body,) in db.execute("SELECT body FROM diagnoses WHERE ticket = ?", [int(one)]).fetchall():
            diagnosis = self._file.record(Diagnosis, body)
            put_diagnosis(db, diagnosis.model_copy(update={"ticket": original}))


def _with(ticket: Ticket, fields: dict[str, Any]) -> Ticket:
    """Return `ticket` with `fields`, validated."""
    wrong = fields.keys() & _OWN | fields.keys() - Ticket.model_fields.keys()
    if wrong:
        raise TypeError(f"these fields cannot be changed here: {', '.join(sorted(wrong))}")
    return Ticket.model_validate({**dict(ticket), **fields})


def _named(ticket: Ticket, diagnosis: Diagnosis) -> Ticket:
    return ticket.model_copy(update={"diagnosis": diagnosis.model_copy(update={"ticket": ticket.id})})


def _start(text: str) -> str:
    return human.line(text, 200)
