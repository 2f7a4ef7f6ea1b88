"""Build and merge tickets. Pure functions; `store` stores the results."""

from __future__ import annotations

from collections.abc import Mapping

from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.models import Cause, Diagnosis, Verdict
from whystall.knowledge_base.tickets.models import Classification, Decision, Ticket
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

# Severity by the share of its time that the job loses to the cause, as for single findings.
_CRITICAL_PCT = 40.0
_MAJOR_PCT = 10.0


def draft(diagnosis: Diagnosis, causes: Mapping[str, Cause], now: str) -> Ticket:
    """A ticket for `diagnosis`, not yet numbered (`id` is empty).

    Raises `ToolError` (bad_argument) when the diagnosis found the job healthy.
    """
    if diagnosis.verdict is Verdict.HEALTHY:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the job was found healthy", "there is nothing to write a ticket about")
    cause = causes.get(diagnosis.cause or "")
    fault = dedup_key(diagnosis)
    classes = classified(diagnosis, cause)
    return Ticket(
        id="",
        created=now,
        updated=now,
        dedup_key=fault,
        fault=fault,
        severity=Severity(classes.severity.value),
        category=classes.category.value,
        component=classes.component.value,
        classification=classes,
        diagnosis=diagnosis,
    )


def classified(diagnosis: Diagnosis, cause: Cause | None) -> Classification:
    """What `diagnosis` with its `cause` says a ticket is about; nothing decided where it found no cause."""
    because = [f"cause:{cause.id}"] if cause else []
    share = 1.0 if cause else 0.0
    by = "diagnosis" if cause else "default"
    return Classification(
        category=Decision(value=cause.category if cause else "none", by=by, confidence=share, because=because),
        component=Decision(value=cause.component if cause else "unknown", by=by, confidence=share, because=because),
        severity=Decision(value=severity(diagnosis).value, by="diagnosis", because=because),
    )


def again(ticket: Ticket, fresh: Ticket) -> Ticket:
    """`ticket` after the same fault was seen once more, with the newer of both diagnoses and what follows
    from it. The diagnosis of another fault, that somebody said to be the same, only counts.
    """
    same = ticket.fault in (None, fresh.fault)
    return (_newer(ticket, fresh) if same else ticket).model_copy(update={"occurrences": ticket.occurrences + 1})


def merged(ticket: Ticket, duplicate: Ticket) -> Ticket:
    """`ticket` with the diagnosis of its `duplicate`, where that is a newer one of the same fault, or the only one, and
    as bad as the worse of both.
    """
    if duplicate.fault is not None and ticket.fault in (None, duplicate.fault):
        named = duplicate.diagnosed().model_copy(update={"ticket": ticket.id})
        ticket = _newer(ticket, duplicate.model_copy(update={"diagnosis": named}))
    known, worse = ticket.classification, duplicate.classification
    if known is None or worse is None or duplicate.severity.rank <= ticket.severity.rank or _by_person(known.severity):
        return ticket
    classes = known.model_copy(update={"severity": worse.severity, "source_severity": worse.source_severity})
    return ticket.model_copy(update={"severity": duplicate.severity, "classification": classes})


def _newer(ticket: Ticket, fresh: Ticket) -> Ticket:
    newer, older = fresh.diagnosed(), ticket.diagnosis
    if older is not None and newer.created < older.created:
        return ticket
    update: dict[str, object] = {"diagnosis": newer, "fault": fresh.fault, **_classes(ticket, fresh)}
    if older is not None and not newer.symptom:  # nobody told it again: what was told stays
        update["diagnosis"] = newer.model_copy(update={"symptom": older.symptom})
    return ticket.model_copy(update=update)


def _classes(ticket: Ticket, fresh: Ticket) -> dict[str, object]:
    """The classes of `fresh` for `ticket`; what a person decided stays, and it gets no milder than its sender said."""
    before, made = ticket.classification, fresh.classification
    names = ("category", "component", "severity")
    if before is not None and made is not None:
        decided = {name: getattr(before, name) for name in names}
        kept = {name: d for name, d in decided.items() if _by_person(d)}
        if before.severity.by.startswith("label:") and ticket.severity.rank > fresh.severity.rank:
            kept["severity"] = before.severity
        made = made.model_copy(update={**kept, "source_severity": before.source_severity})
    if made is None:
        return {name: getattr(fresh, name) for name in names}
    return {
        "classification": made,
        "category": made.category.value,
        "component": made.component.value,
        "severity": Severity(made.severity.value),
    }


def _by_person(decision: Decision) -> bool:
    return decision.by.startswith("person:")


def severity(diagnosis: Diagnosis) -> Severity:
    """By the share of the window the victim loses to the cause; what is not confirmed weighs at most
    `MAJOR`, what is inconclusive `MINOR`.
    """
    victim = diagnosis.victim
    lost = victim.lost_pct * diagnosis.explained_pct / 100 if victim is not None and diagnosis.cause else 0.0
    if diagnosis.verdict is Verdict.INCONCLUSIVE or lost < _MAJOR_PCT:
        return Severity.MINOR
    if diagnosis.verdict is Verdict.CONFIRMED and lost >= _CRITICAL_PCT:
        return Severity.CRITICAL
    return Severity.MAJOR
