"""The ticket store: history, duplicates, links, and cards of resolved tickets."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from making import checkpoint, finding

from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.ticket_models import (
    LESSON,
    LIVE,
    Analysis,
    Assignment,
    Classification,
    Comment,
    Decision,
    Human,
    Link,
    Ticket,
    Verification,
)
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

AT, LATER = "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z"
HOSTILE = "'); DROP TABLE tickets; -- </text> <b>@all</b> {{ 7*7 }} \x1b[31m\u202eevil\ud800"


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "k.db") as base:
        yield base


def alert(key: str = "2:nccl", **changes: Any) -> Ticket:
    """A ticket that an alert opens."""
    said = Classification(
        category=Decision(value="network", by="words", confidence=0.6, because=["word:nccl"], rivals=["accelerator"]),
        component=Decision(value="nccl", by="rule:nccl-timeout"),
        severity=Decision(value="major", by="label:severity"),
        source_severity="P2",
    )
    values: dict[str, Any] = {
        "id": "",
        "created": AT,
        "updated": AT,
        "dedup_key": key,
        "severity": Severity.MAJOR,
        "category": "network",
        "component": "nccl",
        "origin": "alert",
        "classification": said,
        "human": Human(title="NCCL timeout on node7"),
        "labels": {"alertname": "NcclTimeout"},
        "analysis": Analysis(at=AT, checks=["offcputime"], triage="queued"),
    }
    return Ticket(**(values | changes))


def told(kb: Stores, id: str) -> list[tuple[int, str]]:
    return [(event.revision, event.what) for event in kb.tickets.events(id)]


def in_step(path: Path) -> None:
    """Each ticket's columns say what its record says, and its history ends with its revision."""
    with closing(sqlite3.connect(path)) as other:
        names = "id, dedup_key, state, created, updated, revision, origin, fault, severity, category, component,"
        names += " occurrences, title, target, cause, verdict, assignee, closed_as, body"
        for row in other.execute(f"SELECT {names} FROM tickets").fetchall():
            body = json.loads(row[-1])
            found = dict(zip(names.split(", "), row, strict=True))
            diagnosis, given = body["diagnosis"] or {}, body["assignment"] or {}
            body |= {name: diagnosis.get(name) or "" for name in ("target", "cause", "verdict")}
            body |= {"title": body["human"]["title"], "assignee": (given.get("users") or [""])[0]}
            assert {k: body[k] for k in found if k not in ("id", "body")} == {
                k: v for k, v in found.items() if k not in ("id", "body")
            }
            assert body["id"] == str(found["id"])
            told = other.execute("SELECT revision FROM ticket_events WHERE ticket = ? ORDER BY n", [found["id"]])
            revisions = [revision for (revision,) in told]
            assert revisions == list(range(1, body["revision"] + 1))


# --- every change -------------------------------------------------------------------------------------------------


