"""TicketService: deduplicates, assigns and queues tickets for trackers, keeps history and audit, attaches diagnoses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from making import checkpoint

from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.models import Culprit, Diagnosis, Verdict
from whystall.knowledge_base.ticket_models import Decision, Link, Ticket
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Severity

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=timezone.utc)
SETTINGS = Settings.model_validate(
    {
        "users": {"ann": {}, "bob": {}},
        "oncall": {
            "timezone": "UTC",
            "schedule": "all",
            "categories": {"storage": "disks"},
            "schedules": {
                "all": {"timezone": "UTC", "layers": [{"users": ["ann"]}]},
                "disks": {"timezone": "UTC", "layers": [{"users": ["bob"]}]},
            },
        },
        "tickets": {"sinks": ["lab"]},
        "sinks": {"lab": {"kind": "webhook", "url": "http://127.0.0.1:9/x", "secret": {"env": "X"}}},
    }
)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A base as it comes, made once."""
    path = tmp_path_factory.mktemp("seeded") / "k.db"
    Stores(path).close()
    return path.read_bytes()


@pytest.fixture
def kb(tmp_path: Path, seeded: bytes) -> Iterator[Stores]:
    (tmp_path / "k.db").write_bytes(seeded)
    with Stores(tmp_path / "k.db") as base:
        yield base


def report(text: str = "no space left on device on the shared volume of team a", **fields: object) -> Report:
    given = {"origin": "work_order", "title": text, "created": "2026-03-01T00:00:00Z", **fields}
    return Report.model_validate(given)


def test_a_report_becomes_a_ticket_that_somebody_has(kb: Stores) -> None:
    filed = TicketService(kb, SETTINGS).file(report(source_severity="P1", labels={"host": "n1"}), "ann", NOW)
    ticket = filed.ticket
    assert filed.new
    assert (ticket.origin, ticket.category, ticket.severity) == ("work_order", "storage", Severity.CRITICAL)
    assert ticket.classification is not None
    assert ticket.classification.severity.by == "label:severity"
    assert ticket.assignment is not None
    assert (ticket.assignment.users, ticket.assignment.rule) == (["bob"], "category:storage")
    assert [d.sink for d in kb.deliveries.of_ticket(ticket.id)] == ["lab"]
    assert [event.what for event in kb.tickets.events(ticket.id)] == ["opened"]
    assert [entry.what for entry in kb.audit.entries(what="ticket.")] == ["ticket.opened"]
    assert kb.tickets.get(ticket.id) == ticket


