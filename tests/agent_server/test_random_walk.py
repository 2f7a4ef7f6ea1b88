"""Alerts, diagnoses, people and a tracker act on the same tickets in any order: what must hold at each step holds, and
once all is delivered every issue shows the state of its ticket.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from making import checkpoint
from sink_scenes import Scene, environment, scene

from whystall.agent_server.integrations.alerts.groups import Groups
from whystall.agent_server.integrations.alerts.intake import Intake
from whystall.agent_server.integrations.alerts.routefile import from_text
from whystall.agent_server.integrations.trackers.apply_events import apply
from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker
from whystall.agent_server.integrations.trackers.desired import phase_of
from whystall.agent_server.integrations.trackers.inbound import receive
from whystall.agent_server.outbound.client import Client
from whystall.knowledge_base.ticket_models import LIVE
from whystall.knowledge_base.tickets.life import original_of
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
TOKEN = "0123456789abcdef"
ROUTES = b"""
route: {receiver: r, group_by: [alertname], group_wait: 10s, group_interval: 1m, repeat_interval: 1h}
receivers: [{name: r}]
"""
BACK = {"duplicate": "duplicated_by", "duplicated_by": "duplicate", "related": "related"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Walk:
    """What may happen, each as one step; `log` tells what did."""

    def __init__(self, s: Scene, seed: int) -> None:
        self.s, self.kb, self.tracker = s, s.kb, s.vendor
        self.random = random.Random(seed)
        tree = from_text(ROUTES)
        self.intake, self.groups = Intake(s.kb, s.settings, tree), Groups(s.kb, s.settings, tree)
        self.mail: list[dict[str, Any]] = []
        self.starts: dict[str, float] = {}
        self.firing: dict[str, bool] = {}
        self.last = b""
        self.said: Counter[str] = Counter()
        self.n = 0
        self.log: list[str] = []
        self.tracker._on_event = self.mail.append
        answer = self.tracker.answer

        def echoing(method: str, target: str, headers: Any, body: bytes) -> Any:
            given = answer(method, target, headers, body)
            if method == "PUT" and given[0] == 200:  # GitLab tells of what we did ourselves as well
                issue = self.tracker.issues[json.loads(given[2])["iid"] - 1]
                action = json.loads(body).get("state_event") or "update"
                self.tracker._tell(issue, "whystall-bot", "issue", {"action": action})
            return given

        self.tracker.answer = echoing

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.s.now, timezone.utc)

    def any_ticket(self) -> str:
        return self.random.choice([*self.kb.tickets.ids()] or [""])

    # --- what happens ---------------------------------------------------------------------------------------------

    def alert(self) -> None:
        key = self.random.choice(["A-x", "A-y", "B-x", "B-y"])
        firing = self.random.random() < 0.5
        if firing and not self.firing.get(key):
            self.starts[key] = self.s.now
        if key in self.starts:
            self.post(key, firing)

    def post(self, key: str, firing: bool) -> None:
        self.firing[key] = firing
        status, name = "firing" if firing else "resolved", key[0]
        one = {
            "status": status,
            "labels": {"alertname": name, "node": key[-1]},
            "fingerprint": key,
            "startsAt": rfc3339(datetime.fromtimestamp(self.starts[key], timezone.utc)),
            "endsAt": "0001-01-01T00:00:00Z" if firing else rfc3339(self.at),
        }
        self.last = json.dumps({"version": "4", "groupKey": f"{{}}:{name}", "alerts": [one]}).encode()
        self.intake.receive(self.last, self.s.now)

    def replay(self) -> None:
        if self.last:
            self.intake.receive(self.last, self.s.now)

    def time(self) -> None:
        self.s.now += self.random.choice([5, 61, 700, 3700])
        self.log += map(str, self.groups.work(self.s.now))

    def diagnose(self) -> None:
        self.n += 1
        path = self.random.choice(["/data/a_1.bin", "/data/b_1.bin"])
        found = checkpoint(path, id=f"d{self.n}", created=rfc3339(self.at))
        ticket = self.any_ticket()
        if self.random.random() < 0.3 or not ticket:
            self.s.ticket_service.settle(self.kb.tickets.draft(found).id, now=self.at)
        else:
            self.log.append(f"diagnosis: {ticket} -> {self.s.ticket_service.attach(ticket, found, now=self.at).id}")

    def person(self) -> None:
        one, other = self.any_ticket(), self.any_ticket()
        if not one:
            return
        ticket_service, at = self.s.ticket_service, self.at
        self.n += 1
        text = f"comment {self.n}."
        steps: list[Callable[[], Any]] = [
            lambda: ticket_service.acknowledge(one, "ann", now=at),
            lambda: ticket_service.resolve(one, "restarted it", "ann", now=at),
            lambda: ticket_service.close(one, "wont_fix", "ann", now=at),
            lambda: ticket_service.reopen(one, "ann", now=at),
            lambda: ticket_service.link(one, other, "duplicate", "ann", now=at),
            lambda: ticket_service.unlink(one, other, "ann", now=at),
            lambda: ticket_service.comment(one, text, "ann", now=at),
        ]
        step = self.random.randrange(len(steps))
        self.log.append(f"person: step {step} of {one}, {other}")
        try:
            steps[step]()
        except ToolError as error:
            if error.code is not ErrorCode.BAD_ARGUMENT:  # not what a ticket's life forbids
                raise
        else:
            self.said[text] += step == len(steps) - 1

    def there(self) -> None:
        """Somebody does something in the tracker."""
        known = {delivery.remote for delivery in self.kb.deliveries.of_sink("s")}
        issues = [issue for issue in self.tracker.issues if str(issue.iid) in known]
        if not issues:
            return
        issue = self.random.choice(issues)
        self.n += 1
        what = self.random.choice(["reopen" if issue.state == "closed" else "close", "label", "comment"])
        text = {"label": self.s.settings.sinks["s"].acknowledged_label, "comment": f"there {self.n}."}.get(what, "")
        self.tracker.act(issue.iid, what, "alice", text)
        self.said[text] += what == "comment"
        self.log.append(f"tracker: {what} {issue.iid}")

    def hook(self, again: float = 0.3) -> None:
        """Something that the tracker told comes in: in any order, some of it more than once."""
        if not self.mail:
            return
        event = self.mail.pop(self.random.randrange(len(self.mail)))
        settings = self.s.settings.sinks["s"]
        heard = receive("s", settings, {"x-gitlab-token": TOKEN}, {}, json.dumps(event).encode(), self.s.now)
        assert isinstance(heard, list)
        done = apply(heard, "s", settings, self.kb, self.s.ticket_service, self.s.now)
        self.log.append(f"hook: {event['object_kind']} {event['object_attributes'].get('action')}: {done}")
        if self.random.random() < again:
            self.mail.append(event)

    async def deliver(self) -> float | None:
        async with Client() as client:
            return await DeliveryWorker(self.kb, self.s.settings, client, lambda: self.s.now).due("s")

    # --- what holds -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        tickets = {id: self.kb.tickets.get(id) for id in self.kb.tickets.ids()}
        keys = Counter(ticket.dedup_key for ticket in tickets.values() if ticket.state in LIVE)
        assert max(keys.values(), default=1) == 1
        for ticket in tickets.values():
            for link in ticket.links:
                there = [(other.kind, other.ticket) for other in tickets[link.ticket].links]
                assert (BACK[link.kind], ticket.id) in there
            counted = sum(other.occurrences for other in tickets.values() if original_of(other) == ticket.id)
            assert ticket.occurrences > counted
        remotes = [delivery.remote for delivery in self.kb.deliveries.of_sink("s") if delivery.remote]
        assert len(remotes) == len(set(remotes))
        for group in self.kb.alerts.groups():
            if any(member.notified and member.status == "firing" for member in self.kb.alerts.members(group.id)):
                assert group.ticket is not None
                self.accounted(group.ticket)

    def accounted(self, ticket: str) -> None:
        """What fires is in a live ticket, or in one that somebody has ended; it does not end by itself."""
        original = self.kb.tickets.original(ticket)
        if original.state not in LIVE:
            events = [event for id in (ticket, original.id) for event in self.kb.tickets.events(id)]
            assert any(e.by not in ("alerts", "engine") for e in events if e.what in ("resolved", "closed"))

    async def end(self) -> None:
        for _ in range(100):
            while self.mail:
                self.hook(again=0)
            due = await self.deliver()
            if due is None and not self.mail:
                break
            self.s.now = max(self.s.now, due or 0) + 1
        deliveries = self.kb.deliveries.of_sink("s")
        assert {delivery.ticket for delivery in deliveries} == set(self.kb.tickets.ids())
        assert len(self.tracker.issues) == len(deliveries)
        for delivery in deliveries:
            issue = self.tracker.issues[int(delivery.remote) - 1]
            assert (issue.state == "closed") == (phase_of(self.kb.tickets.get(delivery.ticket)) == "over"), delivery
        comments = [comment.text for id in self.kb.tickets.ids() for comment in self.kb.tickets.get(id).human.comments]
        assert sorted(comments) == sorted(self.said.elements())
        notes = "\n".join(note["body"] for issue in self.tracker.issues for note in issue.notes)
        assert all(notes.count(text) == 1 for text in self.said.elements())
        for key in [key for key, firing in self.firing.items() if firing]:
            self.post(key, firing=False)
        for _ in range(60):
            self.s.now += 61
            self.groups.work(self.s.now)
        assert self.kb.alerts.counts()["groups"] == 0
        self.check()


@pytest.mark.parametrize("seed", [14, 24, 43, 48])  # each found a mistake once
async def test_whatever_happens_tickets_alerts_and_issues_agree(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch)
    monkeypatch.setenv("SINK_SECRET", TOKEN)
    with scene("gitlab", tmp_path, webhook_token={"env": "SINK_SECRET"}, settle=0) as s:
        walk = Walk(s, seed)
        moves = [walk.alert, walk.alert, walk.replay, walk.time, walk.time, walk.diagnose, walk.person, walk.there]
        s.gate.faults = lambda _: walk.random.choice([None, None, None, "drop", "lost"])
        try:
            for _ in range(120):
                if walk.random.random() < 0.15:
                    await walk.deliver()
                else:
                    walk.random.choice([*moves, walk.hook, walk.hook])()
                walk.check()
            s.gate.faults = None
            await walk.end()
        except AssertionError:
            print("\n".join(walk.log))
            raise