def test_every_change_is_a_revision_and_a_line_of_history(kb: Stores, tmp_path: Path) -> None:
    tickets = kb.tickets
    made = tickets.create(alert(), "engine", "alert abc")
    assert (made.id, made.revision, made.state) == ("1", 1, "open")
    assert tickets.live("2:nccl") == made
    tickets.seen_again("1", "engine", LATER, "alert def")
    who = Assignment(users=["ann", "bob"], rule="category:network", at=AT)
    tickets.assign("1", who, "engine")
    tickets.assign("1", who.model_copy(update={"level": 1, "users": ["bob"]}), "engine")
    tickets.acknowledge("1", "bob")
    tickets.comment("1", Comment(by="bob", at=LATER, text="looks like the switch", key="c1"))
    tickets.edit("1", "bob", title="Switch drops packets")
    tickets.change("1", "classified", "bob", category="storage")
    tickets.attach("1", checkpoint(), "triage", severity=Severity.CRITICAL)
    tickets.verified("1", Verification(at=LATER, checks=[], solved=None))
    tickets.resolve("1", "another switch", "bob")
    tickets.close("1", "fixed", "bob")
    tickets.reopen("1", "ann", because="it is back")
    whats = ["opened", "seen_again", "assigned", "escalated", "acknowledged", "commented", "edited", "classified"]
    whats += ["diagnosed", "verified", "resolved", "closed", "reopened"]
    assert told(kb, "1") == list(enumerate(whats, 1))
    events = {event.what: event for event in tickets.events("1")}
    assert (events["resolved"].by, events["resolved"].detail) == ("bob", "another switch")
    assert (events["seen_again"].at, events["seen_again"].detail) == (LATER, "alert def")
    assert events["escalated"].detail == "bob (category:network)"
    assert [e.what for e in tickets.events("1", after=events["closed"].n)] == ["reopened"]
    assert [e.what for e in tickets.events("1", limit=2)] == ["closed", "reopened"]
    now = tickets.get("1")
    assert (now.revision, now.occurrences, now.severity, now.category) == (13, 2, Severity.CRITICAL, "storage")
    assert now.human.comments[0].text == "looks like the switch"
    in_step(tmp_path / "k.db")


def test_what_changes_nothing_leaves_no_trace(kb: Stores) -> None:
    kb.tickets.create(alert(), "engine")
    said = Comment(by="x", at=AT, text="hello", key="k")
    first = kb.tickets.comment("1", said)
    for again in (
        lambda: kb.tickets.comment("1", said),
        lambda: kb.tickets.change("1", "classified", "x", category="network"),
        lambda: kb.tickets.edit("1", "x", title=first.human.title),
        lambda: kb.tickets.seen_again("1", "x", times=0),
    ):
        assert again() == first
    assert told(kb, "1") == [(1, "opened"), (2, "commented")]


@pytest.mark.parametrize("name", ["id", "revision", "state", "closed_as", "ended", "created", "updated", "nonsense"])
def test_fields_of_the_store_cannot_be_changed(kb: Stores, name: str) -> None:
    kb.tickets.create(alert(), "engine")
    with pytest.raises(TypeError, match=name):
        kb.tickets.change("1", "edited", "x", **{name: "closed"})
    assert kb.tickets.get("1").revision == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda t: t.acknowledge("1", "x"),
        lambda t: t.resolve("1", "because", "x"),
        lambda t: t.close("1", "duplicate", "x"),
        lambda t: t.comment("1", Comment(by="x", at=AT, text=" ")),
        lambda t: t.link("1", Link(kind="related", ticket="1", at=AT)),
        lambda t: t.create(alert("2:other"), "x"),
    ],
)
def test_a_refused_step_stores_nothing(kb: Stores, step: Callable[[Any], object]) -> None:
    kb.tickets.create(alert(), "engine")
    kb.tickets.close("1", "stale", "engine")
    kb.tickets.create(alert("2:other"), "engine")
    before = kb.tickets.list(), kb.tickets.events("1"), kb.tickets.events("2")
    with pytest.raises(ToolError) as caught:
        step(kb.tickets)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert (kb.tickets.list(), kb.tickets.events("1"), kb.tickets.events("2")) == before


def test_what_is_done_together_is_stored_together(kb: Stores) -> None:
    with pytest.raises(RuntimeError), kb.transaction():  # noqa: PT012  the whole block is what fails
        kb.tickets.create(alert(), "engine")
        kb.tickets.acknowledge("1", "x")
        kb.tasks.add("triage", "triage:1", {})
        raise RuntimeError
    assert kb.tickets.list() == []
    assert kb.tasks.by_key("triage:1") is None
    with kb.transaction():
        made = kb.tickets.create(alert(), "engine")
        with pytest.raises(ToolError), kb.transaction():  # noqa: PT012  what fails within is undone alone
            kb.tickets.acknowledge(made.id, "x")
            kb.tickets.acknowledge(made.id, "x")
    assert kb.tickets.get(made.id).state == "open"
    assert told(kb, made.id) == [(1, "opened")]


