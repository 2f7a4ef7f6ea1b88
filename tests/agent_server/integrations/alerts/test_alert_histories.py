"""Whatever the order in which messages come, how often, and how often we are restarted: in the end the tickets say what
is true.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

Make = Callable[..., dict[str, Any]]
ROUTES = """
route:
  receiver: r
  group_by: [cluster]
  group_wait: 20s
  group_interval: 1m
  repeat_interval: 1h
  routes: [{matchers: [kind=both], receiver: extra, continue: true}, {matchers: ['cluster=~"c.*"']}]
receivers: [{name: r}, {name: extra}]
"""


def history(rng: random.Random, firing: Make, start: float, labels: dict[str, str]) -> tuple[list[Any], bool]:
    """What a truthful sender says of one alert, with the times at which it is said; and whether it fires at the end."""
    said: list[Any] = []
    at, fires = start + rng.uniform(0, 300), False
    for _ in range(rng.randint(1, 4)):
        begun = at
        for repeat in range(rng.randint(1, 3)):
            said.append((at + 100 * repeat, firing("X", start=begun, **labels)))
        fires = True
        at += rng.uniform(210, 350)
        if rng.random() < 0.85:
            for repeat in range(rng.randint(1, 2)):
                said.append((at + 20 * repeat, firing("X", "resolved", start=begun, **labels)))
            fires = False
            at += rng.uniform(60, 700)
        else:
            break
    return said, fires


@pytest.mark.parametrize("seed", range(6))
def test_in_the_end_it_is_true(open_house: Any, firing: Make, seed: int) -> None:
    rng = random.Random(seed)
    house = open_house(ROUTES, alerts={"related_minutes": 0})
    messages: list[Any] = []
    truth: dict[tuple[str, str], bool] = {}
    nodes: set[str] = set()
    for n in range(12):
        kind, cluster = rng.choice(["both", "one"]), f"c{n % 7}"
        said, fires = history(rng, firing, house.now, {"node": f"n{n}", "cluster": cluster, "kind": kind})
        messages += said
        nodes |= {f"n{n}"} if fires else set()
        for receiver in ["r", "extra"] if kind == "both" else ["r"]:
            truth[receiver, cluster] = truth.get((receiver, cluster), False) or fires
    # a network that delays by up to a minute, and repeats what is minutes old
    posts = sorted((at + rng.uniform(0, 60) * (rng.random() < 0.4), n) for n, (at, _) in enumerate(messages))
    posts += [(at + rng.uniform(0, 450), n) for at, n in posts if rng.random() < 0.4]
    for at, n in sorted(posts):
        house.later(max(0.0, at - house.now))
        house.post(messages[n][1])
        if rng.random() < 0.04:
            house.restart()
    house.later(1800)
    assert {labels["node"] for _, labels in house.kb.alerts.firing()} == nodes
    live = [t for t in house.tickets() if t.state in ("open", "acknowledged")]
    assert len({t.dedup_key for t in live}) == len(live)
    found = {(s.receiver, s.labels["cluster"]) for s in house.kb.alerts.groups() if s.ticket in {t.id for t in live}}
    assert found == {key for key, fires in truth.items() if fires}
    assert len(live) == len(found)
    assert {t.state for t in house.tickets()} <= {"open", "resolved"}
