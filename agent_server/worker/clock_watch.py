"""Adjusts stored due times when the clock is set back: else they would wait that much longer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from whystall.agent_server.inputs.recordings import in_thread

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

EVERY_S = 1.0
_STEP_S = 1.0  # a slewed clock never moves that far within `EVERY_S`
_log = logging.getLogger("whystall.work")


def _running() -> float:
    """Return seconds of a clock that is never set and also runs during suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Compares the wall clock with one that is never set, and moves due times in `kb` back with it. A clock that is set
    forward needs no change: postponed records are then due.
    """

    def __init__(self, kb: Stores, running: Callable[[], float] = _running) -> None:
        self._kb = kb
        self._running = running
        self._ahead: float | None = None

    async def step(self, now: float) -> None:
        """Compare the clocks at `now` (seconds since the epoch)."""
        ahead = now - self._running()
        by = 0.0 if self._ahead is None else self._ahead - ahead
        if by > _STEP_S:
            moved = await in_thread(lambda: self._moved(by, now))
            _log.warning("the clock was set back by %.0f s; %d due times were moved with it", by, moved)
        self._ahead = ahead

    def _moved(self, by: float, now: float) -> int:
        kb = self._kb
        with kb.transaction():
            return kb.tasks.set_back(by, now) + kb.messages.set_back(by, now) + kb.deliveries.set_back(by, now)