def test_hostile_text_is_inert_wherever_it_comes_in(kb: Stores) -> None:
    tickets = kb.tickets
    tickets.create(alert(human=Human(title=HOSTILE, description=HOSTILE), labels={HOSTILE: HOSTILE}), HOSTILE, HOSTILE)
    tickets.comment("1", Comment(by=HOSTILE, at=AT, text=HOSTILE, source=HOSTILE, key=HOSTILE))
    tickets.edit("1", HOSTILE, title=HOSTILE, description=HOSTILE)
    tickets.create(alert("2:b"), HOSTILE)
    tickets.link("1", Link(kind="related", ticket="2", by=HOSTILE, why=["word:" + HOSTILE], at=AT))
    tickets.resolve("1", HOSTILE, HOSTILE)
    tickets.reopen("1", HOSTILE, because=HOSTILE)
    kept = tickets.get("1")
    texts = [kept.human.title, kept.human.description, kept.human.comments[0].text, kept.human.comments[0].by]
    texts += [*kept.labels, *kept.labels.values(), *kept.links[0].why, kept.human.comments[0].key]
    texts += [kept.links[0].by, *(text for e in tickets.events("1") for text in (e.by, e.detail))]
    assert all(text.isprintable() for text in texts)
    assert [t.id for t in tickets.lines(Wanted(assignee=HOSTILE, category=HOSTILE))] == []
    assert kept.resolution == ""


# --- lists --------------------------------------------------------------------------------------------------------


def test_lists_are_filtered(kb: Stores) -> None:
    tickets = kb.tickets
    tickets.create(alert("2:a"), "engine")
    tickets.create(alert("2:b", severity=Severity.CRITICAL, origin="work_order", human=Human(title="slow")), "engine")
    tickets.draft(checkpoint())
    tickets.assign("2", Assignment(users=["ann"], rule="default", at=AT), "engine")
    tickets.acknowledge("2", "ann", "2030-01-01T00:00:00Z")
    tickets.close("1", "stale", "bob", "2029-01-01T00:00:00Z")
    for wanted, ids in (
        (Wanted(), ["2", "1", "3"]),
        (Wanted(states=LIVE), ["2", "3"]),
        (Wanted(states=("closed", "acknowledged")), ["2", "1"]),
        (Wanted(severities=(Severity.CRITICAL,)), ["2"]),
        (Wanted(origins=("diagnosis", "work_order")), ["2", "3"]),
        (Wanted(assignee="ann"), ["2"]),
        (Wanted(assignee="", states=LIVE), ["3"]),
        (Wanted(category="storage"), ["3"]),
        (Wanted(component="nccl", states=("open",)), []),
        (Wanted(dedup_key="2:a"), ["1"]),
        (Wanted(fault=tickets.get("3").fault), ["3"]),
    ):
        assert [t.id for t in tickets.list(wanted)] == ids
        assert [line.id for line in tickets.lines(wanted)] == ids
        assert tickets.count(wanted) == len(ids)
        assert [t.id for t in tickets.list(wanted, limit=1)] == ids[:1]
        assert tickets.list(wanted, limit=-1) == []
    line = tickets.lines(Wanted(assignee="ann"))[0]
    assert (line.title, line.assignee, line.state, line.target) == ("slow", "ann", "acknowledged", "")
    line = tickets.lines(Wanted(category="storage"))[0]
    assert (line.cause, line.verdict, line.target) == ("sync_checkpoint_write", "confirmed", "pid 4242 (train)")
    assert tickets.ids("") == ["3", "2", "1"]


