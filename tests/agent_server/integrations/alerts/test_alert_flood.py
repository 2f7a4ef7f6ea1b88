"""Bursts: everything is kept and grouped, within bounds; killed anywhere, everything is still there, and once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.routefile import from_text

Make = Callable[..., dict[str, Any]]
N = 10_000


def burst(firing: Make, first: int, last: int, **more: Any) -> bytes:
    alerts = [
        firing("DiskSlow", node=f"gpu-{n:05d}", cluster=f"c{n % 5}", severity="critical", rack=f"r{n % 97}")
        for n in range(first, last)
    ]
    return json.dumps({"version": "4", "groupKey": "g", "alerts": alerts, **more}).encode()


@pytest.mark.thorough
def test_ten_thousand_alerts(open_house: Any, firing: Make) -> None:
    house = open_house(
        """
route:
  receiver: r
  group_by: [alertname, cluster]
  routes: [{matchers: ['node=~"gpu-.*[05]"', 'rack!~"r9[0-6]"'], receiver: fives}]
inhibit_rules: [{source_matchers: [alertname=NodeDown], target_matchers: [alertname=DiskSlow], equal: [node]}]
receivers: [{name: r}, {name: fives}]
"""
    )
    bodies = [burst(firing, start, start + 2500) for start in range(0, N, 2500)]
    for body in bodies:
        assert house.intake.receive(body, house.now).new == 2500
    assert house.intake.receive(bodies[0], house.now).repeated == 2500
    told = house.later(31)
    assert sum(f.notified for f in told) == N
    assert house.kb.alerts.counts() == {"alerts": N, "firing": N, "groups": len(told)}
    tickets = house.tickets()
    assert len(tickets) == len(told) == 6  # five clusters, of which one also has all the fives
    nodes = {s.alert.labels["node"] for t in tickets for s in house.kb.alerts.find(ticket=t.id, limit=N)}
    assert len(nodes) == N
    assert all(len(t.human.description) <= 8000 for t in tickets)


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_alerts_that_are_kept(house: Any, firing: Make) -> None:
    peaks = []
    for first in (0, 600, 1200):
        body = burst(firing, first, first + 600)
        tracemalloc.start()
        house.intake.receive(body, house.now)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    tracemalloc.start()
    house.later(31)
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[0]
    assert max(peaks) < 16 << 20


def test_many_groups_share_the_ticket_of_a_flood(open_house: Any, firing: Make) -> None:
    house = open_house("route: {receiver: r, group_by: ['...']}\nreceivers: [{name: r}]\n", alerts={"flood": 5})
    house.intake.receive(burst(firing, 0, 100), house.now)
    told = house.later(31)
    assert sum(f.what == "first" for f in told) == 5
    assert sum(f.what == "flood" for f in told) == 95
    *single, flood = house.tickets()
    assert len(single) == 5
    assert flood.human.title == "Flood of alerts for receiver r"
    assert flood.revision < 5  # trackers are not told 95 times
    assert len(house.kb.alerts.find(ticket=flood.id, limit=N)) == 95
    over = json.loads(burst(firing, 0, 100))
    for alert in over["alerts"]:
        alert |= {"status": "resolved"}
    house.intake.receive(json.dumps({**over, "alerts": over["alerts"][:99]}).encode(), house.now)
    house.later(400)
    assert house.kb.tickets.get(flood.id).state == "open"
    house.intake.receive(json.dumps({**over, "alerts": over["alerts"][99:]}).encode(), house.now)
    house.later(400)
    assert {t.state for t in house.tickets()} == {"resolved"}


class Killed(BaseException):
    """What a SIGKILL does, as far as the file can tell: nothing after this commit happens."""


@pytest.mark.thorough
def test_killed_after_any_commit_nothing_is_lost_or_doubled(open_house: Any, firing: Make) -> None:
    routes = """
route:
  receiver: r
  group_by: [cluster]
  routes: [{matchers: [cluster=c1], receiver: two, continue: true}, {matchers: ['cluster=~"c.*"'], receiver: r}]
receivers: [{name: r, triage: true}, {name: two, chat: [{channel: ops}]}]
"""
    ops = {"kind": "webhook", "secret": {"env": "X"}, "url": "https://chat.example.com/", "to": "room"}
    body = burst(firing, 0, 510, truncatedAlerts=4)
    for kill in range(1, 100):
        house = open_house(routes, chat={"ops": ops})
        commits = 0

        def count(kill: int = kill) -> None:
            nonlocal commits
            commits += 1
            if commits == kill:
                raise Killed

        died = False
        try:
            with house.kb.after_commit(count):
                house.intake.receive(body, house.now)
                house.now += 31
                for id in house.groups.due(house.now):
                    house.groups.flush(id, house.now)
        except Killed:
            died = True
        house.restart()
        receipt = house.intake.receive(body, house.now)  # the sender was not answered, or repeats itself anyway
        assert receipt.received == 510
        house.later(400)
        assert house.kb.alerts.counts() == {"alerts": 510, "firing": 510, "groups": 6}
        assert sorted(t.occurrences for t in house.tickets()) == [1] * 6
        assert [house.kb.tasks.by_key(f"triage:{n}:alerts") is not None for n in range(1, 7)].count(True) == 5
        assert len(house.kb.messages.latest()) == 1
        house.kb.close()
        if not died:
            assert kill > 8
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("order", ["firing, then resolved", "resolved, then firing"])
def test_two_servers_of_alertmanager_say_the_same(house: Any, firing: Make, order: str) -> None:
    """A pair that cannot talk to each other sends everything twice, in any order."""
    both = [firing(), firing(status="resolved")]
    for said in both if order.startswith("firing") else both[::-1]:
        for _ in range(2):
            house.post(said)
    house.later(3600)
    assert house.tickets() == []
    assert len(house.kb.alerts.find()) == 2


def test_a_pattern_is_not_a_way_to_stop_the_server(open_house: Any) -> None:
    routes = "route: {receiver: r, routes: [{matchers: ['node=~\"(a+)+b\"'], receiver: r}]}\nreceivers: [{name: r}]\n"
    assert from_text(routes.encode()).root.children
    house = open_house(routes)
    alerts = [{"labels": {"alertname": "X", "node": "a" * (1000 - n)}} for n in range(500)]
    assert house.post(*alerts).new == 500
