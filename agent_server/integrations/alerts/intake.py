"""Takes alerts in: kept, routed, put into their groups, before the sender is answered.

What was said before is only counted, so that a sender may repeat a body as often as it likes; that of 10,000 alerts is
stored in pieces, each of them whole, and one that was cut off by a crash is completed by being sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.integrations.alerts import payload as payloads
from whystall.agent_server.integrations.alerts.moving import move
from whystall.agent_server.integrations.alerts.routefile import load
from whystall.agent_server.integrations.alerts.tree import match, walk
from whystall.agent_server.journal.alerts import Alert, Group
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whystall.agent_server.integrations.alerts.routefile import Routes
    from whystall.agent_server.integrations.alerts.said import Said
    from whystall.agent_server.integrations.alerts.tree import Node
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

LATE_S = 600.0
"""How long after an alert was resolved a message that it fires (begun no later) is taken for one that was under way
before. Later it is believed: Alertmanager resolves an alert that Prometheus stopped repeating, and when Prometheus is
back the alert fires again with its old start.
"""
SETTLE_S = 2.0
"""How long the first alert of a group waits for others though it is old."""
_PIECE = 500  # alerts stored in one transaction: other writers wait no longer than some tenths of a second
_REFUSED = 20  # that are told one by one


class Refusal(BaseModel):
    """An alert of the body that was not taken: its position from 0, and why."""

    model_config = ConfigDict(extra="forbid")

    index: int
    why: str


class Receipt(BaseModel):
    """What became of a body. `received`: alerts in it; `new`: said for the first time; `repeated`: said before;
    `refused`: not taken, of which `refusals` names some. `groups`: groups that there is something to tell of. `late`:
    said to fire after it was said that they are resolved. `truncated`: left out by the sender.
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
    """Where alerts come in. Safe to be used by several threads."""

    def __init__(self, kb: Stores, settings: Settings, routes: Routes | None = None) -> None:
        """`routes`: those of the settings, unless they are given. Raises `ToolError` where their file is at fault."""
        self._kb = kb
        self._forms = settings.alerts.forms
        self._routes = load(settings.alerts.routes) if routes is None else routes
        self._wanted = self._routes.names

    def receive(self, payload: bytes | Mapping[str, Any], now: float, form: str = payloads.ALERTMANAGER) -> Receipt:
        """Take the alerts of a body in. What this returns from is stored.

        Raises `ToolError`: bad_argument (the body cannot be read, or none of its alerts), not_found (no such `form`),
        database, disk_full (it is not stored as a whole: to be sent again).
        """
        batch = payloads.read(payload, form, self._forms, self._wanted, now)
        receipt = Receipt(received=len(batch.items), truncated=batch.truncated)
        groups: set[str] = set()
        for start in range(0, len(batch.items), _PIECE):
            piece: list[Said] = []
            for index, said in batch.said(start, start + _PIECE):
                if isinstance(said, str):
                    receipt.refused += 1
                    if len(receipt.refusals) < _REFUSED:
                        receipt.refusals.append(Refusal(index=index, why=said))
                else:
                    piece.append(said)
            self._store(piece, batch.truncated, receipt, groups, now)
        receipt.groups = len(groups)
        if receipt.refused:
            detail = {"refused": receipt.refused, "first": receipt.refusals[0].model_dump()}
            self._kb.audit.put(f"alerts:{form}", "alerts.refused", form, "bad_argument", detail)
            if receipt.refused == receipt.received:
                why = receipt.refusals[0].why
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"no alert can be taken: {why}", "send labels and a status")
        return receipt

    def _store(self, piece: list[Said], truncated: int, receipt: Receipt, groups: set[str], now: float) -> None:
        labels = [said.labels for said in piece]
        for node in walk(self._routes.root):
            for matcher in node.matchers:
                matcher.learn(labels)
        changed: dict[str, Group] = {}
        with self._kb.transaction():
            for said in piece:
                self._take(said, truncated, receipt, changed, now)
            for group in changed.values():
                self._kb.alerts.put_group(group)
        groups.update(changed)

    def _take(self, said: Said, truncated: int, receipt: Receipt, changed: dict[str, Group], now: float) -> None:
        starts = said.starts if said.starts is not None else self._began(said, now)
        alert = Alert(
            key=said.key(starts),
            fingerprint=said.fingerprint,
            status=said.status,
            labels=said.labels,
            annotations=said.annotations,
            starts=starts,
            ends=said.ends,
            url=said.url,
            sender=said.sender,
            sender_group=said.sender_group,
            cut=list(said.cut),
        )
        over = self._kb.alerts.resolved_at(said.fingerprint, starts) if said.status == "firing" else None
        late = over is not None and -LATE_S < now - over < LATE_S
        n, new = self._kb.alerts.put(alert, now)
        receipt.new += new
        receipt.repeated += not new
        receipt.firing += said.status == "firing"
        receipt.resolved += said.status == "resolved"
        receipt.late += late
        here = {node.group(said.labels): node for node in match(self._routes.root, said.labels)}
        for id in self._kb.alerts.groups_of(said.fingerprint):
            if id not in here:
                self._left(id, here, alert, changed, now)
        for id, node in here.items():
            self._join(id, node, alert, n, late, truncated, changed, now)

    def _began(self, said: Said, now: float) -> float:
        """When an alert began whose sender does not say: when it was heard of first, since it last was resolved."""
        last = self._kb.alerts.latest(said.fingerprint)
        if last is None or (said.status == "firing" and last.alert.status == "resolved"):
            return now
        return last.alert.starts

    def _left(self, id: str, here: dict[str, Node], alert: Alert, changed: dict[str, Group], now: float) -> None:
        """The alert is no longer in the group `id` but in those of `here`: its labels changed, though its sender calls
        it the same, so that what it was is over; or the routes did, so that it goes there as it is.
        """
        member, group = self._kb.alerts.member(id, alert.fingerprint), changed.get(id) or self._kb.alerts.group(id)
        before = self._kb.alerts.get(member.n) if member is not None else None
        if member is None or before is None or group is None:
            return
        if before.alert.labels != alert.labels:
            self._kb.alerts.put_member(id, alert.fingerprint, member.n, "resolved", member.starts, member.notified)
            changed[id] = group.model_copy(update={"due": now if group.due is None else min(group.due, now)})
            return
        for other, node in here.items():
            there = changed.get(other) or self._kb.alerts.group(other)
            changed[other] = move(self._kb, member, group, node, alert.labels, there, now)
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
        """Bring the alert's state in its group up to what was said."""
        known = self._kb.alerts.member(id, alert.fingerprint)
        told = known.notified if known is not None else False
        if alert.status == "resolved":
            if known is None or known.status == "resolved" or alert.starts < known.starts:
                return  # nobody here was waiting for it
            self._kb.alerts.put_member(id, alert.fingerprint, n, "resolved", alert.starts, told)
        else:
            again = known is not None and known.status == "resolved"
            if late and (known is None or again):
                return
            if known is not None and not again:  # it fires on, whichever of two Prometheus says so
                self._kb.alerts.put_member(id, alert.fingerprint, n, "firing", max(alert.starts, known.starts), told)
                return
            self._kb.alerts.put_member(id, alert.fingerprint, n, "firing", alert.starts, notified=False)
        group = changed.get(id) or self._kb.alerts.group(id) or _group(node, id, alert, now)
        changed[id] = _armed(group.model_copy(update={"truncated": truncated}), node, alert, now)


def _group(node: Node, id: str, alert: Alert, now: float) -> Group:
    return Group(
        id=id,
        receiver=node.options.receiver,
        route=node.key,
        labels=node.group_labels(alert.labels),
        created=now,
    )


def _armed(group: Group, node: Node, alert: Alert, now: float) -> Group:
    """`group` with the time when to look at it next, now that `alert` changed: after ``group_wait`` for the first time,
    later at the next ``group_interval``. For an alert that is older than ``group_wait`` Alertmanager would not wait at
    all; here the rest of its burst, which may come in several bodies, has a moment to arrive.
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
