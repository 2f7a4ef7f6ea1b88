"""Build and merge tickets, as pure functions; `ticket_store` stores the results."""

from __future__ import annotations

from collections.abc import Mapping

from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.models import Cause, Diagnosis, Verdict
from whystall.knowledge_base.ticket_models import Classification, Decision, Ticket
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

# Severity by the percentage of its time that the job loses, as for single findings.
_CRITICAL_PCT = 40.0
_MAJOR_PCT = 10.0


def draft(diagnosis: Diagnosis, causes: Mapping[str, Cause], now: str) -> Ticket:
    """Return a ticket for `diagnosis`, without a number (`id` is empty).

    Raises `ToolError` (bad_argument) if the diagnosis found the job healthy or idle.
    """
    if diagnosis.verdict.no_fault:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"the job is {diagnosis.verdict.value}", "a ticket needs a fault")
    cause = causes.get(diagnosis.cause or "")
    fault = dedup_key(diagnosis)
    classes = classified(diagnosis, cause)
    return Ticket(
        id="",
        created=now,
        updated=now,
        dedup_key=fault,
        fault=fault,
        diagnosis=diagnosis,
        **classes.fields(),
    )


def classified(diagnosis: Diagnosis, cause: Cause | None) -> Classification:
    """Return the classification that follows from `diagnosis` and its `cause`; defaults if it found none."""
    because = [f"cause:{cause.id}"] if cause else []
    share = 1.0 if cause else 0.0
    by = "diagnosis" if cause else "default"
    return Classification(
        category=Decision(value=cause.category if cause else "none", by=by, confidence=share, because=because),
        component=Decision(value=cause.component if cause else "unknown", by=by, confidence=share, because=because),
        severity=Decision(value=severity(diagnosis).value, by="diagnosis", because=because),
    )


def with_recurrence(ticket: Ticket, fresh: Ticket) -> Ticket:
    """Return `ticket` after a recurrence, with the newer diagnosis and what follows from it. A diagnosis of another
    fault only adds an occurrence.
    """
    same = ticket.fault in (None, fresh.fault)
    return (_newer(ticket, fresh) if same else ticket).model_copy(update={"occurrences": ticket.occurrences + 1})


def merged(ticket: Ticket, duplicate: Ticket) -> Ticket:
    """Return `ticket` with the diagnosis of its `duplicate` if it has none or that is a newer one of the same fault,
    and with the higher severity.
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
    if older is not None and not newer.symptom:  # this report did not contain them again: keep what is known
        update["diagnosis"] = newer.model_copy(update={"symptom": older.symptom})
    return ticket.model_copy(update=update)


def _classes(ticket: Ticket, fresh: Ticket) -> dict[str, object]:
    """Return the classification of `fresh` for `ticket`; a person's decisions stay, and severity does not fall below
    the sender's.
    """
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
    return made.fields()


def _by_person(decision: Decision) -> bool:
    return decision.by.startswith("person:")


def severity(diagnosis: Diagnosis) -> Severity:
    """Return the severity by the percentage of the window lost: at most `MAJOR` unless confirmed, `MINOR` if
    inconclusive. That of a crash, and of an error of a device that logs alone show, is its own: it has happened.
    """
    if any(f.kind.startswith("crash.") for f in diagnosis.findings):
        return diagnosis.severity
    if diagnosis.cause and diagnosis.victim is None and _of_device(diagnosis):
        return diagnosis.severity
    victim = diagnosis.victim
    lost = victim.lost_pct * diagnosis.explained_pct / 100 if victim is not None and diagnosis.cause else 0.0
    if diagnosis.verdict is Verdict.INCONCLUSIVE or lost < _MAJOR_PCT:
        return Severity.MINOR
    if diagnosis.verdict is Verdict.CONFIRMED and lost >= _CRITICAL_PCT:
        return Severity.CRITICAL
    return Severity.MAJOR


def _of_device(diagnosis: Diagnosis) -> bool:
    return any(f.id in diagnosis.chain and f.kind in ("gpu.xid", "gpu.switch") for f in diagnosis.findings)
