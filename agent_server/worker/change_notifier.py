"""Wakes the lanes of the worker after a commit: at once after one of this process, within a second after others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from whystall.agent_server.inputs.recordings import in_thread
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

OTHERS_S = 1.0
"""Seconds between checks for commits of other processes; each reads one cached page."""
_log = logging.getLogger("whystall.work")


class ChangeNotifier:
    """Wakes waiters after each commit to `kb` while `run` runs."""

    def __init__(self, kb: Stores) -> None:
        self._kb = kb
        self._beat = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self.count = 0

    async def run(self) -> None:
        """Notify until cancelled."""
        self._loop = asyncio.get_running_loop()
        with self._kb.after_commit(self.beat):
            known = -1
            while True:
                try:
                    version = await in_thread(self._kb.version)
                except ToolError as error:  # the file is locked for long: the lanes report that themselves
                    _log.info("%s", error)
                else:
                    if version != known:
                        known = version
                        self._now()
                await anyio.sleep(OTHERS_S)

    def beat(self) -> None:
        """Notify of a commit. Thread-safe."""
        if self._loop is not None and not self._scheduled and not self._loop.is_closed():
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._now)

    async def after(self, seen: int, seconds: float) -> None:
        """Wait for a notification after number `seen`, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self.count <= seen:
                await self._beat.wait()

    def _now(self) -> None:
        self._scheduled = False
        self.count += 1
        self._beat.set()
        self._beat = anyio.Event()