def test_the_same_again_is_counted_and_gets_no_milder(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    first = service.file(report(source_severity="P3"), now=NOW).ticket
    worse = service.file(report(source_severity="P1"), now=NOW)
    milder = service.file(report(source_severity="info"), now=NOW)
    assert (worse.new, milder.new) == (False, False)
    assert milder.ticket.id == first.id
    assert milder.ticket.occurrences == 3
    assert milder.ticket.severity is Severity.CRITICAL
    assert kb.tickets.count() == 1


def test_what_reads_alike_is_linked_at_both_ends(kb: Stores) -> None:
    service = TicketService(kb)
    one = service.file(report("saving the model to /mnt/a blocks all ranks for a minute every few steps")).ticket
    two = service.file(report("saving the model to /mnt/b blocks all the ranks for minutes every few steps")).ticket
    assert [(link.kind, link.ticket) for link in two.links] == [("related", one.id)]
    assert [(link.kind, link.ticket) for link in kb.tickets.get(one.id).links] == [("related", two.id)]
    assert service.file(report("the certificate of the hub expired this morning")).ticket.links == []


def test_links_do_not_pile_up_on_one_ticket(kb: Stores) -> None:
    service = TicketService(kb)
    text = "saving the model to the shared volume blocks all ranks of the job for a minute"
    with kb.transaction():
        tickets = [service.file(report(f"{text}, host-{n}")).ticket for n in range(60)]
    assert max(len(kb.tickets.get(ticket.id).links) for ticket in tickets) <= 20


def test_without_settings_nobody_is_assigned_and_no_tracker_told(kb: Stores) -> None:
    ticket = TicketService(kb).file(report()).ticket
    assert ticket.assignment is None
    assert kb.deliveries.of_ticket(ticket.id) == []


def test_with_settings_that_name_nobody_nothing_is_said_of_whom(kb: Stores) -> None:
    service = TicketService(kb, Settings())
    number = kb.remember(checkpoint(), ticket=True).ticket
    assert number is not None
    assert (service.settle(number).revision, service.file(report()).ticket.assignment) == (1, None)


def test_a_report_names_its_own_trackers_and_category(kb: Stores) -> None:
    given = {"category": Decision(value="network", by="rule:route")}
    ticket = TicketService(kb, SETTINGS).file(report(sinks=[], given=given), now=NOW).ticket
    assert kb.deliveries.of_ticket(ticket.id) == []
    assert ticket.category == "network"
    assert ticket.assignment is not None
    assert ticket.assignment.users == ["ann"]


def test_a_failure_leaves_nothing_behind(kb: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(kb.audit), "put", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        TicketService(kb, SETTINGS).file(report(), now=NOW)
    assert kb.tickets.count() == 0
    assert kb.similar_texts.find(report()) == []


# --- diagnoses --------------------------------------------------------------------------------------------------------


def stored(kb: Stores, diagnosis: Diagnosis) -> Diagnosis:
    return kb.remember(diagnosis, ticket=False)


def test_a_drafted_ticket_is_settled_once(kb: Stores) -> None:
    number = kb.remember(checkpoint(), ticket=True).ticket
    assert number is not None
    service = TicketService(kb, SETTINGS)
    settled = service.settle(number, now=NOW)
    assert settled.assignment is not None
    assert settled.assignment.users == ["bob"]
    assert service.settle(number, now=NOW) == settled
    assert [d.sink for d in kb.deliveries.of_ticket(number)] == ["lab"]


def test_a_diagnosis_of_an_alert_reclassifies_it(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    ticket = service.file(report("step time of job 7 went up on its second node since noon"), now=NOW).ticket
    assert ticket.category == "unknown"
    after = service.attach(ticket.id, stored(kb, checkpoint()), now=NOW)
    assert (after.id, after.category) == (ticket.id, "storage")
    assert after.classification is not None
    assert after.classification.category.by == "diagnosis"
    assert after.fault is not None
    assert after.human.title == ticket.human.title


def test_an_older_ticket_of_the_same_fault_survives(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    older = kb.remember(checkpoint(id="d1"), ticket=True).ticket
    assert older is not None
    ticket = service.file(report("step time of job 7 went up on its second node since noon"), now=NOW).ticket
    survivor = service.attach(ticket.id, stored(kb, checkpoint(id="d2")), now=NOW)
    assert survivor.id == older
    assert survivor.occurrences == 2
    gone = kb.tickets.get(ticket.id)
    assert (gone.state, gone.closed_as) == ("closed", "duplicate")
    assert [(link.kind, link.ticket) for link in gone.links] == [("duplicate", older)]
    again = service.file(report("step time of job 9 went up on its second node since noon"), now=NOW)
    assert (again.new, again.ticket.id) == (False, older)


def generic(id: str, pid: int, **changes: Any) -> Diagnosis:
    """Of a program that any job may run, throttled: its control group is a common one, no file tells the job."""
    found = checkpoint(id=id, comm="python3", target=f"pid {pid} (python3)", cause="cpu_throttled", **changes)
    assert found.victim is not None
    who = found.victim.model_copy(update={"pid": pid, "tid": pid, "comm": "python3"})
    culprit = Culprit(pid=pid, tid=pid, comm="python3", cgroup="/user.slice")
    return found.model_copy(update={"victim": who, "culprit": culprit})


def two(kb: Stores, service: TicketService, first: Diagnosis, second: Diagnosis) -> tuple[Ticket, Ticket]:
    """Two tickets of different words, with a diagnosis each; both as they are then."""
    one = service.file(report("step time of the vision model went up"), now=NOW).ticket
    other = service.file(report("the speech model trains at half its speed"), now=NOW).ticket
    service.attach(one.id, stored(kb, first), now=NOW)
    service.attach(other.id, stored(kb, second), now=NOW)
    return kb.tickets.get(one.id), kb.tickets.get(other.id)


def test_two_jobs_of_one_program_are_not_one_fault(kb: Stores) -> None:
    one, other = two(kb, TicketService(kb, SETTINGS), generic("d1", 10), generic("d2", 20))
    assert (one.fault, one.state, other.state) == (other.fault, "open", "open")
    assert [(link.kind, link.why) for link in other.links] == [("related", ["fault"])]


def test_the_same_process_and_cause_are_one_fault(kb: Stores) -> None:
    one, other = two(kb, TicketService(kb, SETTINGS), generic("d1", 10), generic("d2", 10))
    assert (one.occurrences, other.closed_as) == (2, "duplicate")


def test_what_was_not_found_out_merges_nothing(kb: Stores) -> None:
    unsure = {"verdict": Verdict.INCONCLUSIVE, "cause": None}
    _, other = two(kb, TicketService(kb, SETTINGS), checkpoint(id="d1", **unsure), checkpoint(id="d2", **unsure))
    assert other.state == "open"


def test_a_younger_ticket_of_the_same_fault_is_merged_with_all_that_people_did(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    older = service.file(report("step time of the vision model went up", sinks=[]), now=NOW).ticket
    younger = service.file(report("the speech model trains at half its speed", source_severity="P1"), now=NOW).ticket
    service.attach(younger.id, stored(kb, checkpoint(id="d1")), now=NOW)
    service.acknowledge(younger.id, "bob", now=NOW)
    after = service.attach(older.id, stored(kb, checkpoint(id="d2")), now=NOW)
    assert (after.id, after.state, after.severity) == (older.id, "acknowledged", Severity.CRITICAL)
    assert kb.tickets.get(younger.id).closed_as == "duplicate"
    assert [d.sink for d in kb.deliveries.of_ticket(older.id)] == ["lab"]


def test_a_ticket_with_room_for_no_more_duplicates_takes_none(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    older = service.file(report("step time of the vision model went up"), now=NOW).ticket
    service.attach(older.id, stored(kb, checkpoint(id="d1")), now=NOW)
    full = [Link(kind="duplicated_by", ticket=str(n), at="2026-03-01T00:00:00Z") for n in range(1000, 1500)]
    kb.tickets.change(older.id, "linked", "test", links=full)
    other = service.file(report("the speech model trains at half its speed"), now=NOW).ticket
    after = service.attach(other.id, stored(kb, checkpoint(id="d2")), now=NOW)
    assert (after.id, after.state, after.diagnosed().id) == (other.id, "open", "d2")


def test_what_people_ended_while_it_was_looked_at_stays_ended(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    service.attach(
        service.file(report("step time went up on rack one"), now=NOW).ticket.id, stored(kb, checkpoint(id="d1"))
    )
    over = service.file(report("the speech model trains at half its speed"), now=NOW).ticket
    service.close(over.id, "wont_fix", "ann", now=NOW)
    assert service.attach(over.id, stored(kb, checkpoint(id="d2")), now=NOW).closed_as == "wont_fix"


def test_a_diagnosis_of_what_became_a_duplicate_meanwhile_is_kept(kb: Stores) -> None:
    service = TicketService(kb, SETTINGS)
    one = service.file(report("step time of the vision model went up"), now=NOW).ticket
    other = service.file(report("the speech model trains at half its speed"), now=NOW).ticket
    service.link(other.id, one.id, "duplicate", "ann", now=NOW)
    after = service.attach(other.id, stored(kb, checkpoint()), now=NOW)
    assert (after.id, after.diagnosed().id) == (one.id, "d1")


def test_a_healthy_job_keeps_what_was_said_of_it(kb: Stores) -> None:
    service = TicketService(kb)
    ticket = service.file(report()).ticket
    healthy = checkpoint(verdict=Verdict.HEALTHY, cause=None)
    after = service.attach(ticket.id, stored(kb, healthy))
    assert (after.category, after.severity, after.fault) == (ticket.category, ticket.severity, None)


# --- people -----------------------------------------------------------------------------------------------------------


def test_every_step_is_told_and_audited(kb: Stores) -> None:
    service = TicketService(kb)
    one, two = (
        service.file(report()).ticket,
        service.file(report("the link of rack five flaps all the time")).ticket,
    )
    service.acknowledge(one.id, "ann", "chat:ops")
    service.assign(one.id, ["bob"], "ann")
    service.comment(one.id, "a line\nand another \x1b[31m", "ann", key="k")
    service.comment(one.id, "told twice", "ann", key="k")
    service.link(one.id, two.id, "related", "ann")
    service.resolve(one.id, "moved the checkpoints", "ann")
    service.reopen(one.id, "bob", because="it came back")
    done = service.close(one.id, "wont_fix", "bob", because="the job ends tomorrow")
    whats = [event.what for event in kb.tickets.events(one.id)]
    assert whats == ["opened", "acknowledged", "assigned", "commented", "linked", "resolved", "reopened", "closed"]
    assert (done.state, done.closed_as) == ("closed", "wont_fix")
    (comment,) = done.human.comments
    assert comment.text.startswith("a line\nand another")
    assert "\x1b" not in comment.text
    entries = kb.audit.entries(what="ticket.")
    assert {"ticket.acknowledged", "ticket.resolved", "ticket.closed"} <= {entry.what for entry in entries}
    assert next(e for e in entries if e.what == "ticket.acknowledged").detail["source"] == "chat:ops"


def test_a_step_that_life_does_not_allow_leaves_no_audit(kb: Stores) -> None:
    service = TicketService(kb)
    ticket = service.file(report()).ticket
    service.close(ticket.id, "wont_fix", "ann", because="no")
    before = len(kb.audit.entries())
    with pytest.raises(ToolError):
        service.acknowledge(ticket.id, "bob")
    assert len(kb.audit.entries()) == before


def test_what_a_person_confirms_is_learnt(kb: Stores) -> None:
    service = TicketService(kb)
    ticket = service.file(report("blinkenlight panel shows quux underrun on the frobnicator")).ticket
    assert ticket.category == "unknown"
    service.classify(ticket.id, "ann", category="accelerator")
    assert kb.tickets.get(ticket.id).category == "accelerator"
    service.resolve(ticket.id, "replaced the panel", "ann")
    assert kb.classifier.centroids.examples() == {"accelerator": 1}
    with pytest.raises(ToolError, match="category"):
        service.classify(ticket.id, "ann", category="banana")
