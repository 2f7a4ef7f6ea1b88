"""A lane of the worker: one kind of work, one step after another, independent of the other lanes."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

import anyio

from whystall.agent_server.worker.change_notifier import ChangeNotifier
from whystall.tools.contract.errors import ToolError

LONGEST_S = 15.0
"""The longest wait before a step is called again: the clock may be set meanwhile."""
_SHORTEST_S = 0.02
_BACKOFF_S = (1.0, 60.0)
_log = logging.getLogger("whystall.work")

Step = Callable[[float], Awaitable["float | None"]]
"""Does what is due at a time (seconds since the epoch). Returns when to call it again; None: after the next commit. It
writes only if something is due, since a commit wakes all lanes.
"""


class WorkLoop:
    """Calls `step` when it is due and after each commit; its exceptions are logged and it is called again later."""

    def __init__(self, name: str, step: Step) -> None:
        self.name = name
        self._step = step
        self.failures = 0

    async def run(self, changes: ChangeNotifier) -> None:
        """Work until cancelled."""
        while True:
            count = changes.count
            try:
                wanted = await self._step(time.time())
            except ToolError as error:
                await self._pause("%s: %s", self.name, error)
            except Exception:
                _log.exception("lane %s failed unexpectedly", self.name)
                await self._pause("%s: retried", self.name)
            else:
                self.failures = 0
                await anyio.sleep(_SHORTEST_S)
                await changes.after(count, LONGEST_S if wanted is None else min(LONGEST_S, wanted - time.time()))

    async def _pause(self, message: str, *words: object) -> None:
        self.failures += 1
        _log.warning(message, *words)
        first, longest = _BACKOFF_S
        await anyio.sleep(min(longest, first * 2.0 ** min(self.failures - 1, 10)))


def every(seconds: float, work: Callable[[float], Awaitable[object]]) -> Step:
    """Return a step that does `work` at once and then every `seconds`, by the monotonic clock."""
    due = 0.0

    async def step(now: float) -> float:
        nonlocal due
        if time.monotonic() >= due:
            await work(now)
            due = time.monotonic() + seconds
        return now + max(0.0, due - time.monotonic())

    return step
