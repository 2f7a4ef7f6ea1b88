"""The routing tree: which receivers an alert goes to, and why.

The semantics are Alertmanager's (prometheus/alertmanager, dispatch/route.go; docs/configuration.md, "route"): an alert
enters at the root, goes to the first child that matches and down from there, and to further siblings only where that
child says ``continue``; a node none of whose children match is where the alert ends. Options are inherited, but for
the time intervals. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from whystall.agent_server.integrations.alerts.matchers import Matcher, Matchers, all_match, told

Labels = Mapping[str, str]
ALL = "..."
"""As `Options.group_by`: every label, so that only alerts with the same labels are one group."""


@dataclass(frozen=True)
class Options:
    """What is inherited. Times in seconds. `group_by`: names of labels, or `ALL`. `mute`, `active`: names of time
    intervals, of this node alone: nothing is told in the former, and only in the latter, where some are named.
    """

    receiver: str
    group_by: tuple[str, ...] = ()
    group_wait: float = 30.0
    group_interval: float = 300.0
    repeat_interval: float = 14_400.0
    mute: tuple[str, ...] = ()
    active: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Node:
    """One route. `place`: its way down from the root by positions, from 0; `key`: the same by matchers, which stays
    what it is when other routes are added. `line`: in its file.
    """

    options: Options
    matchers: Matchers = ()
    goes_on: bool = False
    children: tuple[Node, ...] = ()
    place: tuple[int, ...] = ()
    key: str = ""
    line: int = 0

    def group_labels(self, labels: Labels) -> dict[str, str]:
        """The labels whose values make the group of an alert."""
        wanted = self.options.group_by
        return {name: value for name, value in sorted(labels.items()) if ALL in wanted or name in wanted}

    def group(self, labels: Labels) -> str:
        """The id of the group that an alert with `labels` is in."""
        pairs = self.group_labels(labels).items()
        parts = [self.options.receiver, self.key, *(text for pair in pairs for text in pair)]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def match(root: Node, labels: Labels) -> list[Node]:
    """The routes that an alert with `labels` ends at, from left to right; none where the root itself does not match."""
    if not all_match(root.matchers, labels):
        return []
    found: list[Node] = []
    for child in root.children:
        there = match(child, labels)
        found += there
        if there and not child.goes_on:
            break
    return found or [root]


def walk(root: Node) -> Iterator[Node]:
    """All routes, each before its children."""
    yield root
    for child in root.children:
        yield from walk(child)


# --- why -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unmet:
    """A matcher that did not hold, and what the alert has there."""

    matcher: Matcher
    value: str


@dataclass
class Visit:
    """What became of one route. ``ended``: the alert ends here; ``passed``: it matched, and a child took the alert;
    ``failed``: not all matchers held (`unmet`); ``skipped``: not tried, since the sibling at position `after` had
    matched and does not say ``continue``.
    """

    node: Node
    outcome: Literal["ended", "passed", "failed", "skipped"]
    unmet: list[Unmet] = field(default_factory=list)
    after: int | None = None
    children: list[Visit] = field(default_factory=list)

    def ends(self) -> Iterator[Node]:
        """Where the alert ends, from left to right."""
        if self.outcome == "ended":
            yield self.node
        for child in self.children:
            yield from child.ends()


def explain(root: Node, labels: Labels) -> Visit:
    """The way of an alert through the tree. Its ends are those of `match`."""
    unmet = [Unmet(m, labels.get(m.name, "")) for m in root.matchers if not m.matches(labels)]
    if unmet:
        return Visit(root, "failed", unmet)
    visit = Visit(root, "ended")
    taken_by: int | None = None
    for position, child in enumerate(root.children):
        if taken_by is not None:
            visit.children.append(Visit(child, "skipped", after=taken_by))
            continue
        visit.children.append(explain(child, labels))
        if visit.children[-1].outcome != "failed":
            visit.outcome = "passed"
            taken_by = None if child.goes_on else position
    return visit


def keyed(parent: str, matchers: Matchers, taken: set[str]) -> str:
    """The `Node.key` of a child of `parent`; `taken`: those of its elder siblings, and its own from now on."""
    plain = f"{parent}/{told(sorted(matchers, key=str))}"
    key, twin = plain, 2
    while key in taken:
        key, twin = f"{plain}#{twin}", twin + 1
    taken.add(key)
    return key
