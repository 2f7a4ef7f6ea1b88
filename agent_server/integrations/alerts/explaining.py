"""What would become of an alert, and why: its way through the tree, its groups and receivers, and what holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from whystall.agent_server.integrations.alerts.muting import Inhibitor, Muting
from whystall.agent_server.integrations.alerts.tree import explain

if TYPE_CHECKING:
    from whystall.agent_server.integrations.alerts.muting import Held
    from whystall.agent_server.integrations.alerts.routefile import Routes
    from whystall.agent_server.integrations.alerts.said import Said
    from whystall.agent_server.integrations.alerts.tree import Node, Visit
    from whystall.agent_server.stores import Stores


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Missed(_Model):
    """A matcher that did not hold. `value`: what the alert has there, empty where it has no such label."""

    matcher: str
    label: str
    value: str


class Step(_Model):
    """One route that was come by; see `tree.Visit`. `route`: ``route.routes[0]``; `line`: in its file; `depth`: below
    the root; `after`: the sibling that took the alert before this one was tried.
    """

    route: str
    line: int
    depth: int
    matchers: list[str]
    goes_on: bool
    receiver: str
    outcome: Literal["ended", "passed", "failed", "skipped"]
    missed: list[Missed] = []
    after: str | None = None


class Holding(_Model):
    """Why it is not told; see `muting.Held`."""

    kind: Literal["silence", "maintenance", "mute", "inactive", "inhibited"]
    name: str
    source: str = ""


class Target(_Model):
    """Where an alert ends: the receiver, what it does, and the group. Times in seconds. `group_labels`: empty where all
    alerts of the route are one group. `held`: why nothing is told there now.
    """

    route: str
    receiver: str
    ticket: bool
    triage: bool
    resolved: str
    chat: list[str]
    sinks: list[str] | None
    schedule: str | None
    group: str
    group_labels: dict[str, str]
    group_wait: float
    group_interval: float
    repeat_interval: float
    held: Holding | None = None


class Explained(_Model):
    """One alert. `held`: why it is told nowhere, by its own labels."""

    name: str
    status: str
    fingerprint: str
    labels: dict[str, str]
    steps: list[Step]
    targets: list[Target]
    held: Holding | None = None


class _Both:
    """The alerts that fire in the knowledge base and those that are asked about."""

    def __init__(self, kb: Stores, said: Sequence[Said]) -> None:
        self._kb = kb
        self._said = said

    def version(self) -> object:
        return 1

    def firing(self) -> Iterator[tuple[str, dict[str, str]]]:
        own = {said.fingerprint: said for said in self._said}
        for fingerprint, labels in self._kb.alerts.firing():
            if fingerprint not in own:
                yield fingerprint, labels
        for fingerprint, said in own.items():
            if said.status == "firing":
                yield fingerprint, said.labels


def explained(routes: Routes, said: Sequence[Said], kb: Stores, now: float) -> list[Explained]:
    """What becomes of each of `said` at `now`. Those that fire inhibit each other, as do those that fire already."""
    muting = Muting(kb, routes, Inhibitor(_Both(kb, said), routes.inhibit), now)
    return [_explained(routes, one, muting) for one in said]


def _explained(routes: Routes, said: Said, muting: Muting) -> Explained:
    visit = explain(routes.root, said.labels)
    return Explained(
        name=said.labels.get("alertname", ""),
        status=said.status,
        fingerprint=said.fingerprint,
        labels=said.labels,
        steps=list(_steps(visit)),
        targets=[_target(routes, node, said, muting) for node in visit.ends()],
        held=_holding(muting.alert(said.labels, said.fingerprint)),
    )


def _steps(visit: Visit) -> Iterator[Step]:
    node = visit.node
    yield Step(
        route=place(node),
        line=node.line,
        depth=len(node.place),
        matchers=[str(matcher) for matcher in node.matchers],
        goes_on=node.goes_on,
        receiver=node.options.receiver,
        outcome=visit.outcome,
        missed=[Missed(matcher=str(u.matcher), label=u.matcher.name, value=u.value) for u in visit.unmet],
        after=None if visit.after is None else place(node, visit.after),
    )
    for child in visit.children:
        yield from _steps(child)


def _target(routes: Routes, node: Node, said: Said, muting: Muting) -> Target:
    receiver, options = routes.receivers[node.options.receiver], node.options
    return Target(
        route=place(node),
        receiver=receiver.name,
        ticket=receiver.ticket,
        triage=receiver.triage,
        resolved=receiver.resolved,
        chat=[":".join(part for part in (to.channel, to.conversation) if part) for to in receiver.chat],
        sinks=None if receiver.sinks is None else list(receiver.sinks),
        schedule=receiver.schedule,
        group=node.group(said.labels),
        group_labels=node.group_labels(said.labels),
        group_wait=options.group_wait,
        group_interval=options.group_interval,
        repeat_interval=options.repeat_interval,
        held=_holding(muting.route(node)),
    )


def _holding(held: Held | None) -> Holding | None:
    return None if held is None else Holding(kind=held.kind, name=held.name, source=held.source)


def place(node: Node, last: int | None = None) -> str:
    """Where `node` stands in the file (or its sibling number `last`): ``route.routes[0].routes[2]``."""
    path = node.place if last is None else (*node.place[:-1], last)
    return "route" + "".join(f".routes[{position}]" for position in path)
