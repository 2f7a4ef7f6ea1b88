"""Store incoming alerts, route them and put them into groups before the sender gets its response.

Receiving is idempotent: repeated alerts are only counted. Large bodies are stored in chunks of one transaction each; a
sender that repeats the body after a crash completes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.integrations.alerts import payload as payloads
from whystall.agent_server.integrations.alerts.incoming_alert import IncomingAlert
from whystall.agent_server.integrations.alerts.regrouping import move
from whystall.agent_server.integrations.alerts.routefile import Routes, load
from whystall.agent_server.integrations.alerts.tree import Node, match, walk
from whystall.agent_server.journal.alerts import Alert, Group
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ErrorCode, ToolError

LATE_S = 600.0
"""A firing message this soon after the alert was resolved, with no later start, is taken for a delayed one. After that
it counts: Alertmanager resolves alerts that Prometheus stopped repeating, and they fire again with their old start.
"""
SETTLE_S = 2.0
"""Seconds that a group waits for further alerts even if its first alert is older than `group_wait`."""
_CHUNK = 500  # alerts per transaction, which blocks other writers for some 0.1 s
_REFUSALS = 20  # listed in the receipt


class Refusal(BaseModel):
    """An alert of the body that was not accepted: its position from 0, and why."""

    model_config = ConfigDict(extra="forbid")

    index: int
    why: str


class Receipt(BaseModel):
    """Counts of alerts in one body.

    `repeated`: received before; `refused`: invalid, some of them in `refusals`; `groups`: groups that changed; `late`:
    firing messages that arrived after the alert was resolved; `truncated`: left out by the sender.
    """

    model_config = ConfigDict(extra="forbid")

    received: int = 0
    new: int = 0
    repeated: int = 0
    firing: int = 0
    resolved: int = 0
    late: int = 0
    refused: int = 0
    refusals: list[Refusal] = Field(default_factory=list)
    groups: int = 0
    truncated: int = 0


class Intake:
    """Receives bodies of alerts. Thread-safe."""

    def __init__(self, kb: Stores, settings: Settings, routes: Routes | None = None) -> None:
        """Use `routes`, or those of the settings if None. Raises `ToolError` on an invalid route file."""
        self._kb = kb
        self._forms = settings.alerts.forms
        self._routes = load(settings.alerts.routes) if routes is None else routes
        self._wanted = self._routes.names

    def receive(self, payload: bytes | Mapping[str, Any], now: float, form: str = payloads.ALERTMANAGER) -> Receipt:
        """Store the alerts of a body durably and return their counts.

        Raises `ToolError`: bad_argument (invalid body, or no valid alert in it), not_found (no such `form`),
        database, disk_full (stored in part; the sender must repeat it).
        """
        batch = payloads.read(payload, form, self._forms, self._wanted, now)
        receipt = Receipt(received=len(batch.items), truncated=batch.truncated)
        groups: set[str] = set()
        for start in range(0, len(batch.items), _CHUNK):
            chunk: list[IncomingAlert] = []
            for index, incoming in batch.parse(start, start + _CHUNK):
                if isinstance(incoming, str):
                    receipt.refused += 1
                    if len(receipt.refusals) < _REFUSALS:
                        receipt.refusals.append(Refusal(index=index, why=incoming))
                else:
                    chunk.append(incoming)
            self._store(chunk, batch.truncated, receipt, groups, now)
        receipt.groups = len(groups)
        if receipt.refused:
            detail = {"refused": receipt.refused, "first": receipt.refusals[0].model_dump()}
            self._kb.audit.put(f"alerts:{form}", "alerts.refused", form, "bad_argument", detail)
            if receipt.refused == receipt.received:
                why = receipt.refusals[0].why
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"no valid alert: {why}", "send labels and a status")
        return receipt

    def _store(
        self, chunk: list[IncomingAlert], truncated: int, receipt: Receipt, groups: set[str], now: float
    ) -> None:
        labels = [incoming.labels for incoming in chunk]
        for node in walk(self._routes.root):
            for matcher in node.matchers:
                matcher.learn(labels)
        changed: dict[str, Group] = {}
        with self._kb.transaction():
            for incoming in chunk:
                self._store_one(incoming, truncated, receipt, changed, now)
            for group in changed.values():
                self._kb.alerts.put_group(group)
        groups.update(changed)

    def _store_one(
        self, incoming: IncomingAlert, truncated: int, receipt: Receipt, changed: dict[str, Group], now: float
    ) -> None:
        starts = incoming.starts if incoming.starts is not None else self._first_seen(incoming, now)
        alert = Alert(
            key=incoming.key(starts),
            fingerprint=incoming.fingerprint,
            status=incoming.status,
            labels=incoming.labels,
            annotations=incoming.annotations,
            starts=starts,
            ends=incoming.ends,
            url=incoming.url,
            sender=incoming.sender,
            sender_group=incoming.sender_group,
            cut=list(incoming.cut),
        )
        resolved = self._kb.alerts.resolved_at(incoming.fingerprint, starts) if incoming.status == "firing" else None
        late = resolved is not None and -LATE_S < now - resolved < LATE_S
        n, new = self._kb.alerts.put(alert, now)
        receipt.new += new
        receipt.repeated += not new
        receipt.firing += incoming.status == "firing"
        receipt.resolved += incoming.status == "resolved"
        receipt.late += late
        groups = {node.group(incoming.labels): node for node in match(self._routes.root, incoming.labels)}
        for id in self._kb.alerts.groups_of(incoming.fingerprint):
            if id not in groups:
                self._leave(id, groups, alert, changed, now)
        for id, node in groups.items():
            self._join(id, node, alert, n, late, truncated, changed, now)

    def _first_seen(self, incoming: IncomingAlert, now: float) -> float:
        """Return the start of an alert whose sender gives none: when it was first received since its last end."""
        last = self._kb.alerts.latest(incoming.fingerprint)
        if last is None or (incoming.status == "firing" and last.alert.status == "resolved"):
            return now
        return last.alert.starts

    def _leave(self, id: str, groups: dict[str, Node], alert: Alert, changed: dict[str, Group], now: float) -> None:
        """Take the alert out of the group `id`, since it now belongs to `groups`.

        If its labels changed, it counts as resolved there; if the routes changed, it is moved with its state.
        """
        member, group = self._kb.alerts.member(id, alert.fingerprint), changed.get(id) or self._kb.alerts.group(id)
        before = self._kb.alerts.get(member.n) if member is not None else None
        if member is None or before is None or group is None:
            return
        if before.alert.labels != alert.labels:
            self._kb.alerts.put_member(id, alert.fingerprint, member.n, "resolved", member.starts, member.notified)
            changed[id] = group.model_copy(update={"due": now if group.due is None else min(group.due, now)})
            return
        for other, node in groups.items():
            there = changed.get(other) or self._kb.alerts.group(other)
            changed[other] = move(self._kb.alerts, member, group, node, alert.labels, there, now)
        self._kb.alerts.remove_members(id, [alert.fingerprint])

    def _join(
        self,
        id: str,
        node: Node,
        alert: Alert,
        n: int,
        late: bool,
        truncated: int,
        changed: dict[str, Group],
        now: float,
    ) -> None:
        """Update the alert's state in the group `id`."""
        known = self._kb.alerts.member(id, alert.fingerprint)
        notified = known.notified if known is not None else False
        if alert.status == "resolved":
            if known is None or known.status == "resolved" or alert.starts < known.starts:
                return
            self._kb.alerts.put_member(id, alert.fingerprint, n, "resolved", alert.starts, notified)
        else:
            again = known is not None and known.status == "resolved"
            if late and (known is None or again):
                return
            if known is not None and not again:  # repeated, perhaps by the second of two Prometheus servers
                self._kb.alerts.put_member(
                    id, alert.fingerprint, n, "firing", max(alert.starts, known.starts), notified
                )
                return
            self._kb.alerts.put_member(id, alert.fingerprint, n, "firing", alert.starts, notified=False)
        group = changed.get(id) or self._kb.alerts.group(id)
        if group is None:
            labels = node.group_labels(alert.labels)
            group = Group(id=id, receiver=node.options.receiver, route=node.key, labels=labels, created=now)
        changed[id] = _scheduled(group.model_copy(update={"truncated": truncated}), node, alert, now)


def _scheduled(group: Group, node: Node, alert: Alert, now: float) -> Group:
    """Return `group` with its due time after a change of `alert`: ``group_wait``, later the next ``group_interval``.

    For an alert older than ``group_wait`` Alertmanager does not wait; here the rest of a burst, which may come in
    several bodies, gets `SETTLE_S` to arrive.
    """
    if group.flushed is None:
        wait = node.options.group_wait
        if alert.starts + wait < now:
            wait = min(wait, SETTLE_S)
        due = now + wait if group.due is None else min(group.due, now + wait)
    else:
        due = max(now, min(group.flushed, now) + node.options.group_interval)
        due = due if group.due is None else min(due, group.due)
    return group.model_copy(update={"due": due, "wait": max(group.wait, due - now)})
