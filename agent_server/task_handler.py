"""What does the tasks of one kind, and how it says that it has to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from whystall.agent_server.journal.tasks import Task

Handler = Callable[[Task], Awaitable[None]]
"""Does one task. It ends the task itself, in the transaction that stores what it made; where it returns without, the
task is ended for it. It may be begun again after it was killed, and is cancelled when the server stops. Raises `Later`;
`ToolError` where the task can never be done.
"""


class Later(Exception):
    """The task cannot be done now: it is to be begun again in `seconds`, and nothing of it counts as a failure."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds
        self.why = why