def test_a_list_goes_by_an_index_and_reads_no_records(kb: Stores) -> None:
    from whystall.knowledge_base.tickets import rows

    with kb._file.read() as db:
        order = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {rows._LINES}", rows._bound(Wanted(), 10))]
        live = "EXPLAIN QUERY PLAN SELECT id FROM tickets WHERE dedup_key = ? AND state IN ('open', 'acknowledged')"
        found = [row[3] for row in db.execute(live, ["x"])]
        columns = [row[1] for row in db.execute("PRAGMA table_info(tickets)")]
    assert any("INDEX tickets_updated" in step for step in order)
    assert not any("TEMP B-TREE" in step for step in order)
    assert any("tickets_live" in step for step in found)
    assert columns[-1] == "body"  # what stands behind a large record is read through it


# --- the same again -----------------------------------------------------------------------------------------------


def test_the_same_fault_counts_in_an_acknowledged_ticket(kb: Stores) -> None:
    kb.tickets.draft(checkpoint())
    kb.tickets.acknowledge("1", "ann")
    again = kb.tickets.draft(checkpoint(id="d2"))
    assert (again.id, again.occurrences, again.state) == ("1", 2, "acknowledged")
    with pytest.raises(ToolError, match="ticket 1 is acknowledged, for the same fault"):
        kb.tickets.create(alert(again.dedup_key), "x")


def test_a_diagnosis_of_an_alerts_fault_is_counted_in_its_ticket(kb: Stores) -> None:
    kb.tickets.create(alert(), "engine")
    kb.tickets.attach("1", checkpoint(), "triage")
    assert kb.get_diagnosis("d1").ticket == "1"
    assert kb.remember(checkpoint(id="d2"), ticket=True).ticket == "1"
    ticket = kb.tickets.get("1")
    assert (ticket.occurrences, ticket.origin, ticket.dedup_key) == (2, "alert", "2:nccl")
    assert kb.tickets.attach("1", checkpoint(id="d2"), "triage") == ticket
    assert [t.id for t in kb.tickets.of_fault(ticket.fault or "")] == ["1"]


def test_what_a_person_decided_stays_when_the_fault_recurs(kb: Stores) -> None:
    first = kb.tickets.draft(checkpoint())
    assert first.classification is not None
    assert first.classification.category.by == "diagnosis"
    mine = first.classification.model_copy(update={"severity": Decision(value="info", by="person:ann")})
    kb.tickets.change("1", "classified", "ann", severity=Severity.INFO, classification=mine)
    again = kb.tickets.draft(checkpoint(id="d2", created=LATER, explained_pct=100))
    assert again.severity is Severity.INFO
    assert again.classification is not None
    assert again.classification.severity.by == "person:ann"


@pytest.mark.parametrize("verdict", [Verdict.HEALTHY, Verdict.IDLE])
def test_a_diagnosis_without_a_fault_is_attached_and_sets_none(kb: Stores, verdict: Verdict) -> None:
    kb.tickets.create(alert(), "engine")
    found = kb.tickets.attach("1", checkpoint(verdict=verdict, cause=None), "triage")
    assert found.fault is None
    assert found.diagnosis is not None
    assert kb.tickets.resolve("1", "nothing was wrong", "ann").card is None


# --- duplicates and links -----------------------------------------------------------------------------------------


def pair(kb: Stores) -> None:
    """Ticket 1 of a diagnosis, and ticket 2 of an alert that turned out to be of the same fault."""
    kb.tickets.draft(checkpoint())
    kb.tickets.create(alert(), "engine")
    kb.tickets.seen_again("2", "engine", times=4)
    kb.tickets.attach("2", checkpoint(id="d2", created=LATER), "triage")


