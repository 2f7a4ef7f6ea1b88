"""Calls in flight: their progress, their cancellation, and an orderly shutdown of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
from anyio.abc import ObjectReceiveStream

from whystall.tools.contract.errors import ErrorCode, ToolError

T = TypeVar("T")
Progress = Callable[[float, float, str], None]
_Step = tuple[float, float, str]


class ServerStops(ToolError):
    """The server stopped while a call was in flight."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.CANCELLED, "the server is stopping", "start it again and repeat the call")


class Session(Protocol):
    """The part of an MCP session needed here."""

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of the call to the client."""


class Calls:
    """The calls of one server."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    async def run(self, work: Callable[[Progress], Awaitable[T]], session: Session) -> T:
        """Await ``work(progress)``, forward its progress, and return or raise its outcome.

        After `stop` it raises `ServerStops`. Cancelling the request cancels `work`, so that its `finally`
        blocks run.
        """
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await _with_progress(work, session)
            finally:
                self._scopes.discard(scope)
        raise ServerStops

    def stop(self) -> None:
        """Cancel every call."""
        for scope in tuple(self._scopes):
            scope.cancel()

    async def idle(self, timeout_s: float) -> None:
        """Wait until no call is in flight, at most `timeout_s` seconds."""
        with anyio.move_on_after(timeout_s):
            while self._scopes:
                await anyio.sleep(0.01)


async def _with_progress(work: Callable[[Progress], Awaitable[T]], session: Session) -> T:
    send, receive = anyio.create_memory_object_stream[_Step](16)

    def progress(done: float, total: float, message: str) -> None:
        try:
            send.send_nowait((done, total, message))
        except anyio.WouldBlock:
            return  # a slow client misses a step and gets the next one

    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_on, receive, session)
        try:
            with send:
                result = await work(progress)
        except Exception as error:
            failure = error  # raised below: the task group would wrap it
    if failure is not None:
        raise failure
    return result


async def _pass_on(steps: ObjectReceiveStream[_Step], session: Session) -> None:
    """Keep progress increasing: a second window continues where the first ended."""
    before = last = 0.0
    async with steps:
        async for done, total, message in steps:
            if before + done < last:
                before = last
            if before + done > last:
                last = before + done
                await session.report_progress(last, max(before + total, last), message)
