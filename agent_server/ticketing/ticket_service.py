"""Creates tickets from reports and changes them.

Each change stores the ticket, its history, the pending deliveries and the audit log in one transaction, or as part of
the caller's. Nothing here waits for the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from whystall.agent_server.ticketing.merging import attach_target, link_similar, merge, same_fault_tickets
from whystall.knowledge_base.classify.classifier import reclassified
from whystall.knowledge_base.classify.dedup_keys import dedup_key
from whystall.knowledge_base.ticket_models import (
    LIVE,
    Analysis,
    Assignment,
    Classification,
    Comment,
    Decision,
    Human,
    Link,
    Ticket,
)
from whystall.knowledge_base.tickets import human
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity
from whystall.tools.contract.text import NAME_LIMIT, clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.classify.classifier import Classified
    from whystall.knowledge_base.classify.report import Report
    from whystall.knowledge_base.classify.similar_texts import SimilarTicket
    from whystall.knowledge_base.models import Diagnosis
    from whystall.knowledge_base.ticket_models import ClosedAs, LinkKind

ENGINE = "engine"
"""The actor of automatic changes."""
_NO_COMPONENT = Decision(value="unknown", by="default", confidence=0.0)
_LINKS = 20  # of a ticket; no more are added automatically


@dataclass(frozen=True)
class Filed:
    """The ticket of a report; not `new`: the report was counted as another occurrence."""

    ticket: Ticket
    new: bool


class TicketService:
    """Files and changes tickets. Without `settings`, tickets are neither assigned nor delivered to trackers.

    Methods take the actor (`by`) and the time (`now`, with a time zone). They raise what `Stores` raises; `ToolError`
    (not_found, bad_argument) if there is no such ticket, or its state does not allow the change.
    """

    def __init__(self, kb: Stores, settings: Settings | None = None) -> None:
        self._kb = kb
        self._settings = settings

    # --- reports and diagnoses ---------------------------------------------------------------------------------------

    def file(
        self,
        report: Report,
        by: str = ENGINE,
        now: datetime | None = None,
        found: Classified | None = None,
        detail: str = "",
    ) -> Filed:
        """File `report`: count it as an occurrence of the live ticket with its `dedup_key` (by default made from its
        stable words), or create a ticket, classified, assigned, linked to a similar one and queued for its trackers.

        `found`: its classification if made before the transaction, which keeps others from writing. `detail`: for the
        history of a ticket that occurred again.
        """
        at = _at(now)
        key = report.dedup_key or dedup_key(report)
        with self._kb.transaction():
            live = self._kb.tickets.live(key)
            if live is not None:
                severity = found.classification.severity if found else self._kb.classifier.severity(report)
                return Filed(self._again(live, severity, by, at, detail), new=False)
            near = self._kb.similar_texts.find(report)
            ticket = self._kb.tickets.create(self._fresh(report, key, at, found), by)
            self._kb.similar_texts.put(ticket.id, report)
            ticket = self._related(ticket, near, at)
            self._deliver(ticket, report.sinks)
            self._audit(by, "ticket.opened", ticket, {"origin": report.origin, "category": ticket.category})
        return Filed(ticket, new=True)

    def settle(self, ticket_id: str, by: str = ENGINE, now: datetime | None = None) -> Ticket:
        """Assign a ticket that a diagnosis drafted, unless assigned before, and queue it for its trackers."""
        at = _at(now)
        with self._kb.transaction():
            ticket = self._kb.tickets.get(ticket_id)
            assignment = self._assignment(ticket, at) if ticket.assignment is None else None
            if assignment is not None:
                ticket = self._kb.tickets.assign(ticket.id, assignment, by, rfc3339(at))
            self._deliver(ticket, None)
        return ticket

    def attach(self, ticket_id: str, diagnosis: Diagnosis, by: str = ENGINE, now: datetime | None = None) -> Ticket:
        """Attach `diagnosis` and the classification that follows from it.

        Live tickets with the same fault (`faults.same_fault`) are merged into the oldest, which is returned; the others
        are closed as its duplicates. Tickets that are only similar are linked.
        """
        at = _at(now)
        with self._kb.transaction():
            before = attach_target(self._kb.tickets, ticket_id, diagnosis)
            ticket = self._kb.tickets.attach(before.id, diagnosis, by, rfc3339(at), **reclassified(before, diagnosis))
            detail = {"diagnosis": diagnosis.id, "verdict": diagnosis.verdict.value}
            self._audit(by, "ticket.diagnosed", ticket, detail)
            if ticket.fault is None or ticket.state not in LIVE:
                return ticket  # closed by people: leave it alone
            oldest, *others = same_fault_tickets(self._kb.tickets, ticket, diagnosis)
            if not others:
                return link_similar(self._kb.tickets, ticket, ENGINE, at)
            for other in others:
                self._audit(by, "ticket.closed", other, {"as": "duplicate", "of": oldest.id})
                merge(self._kb, other.id, oldest.id, by, at, ["fault"])
            return self._kb.tickets.get(oldest.id)

    def triaged(self, ticket_id: str, code: str, why: Sequence[str] = (), now: datetime | None = None) -> Ticket:
        """Store why `ticket_id` has no diagnosis of its own (`Analysis.triage`); `why`: codes of what was searched."""
        at = rfc3339(_at(now))
        with self._kb.transaction():
            before = self._kb.tickets.get(ticket_id).analysis or Analysis(at=at)
            analysis = before.model_copy(update={"triage": code})
            detail = " ".join([code, *why])
            ticket = self._kb.tickets.change(ticket_id, "triaged", ENGINE, at, detail, analysis=analysis)
            self._audit(ENGINE, "ticket.triaged", ticket, {"code": code, "why": list(why)[:20]})
        return ticket

    # --- changes by people and trackers ------------------------------------------------------------------------------

    def acknowledge(self, ticket_id: str, by: str, source: str = "cli", now: datetime | None = None) -> Ticket:
        """Mark the ticket as being worked on."""
        with self._kb.transaction():
            ticket = self._kb.tickets.acknowledge(ticket_id, _name(by), rfc3339(_at(now)))
            self._changed("acknowledged", ticket, by, source)
        return ticket

    def resolve(
        self,
        ticket_id: str,
        because: str,
        by: str,
        source: str = "cli",
        now: datetime | None = None,
        *,
        lesson: bool = True,
    ) -> Ticket:
        """Mark the stall as over. `because`: what solved it; learnt if the ticket has a diagnosis, unless `lesson` is
        false because the source knows only that it is over.
        """
        with self._kb.transaction():
            ticket = self._kb.tickets.resolve(ticket_id, because, _name(by), rfc3339(_at(now)), lesson=lesson)
            if lesson:
                self._kb.classifier.learn(ticket)
            self._changed("resolved", ticket, by, source)
        return ticket

    def close(
        self,
        ticket_id: str,
        closed_as: ClosedAs,
        by: str,
        source: str = "cli",
        now: datetime | None = None,
        because: str = "",
    ) -> Ticket:
        """Close the ticket without a solution."""
        with self._kb.transaction():
            ticket = self._kb.tickets.close(ticket_id, closed_as, _name(by), rfc3339(_at(now)), because)
            self._changed("closed", ticket, by, source, {"as": closed_as})
        return ticket

    def reopen(
        self, ticket_id: str, by: str, source: str = "cli", now: datetime | None = None, because: str = ""
    ) -> Ticket:
        """Reopen the ticket, assign it to the person on call now, and restart its escalation."""
        at = _at(now)
        with self._kb.transaction():
            ticket = self._kb.tickets.reopen(ticket_id, _name(by), rfc3339(at), because)
            self._changed("reopened", ticket, by, source)
            if self._settings is not None and ticket.assignment is not None:
                from whystall.agent_server.ticketing.oncall.assign import reassign

                again = reassign(ticket.assignment, self._settings.oncall, self._kb.overrides.all(after=at), at)
                if again is not None:
                    ticket = self._kb.tickets.assign(ticket.id, again, ENGINE, rfc3339(at))
        return ticket

    def comment(
        self, ticket_id: str, text: str, by: str, source: str = "cli", now: datetime | None = None, key: str = ""
    ) -> Ticket:
        """Add a comment; `key`: deduplication key."""
        at = rfc3339(_at(now))
        comment = Comment(by=_name(by), at=at, text=human.lines(text, human.COMMENT), source=source, key=key)
        with self._kb.transaction():
            ticket = self._kb.tickets.comment(ticket_id, comment)
            self._changed("commented", ticket, by, source)
        return ticket

    def link(
        self, ticket_id: str, other: str, kind: LinkKind, by: str, source: str = "cli", now: datetime | None = None
    ) -> Ticket:
        """Link `ticket_id` to `other` as related, duplicate or original."""
        at = _at(now)
        with self._kb.transaction():
            if kind == "related":
                link = Link(kind=kind, ticket=other, by=_name(by), at=rfc3339(at))
                ticket = self._kb.tickets.link(ticket_id, link)
            else:
                pair = (ticket_id, other) if kind == "duplicate" else (other, ticket_id)
                merge(self._kb, *pair, _name(by), at, [])
                ticket = self._kb.tickets.get(ticket_id)
            self._changed("linked", ticket, by, source, {"to": other, "kind": kind})
        return ticket

    def unlink(self, ticket_id: str, other: str, by: str, source: str = "cli", now: datetime | None = None) -> Ticket:
        """Remove the link between `ticket_id` and `other`."""
        with self._kb.transaction():
            ticket = self._kb.tickets.unlink(ticket_id, other, _name(by), rfc3339(_at(now)))
            self._changed("unlinked", ticket, by, source, {"from": other})
        return ticket

    def edit(
        self,
        ticket_id: str,
        by: str,
        source: str = "cli",
        now: datetime | None = None,
        *,
        title: str | None = None,
        description: str | None = None,
    ) -> Ticket:
        """Change title and description; None: unchanged."""
        with self._kb.transaction():
            at = rfc3339(_at(now))
            ticket = self._kb.tickets.edit(ticket_id, _name(by), at, title=title, description=description)
            self._changed("edited", ticket, by, source)
        return ticket

    def assign(
        self, ticket_id: str, users: Sequence[str], by: str, source: str = "cli", now: datetime | None = None
    ) -> Ticket:
        """Assign the ticket to `users`."""
        at = rfc3339(_at(now))
        who = _name(by)
        assignment = Assignment(users=[clean(user, NAME_LIMIT) for user in users], rule=f"person:{who}", at=at)
        with self._kb.transaction():
            ticket = self._kb.tickets.assign(ticket_id, assignment, who, at)
            self._changed("assigned", ticket, by, source, {"users": assignment.users})
        return ticket

    def classify(
        self,
        ticket_id: str,
        by: str,
        source: str = "cli",
        now: datetime | None = None,
        *,
        category: str | None = None,
        component: str | None = None,
        severity: Severity | None = None,
    ) -> Ticket:
        """Set category, component and severity; automatic classification does not overwrite them."""
        from whystall.knowledge_base.classify.rules import UNKNOWN, categories

        known = [*categories(), UNKNOWN]
        if category is not None and category not in known:
            message = f"there is no category {category!r}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"valid: {', '.join(known)}")
        who = _name(by)
        with self._kb.transaction():
            ticket = self._kb.tickets.get(ticket_id)
            classification = ticket.classification or Classification(
                category=Decision(value=ticket.category, by="default", confidence=0.0),
                component=Decision(value=ticket.component, by="default", confidence=0.0),
                severity=Decision(value=ticket.severity.value, by="default", confidence=0.0),
            )
            given = {"category": category, "component": component, "severity": severity and severity.value}
            decisions = {
                name: Decision(value=clean(value, NAME_LIMIT), by=f"person:{who}")
                for name, value in given.items()
                if value is not None
            }
            if not decisions:
                return ticket
            if category not in (None, ticket.category) and component is None:  # the component belonged to the old one
                decisions["component"] = _NO_COMPONENT
            fields: dict[str, Any] = {name: decision.value for name, decision in decisions.items()}
            fields["classification"] = classification.model_copy(update=decisions)
            detail = ", ".join(f"{name}: {decision.value}" for name, decision in decisions.items())
            ticket = self._kb.tickets.change(ticket_id, "edited", who, rfc3339(_at(now)), detail, **fields)
            self._changed("classified", ticket, by, source, {name: d.value for name, d in decisions.items()})
        return ticket

    def chosen(self, ticket_id: str, decision: Decision, now: datetime | None = None) -> Ticket:
        """Store a model's choice (`model_choice.choose`), unless something else has decided meanwhile, or it was not
        among the candidates.
        """
        with self._kb.transaction():
            ticket = self._kb.tickets.get(ticket_id)
            known = ticket.classification
            if known is None or known.category.by != "default" or decision.value not in known.category.rivals:
                return ticket
            update = {"category": decision, "component": _NO_COMPONENT}
            fields: dict[str, Any] = {name: one.value for name, one in update.items()}
            fields["classification"] = known.model_copy(update=update)
            detail = f"category: {decision.value}"
            ticket = self._kb.tickets.change(ticket_id, "edited", ENGINE, rfc3339(_at(now)), detail, **fields)
            self._changed("classified", ticket, ENGINE, "model", {"category": decision.value})
        return ticket

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _fresh(self, report: Report, key: str, at: datetime, found: Classified | None) -> Ticket:
        """Return a ticket for `report`, without an id."""
        found = found or self._kb.classifier.classify(report)
        ticket = Ticket(
            id="",
            created=report.created,
            updated=rfc3339(at),
            origin=report.origin,
            dedup_key=key,
            **found.classification.fields(),
            labels=report.labels,
            human=Human(title=report.title, description=report.whole_text),
            analysis=Analysis(at=rfc3339(at), matches=found.matches, checks=found.checks),
        )
        assignment = self._assignment(ticket, at, report.receiver, report.schedule)
        return ticket.model_copy(update={"assignment": assignment})

    def _related(self, ticket: Ticket, near: Sequence[SimilarTicket], at: datetime) -> Ticket:
        """Link `ticket` to the most similar one, or to a live one that may be about the same fault in other words. Only
        one: links are shown at both ends, so that thousands of similar tickets form a chain instead of lists of all.
        """
        for other in near:
            known = self._kb.tickets.get(other.ticket)
            if len(known.links) < _LINKS and (known.state in LIVE or not other.paraphrase):
                why = [f"{'same' if other.paraphrase else 'words'}:{other.alike:.2f}"]
                link = Link(kind="related", ticket=other.ticket, why=why, by=ENGINE, at=rfc3339(at))
                return self._kb.tickets.link(ticket.id, link)
        return ticket

    def _again(self, live: Ticket, severity: Decision, by: str, at: datetime, detail: str) -> Ticket:
        """Count another occurrence of `live`; `severity` can only raise its own."""
        fields: dict[str, Any] = {}
        known = live.classification
        worse = Severity(severity.value).rank > live.severity.rank
        if worse and known is not None and live.diagnosis is None and not known.severity.by.startswith("person:"):
            fields["severity"] = Severity(severity.value)
            fields["classification"] = known.model_copy(update={"severity": severity})
        return self._kb.tickets.seen_again(live.id, by, rfc3339(at), detail, **fields)

    def _assignment(
        self, ticket: Ticket, at: datetime, receiver: str = "", schedule: str | None = None
    ) -> Assignment | None:
        """Return who is assigned `ticket`; None if no on-call settings exist."""
        if self._settings is None or not self._settings.oncall.model_fields_set:
            return None
        from whystall.agent_server.ticketing.oncall.assign import Facts, assign

        facts = Facts(
            category=ticket.category,
            component=ticket.component,
            severity=ticket.severity.value,
            labels=ticket.labels,
            origin=ticket.origin,
            receiver=receiver,
            schedule=schedule,
        )
        return assign(facts, self._settings.oncall, self._kb.overrides.all(after=at), at)

    def _deliver(self, ticket: Ticket, sinks: list[str] | None) -> None:
        """Queue `ticket` for `sinks`; None: for those of all tickets."""
        if self._settings is None:
            return
        for sink in self._settings.tickets.sinks if sinks is None else sinks:
            if sink in self._settings.sinks:
                self._kb.deliveries.want(sink, ticket.id)

    def _changed(self, what: str, ticket: Ticket, by: str, source: str, detail: dict[str, Any] | None = None) -> None:
        self._audit(by, f"ticket.{what}", ticket, {"source": source, **(detail or {})})

    def _audit(self, by: str, what: str, ticket: Ticket, detail: dict[str, Any]) -> None:
        self._kb.audit.put(by, what, f"ticket:{ticket.id}", detail=detail)


def _at(now: datetime | None) -> datetime:
    return now or datetime.now(timezone.utc)


def _name(by: str) -> str:
    return clean(by, NAME_LIMIT)
