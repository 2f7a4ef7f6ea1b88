"""The handler of one kind of task, and how it postpones one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from whystall.agent_server.journal.tasks import Task

Handler = Callable[[Task], Awaitable[None]]
"""Processes one task, and marks it done in the transaction that stores its result; else the caller marks it done.

Idempotent: it runs again after a crash. It is cancelled when the server stops. Raises `RetryLater`; `ToolError` where
the task cannot succeed.
"""


class RetryLater(Exception):
    """Run the task again in `seconds`; not counted as a failure."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds
        self.why = why
