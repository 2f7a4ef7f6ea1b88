"""A lane that runs tasks: several at once, those of one conversation in their order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.stores import Stores
from whystall.agent_server.task_handler import Handler, RetryLater
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

ATTEMPTS = 5
"""Attempts before a task that fails unexpectedly, or ends the process, is given up."""
_LEASE_S = 3600.0  # others cannot take tasks while we hold the worker's lock
_BACKOFF_S = 5.0
PASSES = {ErrorCode.BUSY: 5.0, ErrorCode.CANCELLED: 5.0, ErrorCode.DATABASE: 15.0, ErrorCode.DISK_FULL: 60.0}
"""Temporary errors (another window is open, the file is locked, the disk is full) and the seconds until a retry."""
_REASON = 500  # characters
_log = logging.getLogger("whystall.work")


class TaskRunner:
    """Runs tasks of the kinds of `handlers`, at most `width` at once, as the `step` of a `WorkLoop`."""

    def __init__(
        self,
        kb: Stores,
        handlers: Mapping[str, Handler],
        width: int,
        owner: str,
        group: TaskGroup,
        given_up: Mapping[str, Callable[[Task], None]],
    ) -> None:
        """`given_up`: by kind, called in the transaction that stores a task's final failure."""
        self._given_up = given_up
        self._kb = kb
        self._handlers = handlers
        self._width = width
        self._owner = owner
        self._group = group
        self._running: dict[int, str] = {}

    async def step(self, now: float) -> float | None:
        """Start due tasks while fewer than `width` run. Return when the next is due."""
        while len(self._running) < self._width:
            due = await in_thread(lambda: self._kb.tasks.next_due(self._kinds, self._busy))
            if due is None or due > now:
                return due
            task = await in_thread(lambda: self._taken(now))
            if task is not None and task.id not in self._running:  # else the clock was set, and we run it already
                self._running[task.id] = _conversation(task)
                self._group.start_soon(self._run, task)
        return None  # the end of a task is a commit, which wakes us

    @property
    def _kinds(self) -> list[str]:
        return list(self._handlers)

    @property
    def _busy(self) -> list[str]:
        return [conversation for conversation in self._running.values() if conversation]

    def _taken(self, now: float) -> Task | None:
        return self._kb.tasks.take(self._kinds, self._owner, now, _LEASE_S, self._busy)

    async def _run(self, task: Task) -> None:
        try:
            await self._do(task)
        except anyio.get_cancelled_exc_class():
            with suppress(ToolError):  # the next process releases it too
                self._kb.tasks.give_back(task.id, self._owner)
            raise
        except ToolError as error:  # the result could not be stored
            _log.warning("task %s: %s", task.key, error)
            await self._returned(task)
        finally:
            del self._running[task.id]

    async def _returned(self, task: Task) -> None:
        """Release the task once the knowledge base can be written again."""
        while True:
            await anyio.sleep(PASSES[ErrorCode.DATABASE])
            try:
                await in_thread(lambda: self._kb.tasks.give_back(task.id, self._owner))
            except ToolError as error:
                _log.warning("task %s: %s", task.key, error)
            else:
                return

    async def _do(self, task: Task) -> None:
        tasks = self._kb.tasks
        if task.attempts > ATTEMPTS:
            await in_thread(lambda: self._failed(task, task.result or f"started {ATTEMPTS} times and never ended"))
            return
        try:
            await self._handlers[task.kind](task)
        except RetryLater as later:
            due, why = time.time() + later.seconds, clean(later.why, _REASON)
            await in_thread(lambda: tasks.retry(task.id, due, why, counted=False))
        except ToolError as error:
            text, wait = str(error), PASSES.get(error.code)
            if wait is None:
                await in_thread(lambda: self._failed(task, text))
            else:
                due = time.time() + wait
                await in_thread(lambda: tasks.retry(task.id, due, text, counted=False))
        except Exception as error:
            # Its text may contain anything: only log it.
            _log.exception("task %s failed unexpectedly", task.key)
            why, due = type(error).__name__, time.time() + _BACKOFF_S * 2.0**task.attempts
            await in_thread(lambda: tasks.retry(task.id, due, why))
        else:
            await in_thread(lambda: self._ended(task))

    def _ended(self, task: Task) -> None:
        stored = self._kb.tasks.get(task.id)
        if stored is not None and stored.state == "running":
            self._kb.tasks.done(task.id)

    def _failed(self, task: Task, why: str) -> None:
        given_up = self._given_up.get(task.kind)
        with self._kb.transaction():
            self._kb.tasks.failed(task.id, clean(why, _REASON))
            if given_up is not None:
                try:
                    given_up(task)
                except ToolError as error:  # its subject may have been deleted
                    _log.warning("task %s: %s", task.key, error)
            self._kb.audit.put("engine", "task.failed", task.key, "failed", {"kind": task.kind, "why": why[:_REASON]})


def _conversation(task: Task) -> str:
    return str(task.payload.get("conversation") or "")
