"""Explain where an alert would be routed: tested routes, groups, receivers, and why it is muted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from whystall.agent_server.integrations.alerts.incoming_alert import IncomingAlert
from whystall.agent_server.integrations.alerts.muting import Inhibitor, MuteReason, Muting
from whystall.agent_server.integrations.alerts.routefile import Routes
from whystall.agent_server.integrations.alerts.tree import Node, Visit, explain
from whystall.agent_server.stores import Stores


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FailedMatcher(_Model):
    """A matcher that failed. `value`: the alert's value of the label, empty without one."""

    matcher: str
    label: str
    value: str


class Step(_Model):
    """One route of the tree; see `tree.Visit`.

    `route`: such as ``route.routes[0]``; `line`: in its file; `depth`: below the root; `goes_on`: its ``continue``;
    `after`: the earlier sibling that took the alert.
    """

    route: str
    line: int
    depth: int
    matchers: list[str]
    goes_on: bool
    receiver: str
    outcome: Literal["ended", "passed", "failed", "skipped"]
    missed: list[FailedMatcher] = []
    after: str | None = None


class Target(_Model):
    """A receiver and group that the alert reaches. Times in seconds.

    `group_labels`: empty if all alerts of the route are one group; `held`: why the route is muted.
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
    held: MuteReason | None = None


class RouteTrace(_Model):
    """The routing of one alert. `held`: why it is muted by its labels."""

    name: str
    status: str
    fingerprint: str
    labels: dict[str, str]
    steps: list[Step]
    targets: list[Target]
    held: MuteReason | None = None


class _StoredAndIncoming:
    """The firing alerts of the knowledge base and of `incoming`, which replace stored ones."""

    def __init__(self, kb: Stores, incoming: Sequence[IncomingAlert]) -> None:
        self._kb = kb
        self._incoming = incoming

    def version(self) -> object:
        return 1

    def firing(self) -> Iterator[tuple[str, dict[str, str]]]:
        own = {alert.fingerprint: alert for alert in self._incoming}
        for fingerprint, labels in self._kb.alerts.firing():
            if fingerprint not in own:
                yield fingerprint, labels
        for fingerprint, alert in own.items():
            if alert.status == "firing":
                yield fingerprint, alert.labels


def explain_alerts(routes: Routes, incoming: Sequence[IncomingAlert], kb: Stores, now: float) -> list[RouteTrace]:
    """Return the routing of each alert at `now`; firing ones inhibit each other, as stored ones do."""
    muting = Muting(kb.silences, routes, Inhibitor(_StoredAndIncoming(kb, incoming), routes.inhibit), now)
    return [_explain_alert(routes, one, muting) for one in incoming]


def _explain_alert(routes: Routes, incoming: IncomingAlert, muting: Muting) -> RouteTrace:
    visit = explain(routes.root, incoming.labels)
    return RouteTrace(
        name=incoming.labels.get("alertname", ""),
        status=incoming.status,
        fingerprint=incoming.fingerprint,
        labels=incoming.labels,
        steps=list(_steps(visit)),
        targets=[_target(routes, node, incoming, muting) for node in visit.ends()],
        held=muting.alert(incoming.labels, incoming.fingerprint),
    )


def _steps(visit: Visit) -> Iterator[Step]:
    node = visit.node
    yield Step(
        route=route_path(node),
        line=node.line,
        depth=len(node.indices),
        matchers=[str(matcher) for matcher in node.matchers],
        goes_on=node.continue_,
        receiver=node.options.receiver,
        outcome=visit.outcome,
        missed=[FailedMatcher(matcher=str(u.matcher), label=u.matcher.name, value=u.value) for u in visit.unmet],
        after=None if visit.after is None else route_path(node, visit.after),
    )
    for child in visit.children:
        yield from _steps(child)


def _target(routes: Routes, node: Node, incoming: IncomingAlert, muting: Muting) -> Target:
    receiver, options = routes.receivers[node.options.receiver], node.options
    return Target(
        route=route_path(node),
        receiver=receiver.name,
        ticket=receiver.ticket,
        triage=receiver.triage,
        resolved=receiver.resolved,
        chat=[":".join(part for part in (to.channel, to.conversation) if part) for to in receiver.chat],
        sinks=None if receiver.sinks is None else list(receiver.sinks),
        schedule=receiver.schedule,
        group=node.group(incoming.labels),
        group_labels=node.group_labels(incoming.labels),
        group_wait=options.group_wait,
        group_interval=options.group_interval,
        repeat_interval=options.repeat_interval,
        held=muting.route(node),
    )


def route_path(node: Node, last: int | None = None) -> str:
    """Return the path of `node` in the file, or of its sibling number `last`: ``route.routes[0].routes[2]``."""
    path = node.indices if last is None else (*node.indices[:-1], last)
    return "route" + "".join(f".routes[{position}]" for position in path)
