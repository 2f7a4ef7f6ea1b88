"""An alert on the metrics of a stall and the watcher's own ticket of it are one ticket, whichever is first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.routefile import default
from whystall.agent_server.ticketing.host_reports import keep, parsed
from whystall.agent_server.ticketing.stall_tickets import file_stall, labels_of
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.times import now

Make = Callable[..., dict[str, Any]]
STALL = {"whystall": "stall", "host": "gpu03", "job_name": "llama", "severity": "warning"}
CAUSE = "file_lock_held"


@pytest.fixture
def house(open_house: Callable[..., Any]) -> Any:
    """With the grouping that counts without a file of routes."""
    by = ", ".join(default().root.options.group_by)
    return open_house(f"route: {{receiver: r, group_by: [{by}]}}\nreceivers: [{{name: r}}]\n")


def diagnosis(id: str = "d1", cause: str | None = CAUSE) -> Diagnosis:
    verdict = Verdict.LIKELY if cause else Verdict.INCONCLUSIVE
    return Diagnosis(id=id, created=now(), target="pid 7", verdict=verdict, cause=cause)


def watched(house: Any, found: Diagnosis, job: str = "llama", host: str = "gpu03") -> tuple[Ticket, bool]:
    """File what the watcher of `host` has found of `job`."""
    with house.kb.transaction():
        house.kb.save_diagnosis(found)
        service = TicketService(house.kb, house.settings)
        return file_stall(house.kb, service, found, labels_of(job, host, 3), house.now)


def test_an_alert_is_counted_in_the_watchers_ticket(house: Any, firing: Make) -> None:
    ticket, new = watched(house, diagnosis())
    assert new
    house.now += 60
    house.post(firing("WhystallStallSeconds", **STALL, cause=CAUSE), firing("WhystallJobStalled", **STALL))
    house.later(40)
    (only,) = house.tickets()
    assert (only.id, only.occurrences, only.origin) == (ticket.id, 3, "diagnosis")
    assert only.labels == {"job_name": "llama", "host": "gpu03", "rank": "3"}
    assert len(list(house.kb.alerts.find(ticket=only.id))) == 2
    house.post(firing("WhystallJobStalled", status="resolved", **STALL))
    house.later(600)
    assert house.tickets()[0].state == "open"  # the alert ends, the fault is still there


def test_the_watcher_adds_its_diagnosis_to_the_ticket_of_an_alert_that_was_first(house: Any, firing: Make) -> None:
    house.post(firing("WhystallJobStalled", **STALL))
    house.later(40)
    (before,) = house.tickets()
    ticket, new = watched(house, diagnosis())
    assert (ticket.id, new) == (before.id, False)
    house.post(firing("WhystallStallSeconds", **STALL, cause=CAUSE))
    house.later(40)
    (only,) = house.tickets()
    assert only.diagnosis is not None
    assert only.diagnosis.cause == CAUSE
    assert watched(house, diagnosis("d2"))[0].id == only.id
    assert len(house.tickets()) == 1


@pytest.mark.parametrize(
    "labels",
    [
        {**STALL, "cause": "gc_pause"},
        {**STALL, "cause": CAUSE, "job_name": "other"},
        {**STALL, "cause": CAUSE, "host": "gpu04"},
        {**STALL, "cause": CAUSE, "whystall": "no"},
    ],
)
def test_another_stall_is_another_ticket(house: Any, firing: Make, labels: dict[str, str]) -> None:
    watched(house, diagnosis())
    house.post(firing("WhystallStallSeconds", **labels))
    house.later(40)
    assert len(house.tickets()) == 2


@pytest.mark.parametrize(("labels", "later"), [({}, 1200), ({"cause": CAUSE}, 7200), ({"cause": "unknown"}, 60)])
def test_a_stall_of_long_ago_or_one_that_nobody_explained_is_another(
    house: Any, firing: Make, labels: dict[str, str], later: float
) -> None:
    watched(house, diagnosis())
    house.now += later
    house.post(firing("Whystall", start=house.now, **STALL, **labels))
    house.later(40)
    assert len(house.tickets()) == 2


def test_an_unexplained_stall_is_counted_in_the_watchers_ticket_without_a_cause(house: Any, firing: Make) -> None:
    ticket, _ = watched(house, diagnosis(cause=None))
    house.post(firing("WhystallUnexplainedStallSeconds", **STALL, cause="unknown"))
    house.later(40)
    (only,) = house.tickets()
    assert (only.id, only.occurrences) == (ticket.id, 2)


def test_without_a_watchers_ticket_the_alert_names_cause_and_job(house: Any, firing: Make) -> None:
    house.post(firing("WhystallStallSeconds", **STALL, cause=CAUSE))
    house.later(40)
    (ticket,) = house.tickets()
    assert ticket.labels["job_name"] == "llama"
    assert ticket.classification is not None
    assert ticket.classification.cause is not None
    assert (ticket.classification.cause.value, ticket.classification.cause.by) == (CAUSE, "label:cause")
    assert ticket.category != "unknown"
    assert ticket.diagnosis is None  # nothing was observed


def test_a_cause_of_a_strangers_alert_counts_for_nothing(house: Any, firing: Make) -> None:
    house.post(firing("A", cause=CAUSE, job_name="llama", host="gpu03"), firing("B", **{**STALL, "cause": "x" * 300}))
    house.later(40)
    causes = [ticket.classification.cause for ticket in house.tickets() if ticket.classification is not None]
    assert [one for one in causes if one is not None and one.by == "label:cause"] == []


def test_the_centre_counts_an_alert_in_the_ticket_that_a_host_reported(house: Any, firing: Make) -> None:
    theirs, _ = watched(house, diagnosis())
    report = {"ref": "ab" * 8, "title": "a lock", "ticket": theirs.model_dump(mode="json")}
    house.kb.close()
    house.path = house.path.with_name("centre.db")
    house.restart()
    service = TicketService(house.kb, house.settings)
    here = keep(house.kb, service, "gpu03", parsed(report), house.now)
    house.post(firing("WhystallStallSeconds", **STALL, cause=CAUSE))
    house.later(40)
    (only,) = house.tickets()
    assert (only.id, only.occurrences) == (here, 2)
