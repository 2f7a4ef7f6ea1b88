"""Wakes the lanes of the worker when something was stored: by this process at once, by others soon."""

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
"""How often is looked whether another process has stored something; one read of a page that is in memory."""
_log = logging.getLogger("whystall.work")


class ChangeNotifier:
    """Beats after everything that is stored in `kb` while `run` runs."""

    def __init__(self, kb: Stores) -> None:
        self._kb = kb
        self._beat = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coming = False
        self.count = 0

    async def run(self) -> None:
        """Beat until cancelled."""
        self._loop = asyncio.get_running_loop()
        with self._kb.after_commit(self.beat):
            known = -1
            while True:
                try:
                    version = await in_thread(self._kb.version)
                except ToolError as error:  # a file that is locked for long: the lanes will say so themselves
                    _log.info("%s", error)
                else:
                    if version != known:
                        known = version
                        self._now()
                await anyio.sleep(OTHERS_S)

    def beat(self) -> None:
        """Something was stored. Callable from every thread."""
        if self._loop is not None and not self._coming and not self._loop.is_closed():
            self._coming = True
            self._loop.call_soon_threadsafe(self._now)

    async def after(self, seen: int, seconds: float) -> None:
        """Return when there was a beat after the one that was counted `seen`, or when `seconds` are over."""
        with anyio.move_on_after(seconds):
            while self.count <= seen:
                await self._beat.wait()

    def _now(self) -> None:
        self._coming = False
        self.count += 1
        self._beat.set()
        self._beat = anyio.Event()
