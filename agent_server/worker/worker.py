"""The worker: processes stored tasks and periodic work in the background, in lanes that do not block each other."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.task_handler import Handler
from whystall.agent_server.worker.change_notifier import ChangeNotifier
from whystall.agent_server.worker.lock import worker_lock
from whystall.agent_server.worker.task_runner import TaskRunner
from whystall.agent_server.worker.work_loop import Step, WorkLoop
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

_STAND_BY_S = 1.0
_log = logging.getLogger("whystall.work")


@dataclass(frozen=True)
class Work:
    """What a worker does. `tasks`: per lane the number of concurrent tasks and the handlers by kind; `steps`: the other
    lanes; `begin`: called once this process is the only worker, before anything else. `given_up`: see `TaskRunner`.
    """

    tasks: Mapping[str, tuple[int, Mapping[str, Handler]]] = field(default_factory=dict)
    steps: Mapping[str, Step] = field(default_factory=dict)
    begin: Callable[[], None] = lambda: None
    given_up: Mapping[str, Callable[[Task], None]] = field(default_factory=dict)


class Worker:
    """Does the `work` of `kb`. Crash-safe: it continues after the last transaction. `state`: ``starting``,
    ``standing_by`` (another process works), ``working``, ``stopped``.
    """

    def __init__(self, kb: Stores, work: Work) -> None:
        self._kb = kb
        self._work = work
        self._owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.state = "starting"
        self.lanes: list[WorkLoop] = []

    async def run(self) -> None:
        """Work until cancelled, then release unfinished tasks. While another process works, wait for its end.

        Raises `ToolError` (io_error) if the knowledge base cannot be locked.
        """
        try:
            while not await self._turn():
                self.state = "standing_by"
                await anyio.sleep(_STAND_BY_S)
        finally:
            self.state = "stopped"

    async def _turn(self) -> bool:
        """Work until cancelled; return False at once if another process works."""
        with worker_lock(self._kb.path) as ours:
            if not ours:
                return False
            try:
                await self._all_lanes()
            finally:
                # Before the lock is released, so that the next process can take our tasks: an abandoned thread may have
                # taken one after its lane was cancelled.
                with suppress(ToolError):  # the next process releases them too
                    self._kb.tasks.release(self._owner, time.time())
        return True

    def _begun(self) -> int:
        with self._kb.transaction():
            self._work.begin()
            return self._kb.tasks.release_all(time.time())

    async def _all_lanes(self) -> None:
        released = await in_thread(self._begun)
        if released:
            _log.info("%d tasks of an ended process are started again", released)
        changes = ChangeNotifier(self._kb)
        async with anyio.create_task_group() as group:
            for name, (width, handlers) in self._work.tasks.items():
                lane = TaskRunner(self._kb, handlers, width, self._owner, group, self._work.given_up)
                self.lanes.append(WorkLoop(name, lane.step))
            self.lanes += [WorkLoop(name, step) for name, step in self._work.steps.items()]
            group.start_soon(changes.run)
            for each in self.lanes:
                group.start_soon(each.run, changes)
            self.state = "working"