def test_a_duplicate_is_closed_and_counted_in_the_original(kb: Stores, tmp_path: Path) -> None:
    pair(kb)
    original = kb.tickets.duplicate("2", "1", "engine", LATER, ["fault"])
    closed = kb.tickets.get("2")
    assert (original.id, original.occurrences, original.state) == ("1", 6, "open")
    assert original.diagnosis is not None
    assert (original.diagnosis.id, original.diagnosis.ticket) == ("d2", "1")
    assert (closed.state, closed.closed_as, closed.ended) == ("closed", "duplicate", LATER)
    assert [(x.kind, x.ticket, x.why) for x in closed.links] == [("duplicate", "1", ["fault"])]
    assert [(x.kind, x.ticket) for x in original.links] == [("duplicated_by", "2")]
    assert kb.get_diagnosis("d2").ticket == "1"
    assert kb.tickets.events("2")[-1].detail == "duplicate:1"
    # What is reported as the duplicate was is counted where that is.
    assert kb.tickets.live("2:nccl") == original
    assert kb.tickets.duplicate("2", "1", "engine") == original
    in_step(tmp_path / "k.db")
    kb.tickets.resolve("1", "moved it", "ann")
    assert kb.tickets.live("2:nccl") is None


def test_the_outages_of_a_duplicate_are_one_with_those_of_the_original(kb: Stores) -> None:
    kb.tickets.draft(checkpoint())
    kb.tickets.resolve("1", "moved it", "ann")
    kb.tickets.create(alert(), "engine")
    kb.tickets.attach("2", checkpoint(id="d2"), "triage")
    kb.tickets.create(alert("2:b"), "engine")
    kb.tickets.attach("3", checkpoint(id="d3"), "triage")
    kb.tickets.duplicate("3", "2", "engine")
    with kb._file.read() as db:
        keys = {key for (key,) in db.execute("SELECT key FROM occurrences WHERE incident = 'ticket-1'")}
    assert "ticket:3" not in keys


def test_duplicates_of_duplicates_lead_to_one_original(kb: Stores) -> None:
    for n in range(4):
        kb.tickets.create(alert(f"2:{n}"), "engine")
    kb.tickets.duplicate("2", "1", "ann")
    assert kb.tickets.duplicate("3", "2", "ann").id == "1"
    assert kb.tickets.get("3").links[0].ticket == "1"
    assert kb.tickets.get("1").occurrences == 3
    kb.tickets.duplicate("1", "4", "ann")
    assert kb.tickets.live("2:2") == kb.tickets.get("4")
    assert kb.tickets.get("4").occurrences == 4
    for id, of, fault in (("4", "4", "itself"), ("4", "3", "its own"), ("2", "4", "duplicate of ticket 1 already")):
        with pytest.raises(ToolError, match=fault):
            kb.tickets.duplicate(id, of, "ann")


def test_the_fault_of_a_duplicate_is_counted_in_its_original(kb: Stores) -> None:
    kb.tickets.draft(checkpoint(id="d1"))
    kb.tickets.draft(checkpoint(id="d2", comm="eval"))
    kb.tickets.duplicate("2", "1", "ann")
    again = kb.tickets.draft(checkpoint(id="d3", comm="eval", created=LATER))
    assert (again.id, again.occurrences) == ("1", 3)
    assert again.diagnosed().id == "d1"  # somebody said they are one; its own evidence stays
    assert kb.get_diagnosis("d3").ticket == "1"
    kb.tickets.resolve("1", "moved it", "ann")
    assert kb.tickets.draft(checkpoint(id="d4", comm="eval", created=LATER)).id == "3"


def test_a_reopened_duplicate_is_no_duplicate(kb: Stores) -> None:
    pair(kb)
    kb.tickets.duplicate("2", "1", "engine")
    again = kb.tickets.reopen("2", "ann", because="another node")
    assert (again.state, again.links, again.closed_as) == ("open", [], None)
    original = kb.tickets.get("1")
    assert (original.occurrences, original.links) == (1, [])
    assert kb.tickets.events("1")[-1].what == "unlinked"
    assert kb.tickets.duplicate("2", "1", "engine").occurrences == 6


