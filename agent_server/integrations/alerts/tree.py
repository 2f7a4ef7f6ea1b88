"""The routing tree: which receivers an alert reaches, and why. Pure.

The semantics are Alertmanager's (prometheus/alertmanager, dispatch/route.go; docs/configuration.md, "route"): from the
root an alert descends into the first matching child, and into further siblings only if that child has ``continue``; it
ends at a node without a matching child. All options but the time intervals are inherited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from whystall.agent_server.integrations.alerts.matchers import Matcher, Matchers, all_match, format_matchers

Labels = Mapping[str, str]
ALL = "..."
"""In `Options.group_by`: group by all labels."""


@dataclass(frozen=True)
class Options:
    """Options of a node. Times in seconds. `group_by`: names of labels, or `ALL`.

    `mute`, `active`: names of time intervals in which the node is muted, or outside of which it is; not inherited.
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
    """One route. `indices`: its path from the root by child positions; `key`: the path by matchers, which does not
    change when other routes are added; `line`: in its file.
    """

    options: Options
    matchers: Matchers = ()
    continue_: bool = False
    children: tuple[Node, ...] = ()
    indices: tuple[int, ...] = ()
    key: str = ""
    line: int = 0

    def group_labels(self, labels: Labels) -> dict[str, str]:
        """Return the labels by which an alert is grouped, sorted by name."""
        wanted = self.options.group_by
        return {name: value for name, value in sorted(labels.items()) if ALL in wanted or name in wanted}

    def group(self, labels: Labels) -> str:
        """Return the id of the group of an alert with `labels`."""
        pairs = self.group_labels(labels).items()
        parts = [self.options.receiver, self.key, *(text for pair in pairs for text in pair)]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def match(root: Node, labels: Labels) -> list[Node]:
    """Return the routes at which an alert with `labels` ends, in file order."""
    if not all_match(root.matchers, labels):
        return []
    found: list[Node] = []
    for child in root.children:
        below = match(child, labels)
        found += below
        if below and not child.continue_:
            break
    return found or [root]


def walk(root: Node) -> Iterator[Node]:
    """Yield all routes, parents before children."""
    yield root
    for child in root.children:
        yield from walk(child)


@dataclass(frozen=True)
class Unmet:
    """A matcher that failed, and the alert's value of its label."""

    matcher: Matcher
    value: str


@dataclass
class Visit:
    """How one route treated an alert.

    ``ended``: the alert ends here; ``passed``: a child took the alert; ``failed``: some matchers failed (`unmet`);
    ``skipped``: not tested, since the sibling at position `after` matched without ``continue``.
    """

    node: Node
    outcome: Literal["ended", "passed", "failed", "skipped"]
    unmet: list[Unmet] = field(default_factory=list)
    after: int | None = None
    children: list[Visit] = field(default_factory=list)

    def ends(self) -> Iterator[Node]:
        """Yield the routes at which the alert ends, in file order."""
        if self.outcome == "ended":
            yield self.node
        for child in self.children:
            yield from child.ends()


def explain(root: Node, labels: Labels) -> Visit:
    """Return how each route treated an alert; its ends are those of `match`."""
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
            taken_by = None if child.continue_ else position
    return visit


def unique_key(parent: str, matchers: Matchers, taken: set[str]) -> str:
    """Return the `Node.key` of a child of `parent`, distinct from those in `taken`, and add it there."""
    plain = f"{parent}/{format_matchers(sorted(matchers, key=str))}"
    key, twin = plain, 2
    while key in taken:
        key, twin = f"{plain}#{twin}", twin + 1
    taken.add(key)
    return key
