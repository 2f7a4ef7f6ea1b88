"""Reports groups of alerts that are due to tickets, triage and chats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.inputs.recordings import in_thread

if TYPE_CHECKING:
    from whystall.agent_server.integrations.alerts.groups import Groups


class AlertGroupStep:
    """The lane of `groups`; processes many in one transaction, outside the event loop."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def step(self, now: float) -> float | None:
        """Process all groups that are due; return when the next one is."""
        while await in_thread(lambda: self._groups.work(now)):
            pass
        return await in_thread(lambda: self._groups.next_due(now))
