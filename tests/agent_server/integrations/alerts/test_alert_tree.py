"""The tree routes as Alertmanager's does: case by case, and like a model of its rules that is written otherwise."""

from __future__ import annotations

import random
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.routefile import Routes, from_text
from whystall.agent_server.integrations.alerts.tree import Node, explain, match, walk

TREE = b"""
route:
  receiver: default
  group_by: [alertname]
  group_wait: 10s
  routes:
    - matchers: [owner="team-A"]
      receiver: a
      routes:
        - matchers: [env="testing"]
          receiver: a-testing
          group_by: ['...']
        - matchers: [env="production"]
          receiver: a-production
          group_wait: 1m
          continue: true
        - matchers: [env=~"produ.*", job=~".*"]
          receiver: a-produ
          group_by: [job]
        - matchers: [env=~"produ.*", job="missing"]
          receiver: never
    - match_re: {owner: 'team-(B|C)'}
      group_by: [foo, bar]
      group_wait: 2m
      receiver: bc
    - matchers: [group_by="role"]
      group_by: [role]
      routes:
        - matchers: [env="testing"]
          receiver: testing
          routes:
            - matchers: [wait="long"]
              group_wait: 2m
receivers: [{name: default}, {name: a}, {name: a-testing}, {name: a-production}, {name: a-produ}, {name: never},
            {name: bc}, {name: testing}]
"""


def ends(routes: Routes, **labels: str) -> list[tuple[str, tuple[str, ...], float]]:
    found = match(routes.root, labels)
    return [(n.options.receiver, n.options.group_by, n.options.group_wait) for n in found]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, [("default", ("alertname",), 10.0)]),
        ({"owner": "team-A"}, [("a", ("alertname",), 10.0)]),
        ({"owner": "team-A", "env": "testing"}, [("a-testing", ("...",), 10.0)]),
        (
            {"owner": "team-A", "env": "production"},
            [("a-production", ("alertname",), 60.0), ("a-produ", ("job",), 10.0)],
        ),
        ({"owner": "team-A", "env": "productx"}, [("a-produ", ("job",), 10.0)]),
        ({"owner": "team-B"}, [("bc", ("foo", "bar"), 120.0)]),
        ({"owner": "team-BC"}, [("default", ("alertname",), 10.0)]),
        ({"group_by": "role"}, [("default", ("role",), 10.0)]),
        ({"group_by": "role", "env": "testing"}, [("testing", ("role",), 10.0)]),
        ({"group_by": "role", "env": "testing", "wait": "long"}, [("testing", ("role",), 120.0)]),
    ],
)
def test_where_alerts_end(labels: dict[str, str], expected: list[tuple[str, tuple[str, ...], float]]) -> None:
    assert ends(from_text(TREE), **labels) == expected


def test_groups_are_told_apart_by_route_and_labels() -> None:
    root = from_text(TREE).root
    one, two = match(root, {"owner": "team-A", "env": "production", "alertname": "X"})
    assert one.group({"alertname": "X", "a": "1"}) == one.group({"alertname": "X", "a": "2"})
    assert one.group({"alertname": "X"}) != one.group({"alertname": "Y"})
    assert one.group({"alertname": "X"}) != two.group({"alertname": "X"})
    (every,) = match(root, {"owner": "team-A", "env": "testing"})
    assert every.group({"a": "1"}) != every.group({"a": "2"})
    assert one.group({"alertname": "a\0b"}) != one.group({"alertname": "a"})


def test_a_key_stays_when_other_routes_are_added() -> None:
    text = "route: {{receiver: r, routes: [{0}{{matchers: [a=b]}}, {{matchers: [a=b]}}]}}\nreceivers: [{{name: r}}]"
    before = from_text(text.format("").encode()).root
    after = from_text(text.format("{matchers: [x=y]}, ").encode()).root
    assert [n.key for n in before.children] == [n.key for n in after.children[1:]]
    assert len({n.key for n in walk(after)}) == 4


# --- against a model -------------------------------------------------------------------------------------------------