def test_a_fault_that_has_a_live_ticket_is_not_opened_a_second_time(kb: Stores) -> None:
    kb.tickets.create(alert(), "engine")
    kb.tickets.close("1", "stale", "engine")
    kb.tickets.create(alert(), "engine")
    with pytest.raises(ToolError, match="ticket 2 is open, for the same fault"):
        kb.tickets.reopen("1", "ann")
    assert kb.tickets.get("1").state == "closed"
    kb.tickets.close("2", "stale", "engine")
    assert kb.tickets.reopen("1", "ann").state == "open"


def test_a_ticket_closed_as_something_else_may_turn_out_to_be_a_duplicate(kb: Stores) -> None:
    pair(kb)
    kb.tickets.close("2", "stale", "engine", LATER)
    kb.tickets.duplicate("2", "1", "ann")
    assert (kb.tickets.get("2").closed_as, kb.tickets.get("2").ended) == ("duplicate", LATER)


def test_related_tickets_show_each_other(kb: Stores) -> None:
    kb.tickets.create(alert("2:a"), "engine")
    kb.tickets.create(alert("2:b"), "engine")
    link = Link(kind="related", ticket="2", why=["host:node7"], by="ann", at=AT)
    kb.tickets.link("1", link)
    assert kb.tickets.get("1").links == [link]
    assert kb.tickets.get("2").links == [link.model_copy(update={"ticket": "1"})]
    assert kb.tickets.link("2", link.model_copy(update={"ticket": "1"})).revision == 2
    kb.tickets.unlink("2", "1", "ann")
    assert [kb.tickets.get(id).links for id in "12"] == [[], []]
    with pytest.raises(ToolError) as caught:
        kb.tickets.link("1", link.model_copy(update={"ticket": "9"}))
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert kb.tickets.link("2", link.model_copy(update={"ticket": "1", "kind": "duplicated_by"})).state == "open"
    assert kb.tickets.get("1").closed_as == "duplicate"


def test_whatever_is_done_in_whatever_order_every_report_is_counted_once_and_both_ends_agree(
    kb: Stores, tmp_path: Path
) -> None:
    dice = random.Random(11)
    reports = 0
    refused = 0

    def create() -> None:
        kb.tickets.create(alert(f"2:{dice.randrange(8)}"), "x")

    def seen() -> None:
        live = kb.tickets.live(f"2:{dice.randrange(8)}")
        if live is None:
            raise ToolError(ErrorCode.NOT_FOUND, "", "")
        kb.tickets.seen_again(live.id, "x")

    some = lambda: dice.choice(kb.tickets.ids() or ["1"])  # noqa: E731
    reporting = [create, seen]
    moving = [
        lambda: kb.tickets.acknowledge(some(), "x"),
        lambda: kb.tickets.resolve(some(), "because", "x"),
        lambda: kb.tickets.close(some(), dice.choice(["stale", "no_fault", "fixed", "duplicate"]), "x"),
        lambda: kb.tickets.reopen(some(), "x"),
        lambda: kb.tickets.reopen(some(), "x"),
        lambda: kb.tickets.duplicate(some(), some(), "x"),
        lambda: kb.tickets.duplicate(some(), some(), "x"),
        lambda: kb.tickets.link(some(), Link(kind="related", ticket=some(), at=AT)),
        lambda: kb.tickets.unlink(some(), some(), "x"),
    ]
    for _ in range(600):
        step = dice.choice([*reporting, *moving])
        try:
            step()
        except ToolError:
            refused += 1
        else:
            reports += step in reporting
        tickets = {ticket.id: ticket for ticket in kb.tickets.list(limit=1000)}
        assert sum(t.occurrences for t in tickets.values() if t.closed_as != "duplicate") == reports
    back = {"duplicate": "duplicated_by", "duplicated_by": "duplicate", "related": "related"}
    for ticket in tickets.values():
        assert (ticket.closed_as == "duplicate") == any(link.kind == "duplicate" for link in ticket.links)
        for link in ticket.links:
            assert (back[link.kind], ticket.id) in {(far.kind, far.ticket) for far in tickets[link.ticket].links}
    assert len({t.dedup_key for t in tickets.values() if t.state in LIVE}) == sum(
        t.state in LIVE for t in tickets.values()
    )
    assert 100 < refused < 500
    in_step(tmp_path / "k.db")


