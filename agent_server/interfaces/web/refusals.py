"""Refused requests in the audit log, aggregated so that a flood of them is no flood of entries."""

from __future__ import annotations

import logging
import time
from collections import Counter

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ToolError

EVERY_S = 60.0
"""Seconds between entries per route and code; each has the count since the last one."""
_log = logging.getLogger("whystall.web")


class Refusals:
    """Refusals of one server, counted by route and code, which senders cannot choose."""

    def __init__(self, kb: Stores) -> None:
        self._kb = kb
        self._counts: Counter[tuple[str, str]] = Counter()
        self._told: dict[tuple[str, str], float] = {}

    async def note(self, route: str, code: str, detail: str = "") -> None:
        """Count a refused request to `route`; `detail` is for our own log."""
        key = (route, code)
        self._counts[key] += 1
        now = time.monotonic()
        if now < self._told.get(key, 0.0):
            return
        self._told[key] = now + EVERY_S
        count = self._counts.pop(key)
        _log.warning("refused: %s: %s%s (%d)", route, code, f": {detail}" if detail else "", count)
        try:
            await in_thread(lambda: self._kb.audit.put("engine", "request.refused", route, code, {"count": count}))
        except ToolError as error:
            _log.warning("%s", error)
