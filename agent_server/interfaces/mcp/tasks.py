"""Calls that outlive the request: one store for clients with the Tasks extension and for those without.

A call runs in the task group of the server, not of a connection, and ends with the server. Its outcome is stored, so
that it survives a restart.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.shared.exceptions import MCPError

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.answers import call_result, failure
from whystall.agent_server.interfaces.mcp.asking import Arguments
from whystall.agent_server.interfaces.mcp.calls import Calls, ServerStops
from whystall.agent_server.interfaces.mcp.entry import Entry
from whystall.agent_server.interfaces.mcp.presence import Presence, alive
from whystall.agent_server.journal.client_tasks import TTL_S, ClientTask
from whystall.tools.contract.errors import ErrorCode, ToolError

PATIENCE_S = 5.0
"""A call that ends sooner is answered with its result."""
_LOOK_S = 2.0  # how often a task that another server runs is looked at
_LARGEST = 1 << 20  # characters of a stored outcome
_log = logging.getLogger("whystall.mcp")


class _Running:
    """A call of this server. `task`: None until the client knows its id. `ended` follows `result` or `error`."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.task: ClientTask | None = None
        self.result: types.CallToolResult | None = None
        self.error: Exception | None = None
        self.stored = True
        self._changed = changed
        self._step = ""

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Keep the words of the latest progress."""
        if message and message != self._step:
            self._step = message
            self._changed()

    @property
    def shown(self) -> ClientTask:
        """The task with its latest progress."""
        assert self.task is not None  # noqa: S101 - only tasks are shown
        return self.task.model_copy(update={"step": "" if self.ended.is_set() else self._step})


class TaskRunner:
    """Runs the calls of one server. `patience_s`: see `PATIENCE_S`. `clock`: returns seconds since the epoch."""

    def __init__(self, app: App, calls: Calls) -> None:
        self.patience_s = PATIENCE_S
        self.clock: Callable[[], float] = time.time
        self._app = app
        self._calls = calls
        self._groups: list[TaskGroup] = []
        self._running: dict[str, _Running] = {}
        self._presence: Presence | None = None
        self._news = anyio.Event()

    @asynccontextmanager
    async def lifespan(self, _server: object) -> AsyncIterator[None]:
        """Run tasks during the block; at its end those still running are cancelled and stored as interrupted."""
        error: Exception | None = None
        async with anyio.create_task_group() as group:
            self._groups.append(group)
            try:
                yield
            except Exception as raised:
                error = raised  # raised below: the task group would wrap it
            finally:
                self._groups.remove(group)
                group.cancel_scope.cancel()
        if self._presence is not None and not self._groups:
            self._presence.close()
            self._presence = None
        if error is not None:
            raise error

    def start(self, entry: Entry, arguments: Arguments) -> ClientTask:
        """Begin a call and return its task. Raises `ToolError` (busy, database) if it cannot be stored."""
        running = _Running(self._tell)
        task = self._keep(running, entry.name)
        self._groups[-1].start_soon(self._run, running, entry, arguments)
        return task

    async def answer(self, entry: Entry, arguments: Arguments) -> types.CallToolResult | ClientTask:
        """Return the result of a call, or its task if the call takes longer than `patience_s`.

        If no task can be stored, the result is awaited. Cancelling the request cancels the call, unless it has become a
        task. Raises what `call_result` raises.
        """
        running = _Running(self._tell)
        self._groups[-1].start_soon(self._run, running, entry, arguments)
        try:
            with anyio.move_on_after(self.patience_s):
                await running.ended.wait()
            if not running.ended.is_set():
                try:
                    return self._keep(running, entry.name)
                except ToolError as error:
                    _log.warning("a call of %s becomes no task: %s", entry.name, error)
                await running.ended.wait()
        finally:
            if running.task is None:
                running.scope.cancel()
        if running.result is None:
            raise running.error or ToolError(ErrorCode.CANCELLED, "the call was cancelled", "repeat it")
        return running.result

    def get(self, id: str) -> ClientTask:
        """Return a task of the client that asks. Raises `ToolError` (not_found, database)."""
        client = _client()
        running = self._running.get(id)
        if running is not None and running.shown.client == client:
            self._store(running)
            return running.shown
        task = self._app.kb().client_tasks.get(id, client, self.clock())
        if task is None:
            message = f"no task {id!r} is stored"
            raise ToolError(ErrorCode.NOT_FOUND, message, f"repeat the call; results are kept {TTL_S // 3600} hours")
        if task.state == "working" and not alive(self._app.kb().path, task.server):
            return task.model_copy(update={"state": "interrupted"})
        return task

    async def wait(self, id: str, seconds: float) -> ClientTask:
        """Return a task as `get` does, once it has ended or `seconds` have passed."""
        with anyio.move_on_after(seconds):
            while self.get(id).state == "working":
                running = self._running.get(id)
                with anyio.move_on_after(_LOOK_S if running is None else None):
                    await (anyio.sleep_forever() if running is None else running.ended.wait())
        return self.get(id)

    def cancel(self, id: str) -> None:
        """Cancel a task; one that has ended, or that another server runs, is left as it is. Raises as `get`."""
        if self.get(id).state == "working" and id in self._running:
            self._running[id].scope.cancel()

    async def follow(self, ids: Sequence[str], send: Callable[[ClientTask], Awaitable[None]]) -> None:
        """Send tasks as they are and whenever state or progress change, until all have ended. Raises as `get`."""
        sent: dict[str, ClientTask] = {}
        while waiting := [id for id in ids if id not in sent or sent[id].state == "working"]:
            news = self._news
            for id in waiting:
                if (task := self.get(id)) != sent.get(id):
                    sent[id] = task
                    await send(task)
            if any(task.state == "working" for task in sent.values()):
                with anyio.move_on_after(_LOOK_S):
                    await news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _keep(self, running: _Running, tool: str) -> ClientTask:
        """Store a running call as a task."""
        kb = self._app.kb()
        if self._presence is None:
            self._presence = Presence(kb.path)
        running.task = kb.client_tasks.add(_client(), self._presence.id, tool, self.clock())
        self._running[running.task.id] = running
        return running.shown

    async def _run(self, running: _Running, entry: Entry, arguments: Arguments) -> None:
        try:
            with running.scope:
                running.result = await call_result(self._calls, entry, arguments, running)
        except (ServerStops, MCPError) as error:
            running.error = error
        finally:
            if running.task is not None:
                running.task = running.task.model_copy(update=_ended(running) | {"updated": self.clock()})
                running.stored = False
                self._store(running)
            running.ended.set()
            self._tell()

    def _store(self, running: _Running) -> None:
        """Store an outcome; if the database is locked or full, it is tried again whenever the client asks."""
        if running.stored or running.task is None:
            return
        try:
            self._app.kb().client_tasks.end(running.task)
        except ToolError as error:
            _log.warning("the result of a task is not stored yet: %s", error)
            return
        running.stored = True
        del self._running[running.task.id]


def _ended(running: _Running) -> dict[str, Any]:
    """Return the final state and outcome of a call."""
    if running.result is not None:
        outcome = running.result.model_dump(mode="json", by_alias=True, exclude_none=True)
        if len(json.dumps(outcome)) > _LARGEST:
            text = f"the result is larger than {_LARGEST} characters"
            error = ToolError(ErrorCode.BAD_ARGUMENT, text, "ask for fewer rows with `top`, or for a shorter time")
            outcome = failure(str(error)).model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"state": "completed", "outcome": outcome}
    if isinstance(running.error, MCPError):
        error_data = running.error.error.model_dump(mode="json", exclude_none=True)
        return {"state": "failed", "outcome": error_data}
    stopped = running.error is not None or not running.scope.cancel_called
    return {"state": "interrupted" if stopped else "cancelled"}


def _client() -> str:
    """Return the client that sent the current request, by its token; one for all requests without a token."""
    token = get_access_token()
    return "" if token is None else json.dumps(principal_components(token))