LABELS = ["a", "b", "c"]
VALUES = ["", "1", "2", "12"]
CONDITIONS = [
    ('{}="1"', lambda v: v == "1"),
    ('{}=""', lambda v: v == ""),
    ('{}!="1"', lambda v: v != "1"),
    ('{}=~"1.*"', lambda v: v.startswith("1")),
    ('{}=~"1|2"', lambda v: v in ("1", "2")),
    ('{}!~"[12]+"', lambda v: v == ""),
    ('{}=~".+"', lambda v: v != ""),
]


def tree_of(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random route: matchers as text and as functions, and its children."""
    chosen = [(rng.choice(LABELS), *rng.choice(CONDITIONS)) for _ in range(rng.choice([0, 1, 1, 2]))] if depth else []
    children = rng.choice([0, 1, 2, 3]) if depth < 4 else 0
    return {
        "matchers": [text.format(label) for label, text, _ in chosen],
        "holds": [(label, holds) for label, _, holds in chosen],
        "continue": depth > 0 and rng.random() < 0.4,
        "receiver": rng.choice(["r1", "r2", "r3", None]) if depth else "r0",
        "routes": [tree_of(rng, depth + 1) for _ in range(children)],
    }


def as_yaml(tree: dict[str, Any]) -> dict[str, Any]:
    keep = {k: tree[k] for k in ("matchers", "continue", "receiver") if tree[k]}
    return {**keep, "routes": [as_yaml(child) for child in tree["routes"]]}


def modelled(tree: dict[str, Any], labels: dict[str, str]) -> list[tuple[int, ...]]:
    """Where an alert ends, by the words of the documents: every path from the root whose nodes all match is a
    candidate; one is out where an elder sibling on its way has matched and does not continue, or where the alert goes
    on below.
    """

    def holds(node: dict[str, Any]) -> bool:
        return all(test(labels.get(label, "")) for label, test in node["holds"])

    paths: list[tuple[int, ...]] = []
    queue: list[tuple[tuple[int, ...], dict[str, Any]]] = [((), tree)] if holds(tree) else []
    while queue:
        path, node = queue.pop()
        open_ = [n for n, child in enumerate(node["routes"]) if holds(child)]
        stop = next((n for n in open_ if not node["routes"][n]["continue"]), None)
        taken = [n for n in open_ if stop is None or n <= stop]
        if not taken:
            paths.append(path)
        queue += [((*path, n), node["routes"][n]) for n in taken]
    return sorted(paths)


@pytest.mark.parametrize("seed", range(8))
def test_like_a_straightforward_model(seed: int) -> None:
    import json

    rng = random.Random(seed)
    for _ in range(12):
        tree = tree_of(rng)
        text = json.dumps({"route": as_yaml(tree), "receivers": [{"name": f"r{n}"} for n in range(4)]})
        root = from_text(text.encode()).root
        for _ in range(40):
            labels = {name: value for name in LABELS if (value := rng.choice(VALUES))}
            found = match(root, labels)
            assert [n.indices for n in found] == modelled(tree, labels)
            visit = explain(root, labels)
            assert list(visit.ends()) == found
            check_reasons(visit, labels)


def check_reasons(visit: Any, labels: dict[str, str]) -> None:
    """Every route that was not taken says why, and that is so."""
    taken_by = None
    for position, child in enumerate(visit.children):
        if child.outcome == "failed":
            assert child.unmet
            assert all(not u.matcher.matches(labels) and u.value == labels.get(u.matcher.name, "") for u in child.unmet)
        assert (child.outcome == "skipped") == (taken_by is not None)
        assert child.after == taken_by
        if child.outcome in ("ended", "passed") and not child.node.continue_ and taken_by is None:
            taken_by = position
        check_reasons(child, labels)
    assert len(visit.children) == (len(visit.node.children) if visit.outcome in ("ended", "passed") else 0)


def test_the_tree_of_nodes_is_that_of_the_file() -> None:
    root = from_text(TREE).root
    assert [n.indices for n in walk(root)][:4] == [(), (0,), (0, 0), (0, 1)]
    assert [n.line for n in walk(root)][:3] == [3, 7, 10]
    assert isinstance(root, Node)
