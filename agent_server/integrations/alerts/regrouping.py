"""Move firing alerts to other groups after a change of routes, keeping tickets and notification state."""

from __future__ import annotations

from collections.abc import Mapping

from whystall.agent_server.integrations.alerts.tree import Node
from whystall.agent_server.journal.alerts import Alerts, Group, Member


def move(
    alerts: Alerts, member: Member, old: Group, node: Node, labels: Mapping[str, str], new: Group | None, now: float
) -> Group:
    """Add `member` of the group `old` to the group that `node` gives for `labels`; return that group, due now.

    `new`: that group if it exists. The caller stores the returned group and removes the member from `old`.
    """
    id, same = node.group(labels), node.options.receiver == old.receiver
    if alerts.member(id, member.fingerprint) is None:
        alerts.put_member(id, member.fingerprint, member.n, member.status, member.starts, member.notified and same)
    fields = {"due": now, "wait": 0.0}
    if new is not None:
        return new.model_copy(update={**fields, "ticket": new.ticket or old.ticket})
    own = {"id": id, "receiver": node.options.receiver, "route": node.key, "labels": node.group_labels(labels)}
    return old.model_copy(update={**fields, **own})