# --- what is learnt -----------------------------------------------------------------------------------------------


def unknown() -> Diagnosis:
    bad = finding("file.slow_read", id="F1", subject={"comm": "train", "path": "/data/x"}, window_pct=30, max_ms=9)
    return checkpoint(cause=None, culprit=None, findings=[bad], id="d9")


def test_a_ticket_without_a_diagnosis_teaches_nothing_and_is_not_verified(kb: Stores) -> None:
    kb.tickets.create(alert(), "engine")
    done = kb.tickets.resolve("1", "another cable", "ann")
    assert (done.card, done.resolution) == (None, "another cable")
    assert [c.id for c in kb.cards.list(prefix=LESSON)] == []
    with pytest.raises(ToolError, match="ticket 1 has no diagnosis") as caught:
        done.diagnosed()
    assert "tickets attach 1" in caught.value.remedy


def test_a_resolution_without_lesson_makes_no_card_until_closed_as_fixed(kb: Stores) -> None:
    kb.tickets.create(alert(), "engine")
    kb.tickets.attach("1", unknown(), "triage")
    assert kb.tickets.resolve("1", "the alert resolved", "alertmanager", lesson=False).card is None
    done = kb.tickets.close("1", "fixed", "ann", because="replaced the disk")
    assert done.card == "ticket-1"
    assert kb.cards.get("ticket-1").fix.en == "replaced the disk"


@pytest.mark.parametrize(("as_", "kept"), [("no_fault", "retired"), ("wont_fix", "draft"), ("stale", "draft")])
def test_what_was_no_fault_after_all_is_not_offered_as_a_lesson(kb: Stores, as_: Any, kept: str) -> None:
    kb.tickets.draft(unknown())
    kb.tickets.resolve("1", "rebooted", "ann")
    kb.tickets.close("1", as_, "bob")
    assert kb.cards.get("ticket-1").state == kept


def test_what_did_not_solve_it_is_taken_back_when_the_ticket_is_reopened(kb: Stores) -> None:
    kb.tickets.draft(unknown())
    kb.tickets.resolve("1", "rebooted", "ann")
    assert kb.tickets.reopen("1", "bob").card is None
    taken = kb.cards.get("ticket-1")
    assert (taken.state, taken.history[-1].because) == ("retired", "ticket 1 was reopened")
    assert kb.tickets.resolve("1", "replaced the disk", "ann").card == "ticket-1"
    again = kb.cards.get("ticket-1")
    assert (again.state, again.fix.en, again.notes) == ("draft", "replaced the disk", [])
    assert kb.match(unknown())[0].incident == "ticket-1"


def test_a_reviewed_card_is_kept(kb: Stores) -> None:
    kb.tickets.draft(unknown())
    kb.tickets.resolve("1", "rebooted", "ann")
    kb.cards.accept("ticket-1", "ann")
    kb.tickets.close("1", "no_fault", "bob")
    assert kb.cards.get("ticket-1").state == "reviewed"


def test_comments_after_the_end_do_not_prolong_the_outage(kb: Stores) -> None:
    kb.tickets.draft(checkpoint())
    kb.tickets.resolve("1", "moved it", "ann", "2025-01-01T06:00:00Z")
    kb.tickets.comment("1", Comment(by="bob", at="2025-03-01T00:00:00Z", text="thanks"))
    seen = checkpoint(id="d2", coverage=[checkpoint().coverage[0].model_copy(update={"start": "2025-02-01T00:00:00Z"})])
    kb.remember(seen, ticket=False)
    assert kb.cards.track_record("ticket-1")[0].count == 2
