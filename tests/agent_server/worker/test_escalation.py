"""Tickets that nobody acknowledges go on to the next, who is told; what has ended is forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.worker.escalation import Escalation
from whystall.agent_server.worker.retention import Retention
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.times import rfc3339

BEGAN = datetime(2026, 3, 2, 9, 0, tzinfo=timezone.utc)
SETTINGS = {
    "users": {
        "wang": {"chats": {"ops": "u-wang"}},
        "li": {"chats": {"ops": "u-li", "gone": "u-li"}},
        "chen": {},
    },
    "chat": {"ops": {"kind": "webhook", "secret": {"env": "X"}, "url": "http://127.0.0.1:9/"}},
    "tickets": {"lang": "zh"},
    "oncall": {
        "schedules": {
            "training": {
                "timezone": "Asia/Shanghai",
                "layers": [{"users": ["wang"]}],
                "escalation": [{"after": "15m", "users": ["li"]}, {"after": "15m", "users": ["chen"]}],
            }
        },
    },
}


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as opened:
        yield opened


@pytest.fixture
def settings() -> Settings:
    return Settings(**SETTINGS)


def opened(kb: Stores, settings: Settings, title: str = "stalls", origin: str = "alert") -> Ticket:
    report = Report(origin=origin, title=title, created=rfc3339(BEGAN), dedup_key=f"2:{title}", schedule="training")
    ticket = TicketService(kb, settings).file(report, now=BEGAN).ticket
    assert ticket.assignment is not None
    assert ticket.assignment.users == ["wang"]
    return ticket


def who(kb: Stores, id: str) -> tuple[list[str], int]:
    assignment = kb.tickets.get(id).assignment
    assert assignment is not None
    return assignment.users, assignment.level


@pytest.mark.parametrize("origin", ["work_order", "diagnosis"])
def test_what_nobody_is_called_for_at_night(kb: Stores, settings: Settings, origin: str) -> None:
    opened(kb, settings, origin=origin)
    assert Escalation(kb, settings).escalate(BEGAN + timedelta(days=1)) == 0


def test_a_ticket_goes_on_step_by_step_and_each_is_told_once(kb: Stores, settings: Settings) -> None:
    ticket = opened(kb, settings, title="@all **stalls**")
    escalating = Escalation(kb, settings)
    assert escalating.escalate(BEGAN + timedelta(minutes=14)) == 0
    assert escalating.escalate(BEGAN + timedelta(minutes=15)) == 1
    assert escalating.escalate(BEGAN + timedelta(minutes=16)) == 0
    assert who(kb, ticket.id) == (["li"], 1)
    assert escalating.escalate(BEGAN + timedelta(minutes=31)) == 1
    assert who(kb, ticket.id) == (["chen"], 2)
    assert escalating.escalate(BEGAN + timedelta(days=1)) == 0
    messages = kb.messages.latest()
    assert [(m.channel, m.conversation) for m in messages] == [("ops", "u-li")]  # chen has no chat, "gone" is none
    text = messages[0].message["text"]
    assert f"工单 {ticket.id}" in text
    assert "`@all **stalls**`" in text  # somebody's title mentions nobody
    assert [e.what for e in kb.tickets.events(ticket.id)].count("escalated") == 2
    assert len(kb.audit.entries(what="ticket.escalated")) == 2


def test_who_acknowledged_it_keeps_it(kb: Stores, settings: Settings) -> None:
    ticket = opened(kb, settings)
    escalating = Escalation(kb, settings)
    assert escalating.escalate(BEGAN + timedelta(minutes=1)) == 0
    TicketService(kb, settings).acknowledge(ticket.id, "wang", now=BEGAN + timedelta(minutes=2))
    assert escalating.escalate(BEGAN + timedelta(hours=5)) == 0
    assert who(kb, ticket.id)[0] == ["wang"]


def test_a_backlog_is_nobodys_emergency(kb: Stores, settings: Settings) -> None:
    opened(kb, settings, origin="work_order")
    assert Escalation(kb, settings).escalate(BEGAN + timedelta(days=1)) == 0


def test_a_clock_that_jumps_takes_one_step_at_a_time(kb: Stores, settings: Settings) -> None:
    ticket = opened(kb, settings)
    escalating = Escalation(kb, settings)
    far = BEGAN + timedelta(days=365)
    assert escalating.escalate(far) == 1
    assert who(kb, ticket.id) == (["li"], 1)
    assert escalating.escalate(far) == 0
    assert escalating.escalate(BEGAN) == 1  # set back: better told early than never
    assert who(kb, ticket.id) == (["chen"], 2)


def test_ended_things_are_forgotten_after_their_days_and_replays_are_not(kb: Stores) -> None:
    now = time.time()
    with kb.transaction():
        for key in ("old", "new", "waits"):
            kb.tasks.add("a", key, {})
            kb.handled_requests.first("chat", key, now - (40 if key == "old" else 5) * 86_400)
        for key in ("old", "new"):
            task = kb.tasks.by_key(key)
            assert task is not None
            kb.tasks.done(task.id)
    with kb._file.write() as db:
        old = rfc3339(datetime.fromtimestamp(now, timezone.utc) - timedelta(days=40))
        db.execute("UPDATE tasks SET updated = ? WHERE key = 'old'", [old])
    further: list[float] = []

    def also(at: float) -> int:
        further.append(at)
        return 3

    assert Retention(kb, 30, [also]).forget(now) == 1 + 1 + 3  # a task, what was seen, and of the others
    assert further == [now]
    assert kb.tasks.by_key("old") is None
    assert kb.tasks.by_key("new") is not None
    assert kb.tasks.by_key("waits") is not None
    assert Retention(kb, 1, []).forget(now) == 0  # however short it is kept: what could come again is remembered
    assert not kb.handled_requests.first("chat", "new", now)
    assert kb.handled_requests.first("chat", "old", now)
