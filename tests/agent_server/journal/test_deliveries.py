"""Deliveries to trackers: due while behind, one owner at a time, parked for a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.agent_server.journal.deliveries import FARTHEST_S, Deliveries
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.ticket_models import Ticket
from whystall.tools.contract.findings import Severity

NOW = 1_800_000_000.0
SINKS = ["gitlab", "pager"]


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    """With ticket 1 of revision 1, and 2 of revision 4."""
    with Stores(tmp_path / "knowledge.db") as kb:
        for key in ("a", "b"):
            kb.tickets.create(
                Ticket(
                    id="",
                    created="2026-01-01T00:00:00Z",
                    updated="2026-01-01T00:00:00Z",
                    dedup_key=f"2:{key}",
                    severity=Severity.MAJOR,
                    category="storage",
                    component="disk",
                ),
                "engine",
            )
        revise(kb, "2", 4)
        yield kb


@pytest.fixture
def deliveries(kb: Stores) -> Deliveries:
    return kb.deliveries


def revise(kb: Stores, ticket: str, revision: int) -> None:
    for _ in range(revision - kb.tickets.get(ticket).revision):
        kb.tickets.seen_again(ticket, "engine")


def test_a_delivery_is_due_until_delivered_and_again_after_a_change(kb: Stores, deliveries: Deliveries) -> None:
    assert deliveries.want("gitlab", "2")
    assert not deliveries.want("gitlab", "2")
    assert [(d.ticket, d.wanted, d.delivered) for d in deliveries.due(NOW, SINKS)] == [("2", 4, 0)]
    taken = deliveries.take(SINKS, "me", NOW, 60)
    assert taken is not None
    assert deliveries.begin("gitlab", "2", "me", NOW, {})
    assert deliveries.created("gitlab", "2", "me", "17", "http://t/17", {"a": 1})
    assert deliveries.delivered("gitlab", "2", "me", 4, {"b": 3})
    assert deliveries.due(NOW, SINKS) == []
    assert deliveries.next_due(SINKS) is None
    revise(kb, "2", 5)
    due = deliveries.due(NOW, SINKS)[0]
    assert (due.wanted, due.delivered, due.remote, due.memory, due.underway) == (5, 4, "17", {"a": 1, "b": 3}, None)


def test_a_ticket_that_is_not_there_is_not_wanted(deliveries: Deliveries) -> None:
    assert not deliveries.want("gitlab", "77")
    assert deliveries.counts() == {}


def test_only_sinks_that_are_asked_for_are_given(deliveries: Deliveries) -> None:
    deliveries.want("gone", "1")
    assert deliveries.take(SINKS, "me", NOW, 60) is None
    assert deliveries.due(NOW, SINKS) == []


def test_one_has_it_until_its_lease_runs_out(deliveries: Deliveries) -> None:
    deliveries.want("gitlab", "1")
    assert deliveries.take(SINKS, "me", NOW, 60) is not None
    assert deliveries.take(SINKS, "you", NOW + 30, 60) is None
    assert deliveries.next_due(SINKS) == NOW + 60
    assert deliveries.take(SINKS, "you", NOW + 61, 60) is not None
    # whoever lost it begins nothing more
    assert not deliveries.begin("gitlab", "1", "me", NOW + 61, {})
    assert not deliveries.delivered("gitlab", "1", "me", 1, {})
    assert deliveries.begin("gitlab", "1", "you", NOW + 61, {})


def test_what_the_dead_had_is_given_back(deliveries: Deliveries) -> None:
    deliveries.want("gitlab", "1")
    deliveries.take(SINKS, "me", NOW, 60)
    deliveries.begin("gitlab", "1", "me", NOW, {})
    assert deliveries.release("me") == 1
    taken = deliveries.take(SINKS, "you", NOW + 1, 60)
    assert taken is not None
    assert taken.underway == NOW


def test_a_clock_set_back_leaves_nothing_behind(deliveries: Deliveries) -> None:
    deliveries.want("gitlab", "1")
    deliveries.take(SINKS, "me", NOW, 60)
    back = NOW - 10 * FARTHEST_S
    assert deliveries.take(SINKS, "you", back, 60) is not None
    deliveries.retry_at("gitlab", "1", "you", NOW + 60, "later")
    assert deliveries.due(NOW, SINKS) == []
    assert [d.error for d in deliveries.due(back, SINKS)] == ["later"]


def test_what_failed_waits_and_what_is_parked_waits_for_a_person(kb: Stores, deliveries: Deliveries) -> None:
    for ticket in ("1", "2"):
        deliveries.want("gitlab", ticket)
    deliveries.take(SINKS, "me", NOW, 60)
    deliveries.retry_at("gitlab", "1", "me", NOW + 30, "rate_limited: HTTP 429")
    assert [d.ticket for d in deliveries.due(NOW, SINKS)] == ["2"]
    assert [d.attempts for d in deliveries.due(NOW + 30, SINKS)] == [0, 1]
    deliveries.take(SINKS, "me", NOW + 31, 60, ticket="1")
    deliveries.park("gitlab", "1", "me", "unauthorised: \x1b HTTP 401")
    assert deliveries.park_all("gitlab", "unauthorised: HTTP 401") == 1
    assert deliveries.counts() == {"gitlab": (2, 2, 2)}
    assert next(d.error for d in deliveries.troubled("gitlab")) == "unauthorised: \\x1b HTTP 401"
    revise(kb, "1", 9)
    assert deliveries.due(NOW + 9e4, SINKS) == []
    assert deliveries.unpark("gitlab") == 2
    assert len(deliveries.due(NOW, SINKS)) == 2


def test_the_way_back_from_the_tracker(deliveries: Deliveries) -> None:
    deliveries.want("gitlab", "2")
    assert deliveries.take(SINKS, "me", NOW, 60) is not None
    deliveries.created("gitlab", "2", "me", "17", "http://t/17", {})
    found = deliveries.of_remote("gitlab", "17")
    assert found is not None
    assert found.ticket == "2"
    assert deliveries.of_remote("gitlab", "") is None
    assert deliveries.of_remote("pager", "17") is None
    assert [d.sink for d in deliveries.of_ticket("2")] == ["gitlab"]
    deliveries.delivered("gitlab", "2", "me", 4, {})
    deliveries.resend("gitlab", "2")
    assert [d.ticket for d in deliveries.due(NOW, SINKS)] == ["2"]


def test_memory_is_merged_by_owner_and_inbound_changes(deliveries: Deliveries) -> None:
    deliveries.want("gitlab", "2")
    deliveries.take(SINKS, "me", NOW, 60)
    deliveries.begin("gitlab", "2", "me", NOW, {"nonce": "x", "labels": ["a"]})
    deliveries.patch_memory("gitlab", "2", {"state": "over"})
    deliveries.save_memory("gitlab", "2", "me", {"labels": [], "nonce": None})
    found = deliveries.get("gitlab", "2")
    assert found is not None
    assert found.memory == {"state": "over", "labels": []}
    assert deliveries.not_created("gitlab", "2", "me")


def test_news_are_read_on_from_where_they_were(deliveries: Deliveries) -> None:
    assert deliveries.cursor("gitlab") == {}
    deliveries.read_to("gitlab", {"since": "2026-01-01T00:00:00Z"})
    deliveries.read_to("gitlab", {"since": "2026-01-02T00:00:00Z"})
    assert deliveries.cursor("gitlab") == {"since": "2026-01-02T00:00:00Z"}
