"""Deletes old tasks, messages, alerts, observation requests, questions, replay records and results of MCP calls.
Tickets and the audit log are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.receiving import KEPT_S
from whystall.knowledge_base.times import rfc3339

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

EVERY_S = 3600.0
_log = logging.getLogger("whystall.work")


class Retention:
    """Keeps `days` of what has ended; `also`: further deletions, which return their count."""

    def __init__(self, kb: Stores, days: float, also: list[Callable[[float], int]]) -> None:
        self._kb = kb
        self._keep = timedelta(days=days)
        self._also = also

    async def step(self, now: float) -> None:
        """Delete what is too old at `now` (seconds since the epoch)."""
        await in_thread(lambda: self.forget(now))

    def forget(self, now: float) -> int:
        """Delete what is too old; return the number of records."""
        before = datetime.fromtimestamp(now, timezone.utc) - self._keep
        stamp = rfc3339(before)
        # Replay records are kept as long as a message can be sent again.
        seen = min(before.timestamp(), now - KEPT_S)
        kb = self._kb
        many = kb.tasks.forget(stamp) + kb.messages.forget(stamp) + kb.handled_requests.forget(seen)
        many += kb.pending_commands.forget(now) + kb.observation_requests.forget(stamp) + kb.client_tasks.forget(now)
        many += sum(forget(now) for forget in self._also)
        if many:
            _log.info("%d old records were deleted", many)
        return many
