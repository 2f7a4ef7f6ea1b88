"""A clock that is set back: what was put off by some seconds would wait as long as the clock was set back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from whystall.agent_server.inputs.recordings import in_thread

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

EVERY_S = 1.0
_STEP_S = 1.0  # less is no harm; a clock that is slewed is never so far off within `EVERY_S`
_log = logging.getLogger("whystall.work")


def _running() -> float:
    """Seconds by a clock that is never set, and runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Compares the clock on the wall with one that is never set; as the former is set back, so is all that is put off
    in `kb`. A clock that is set forward needs nothing: what was put off is then due.
    """

    def __init__(self, kb: Stores, running: Callable[[], float] = _running) -> None:
        self._kb = kb
        self._running = running
        self._ahead: float | None = None

    async def step(self, now: float) -> None:
        """Look, at `now` (seconds since the epoch)."""
        ahead = now - self._running()
        by = 0.0 if self._ahead is None else self._ahead - ahead
        if by > _STEP_S:
            moved = await in_thread(lambda: self._moved(by, now))
            _log.warning("the clock was set back by %.0f s; %d records that wait with it", by, moved)
        self._ahead = ahead

    def _moved(self, by: float, now: float) -> int:
        kb = self._kb
        with kb.transaction():
            return kb.tasks.set_back(by, now) + kb.messages.set_back(by, now) + kb.deliveries.set_back(by, now)
