"""Alerts whose routes were changed while they fire: they go into the groups that they are in now, with their tickets,
and what a receiver was told of, it is not told of again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whystall.agent_server.integrations.alerts.tree import Node
    from whystall.agent_server.journal.alerts import Group, Member
    from whystall.agent_server.stores import Stores


def move(
    kb: Stores,
    member: Member,
    before: Group,
    node: Node,
    labels: Mapping[str, str],
    there: Group | None,
    now: float,
) -> Group:
    """Put `member` of the group `before` into that which `node` makes of its `labels`, and return this one, due now
    and not yet stored; `there`: what is known of it already. The member stays where it was until it leaves there.
    """
    id, same = node.group(labels), node.options.receiver == before.receiver
    if kb.alerts.member(id, member.fingerprint) is None:
        kb.alerts.put_member(id, member.fingerprint, member.n, member.status, member.starts, member.notified and same)
    fields = {"due": now, "wait": 0.0}
    if there is not None:
        return there.model_copy(update={**fields, "ticket": there.ticket or before.ticket})
    own = {"id": id, "receiver": node.options.receiver, "route": node.key, "labels": node.group_labels(labels)}
    return before.model_copy(update={**fields, **own})
