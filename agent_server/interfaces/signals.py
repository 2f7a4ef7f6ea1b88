"""SIGINT and SIGTERM: cancel running work, so that its `finally` blocks detach what it attached."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_AGAIN_S = 0.01


class Interrupted(BaseException):
    """A signal ended the program; `status` is its exit status (128 + signal number)."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.status = 128 + signum


class Signals:
    """Turns the first signal into an orderly end and the second into an immediate one.

    Python-level handlers are used, not those of the event loop, so that the second signal works also while the loop is
    busy.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._running = False
        self._stop: Callable[[], None] | None = None
        self._wish: list[int] | None = None

    def install(self) -> None:
        """Handle SIGINT and SIGTERM from now on; outside of `run` they raise `Interrupted`."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._handle)
        sys.unraisablehook = self._lost

    def ignore(self) -> None:
        """Ignore signals from now on: the result is written, and Python restores default handlers at its end."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)

    @contextmanager
    def as_wish(self) -> Iterator[Callable[[], bool]]:
        """Within the block the first signal interrupts nothing; the yielded function returns True after it."""
        wishes: list[int] = []
        self._wish = wishes
        try:
            yield lambda: bool(wishes)
        finally:
            self._wish = None

    def run(self, work: Coroutine[Any, Any, T], stop: Callable[[], None] | None = None) -> T:
        """Run `work` to its end. A signal calls `stop` in the event loop, or cancels `work` if there is none.

        Raises `Interrupted` after `work` has ended, even if it ignored the cancellation.
        """
        import asyncio  # not loaded for `whystall --help`

        self._running = True
        try:
            return asyncio.run(self._main(work, stop))
        finally:
            self._running = False
            work.close()  # cancelled before its first step
            if self.received is not None:
                raise Interrupted(self.received) from None

    async def _main(self, work: Coroutine[Any, Any, T], stop: Callable[[], None] | None) -> T:
        import asyncio

        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._stop = None
            loop.call_soon_threadsafe(stop or task.cancel)

        self._stop = end
        if self.received is not None:  # the signal came before the loop existed
            end()
        try:
            return await task
        finally:
            self._stop = None

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._wish == []:
            self._wish.append(signum)
            return
        if self.received is not None:
            os._exit(128 + signum)
        self.received = signum
        if self._stop is not None:
            self._stop()
        elif not self._running:
            raise Interrupted(signum)

    def _lost(self, lost: sys.UnraisableHookArgs) -> None:
        """Raise `Interrupted` again soon if it was raised in a callback of the interpreter, such as that of a weak
        reference, which only reports exceptions."""
        if not isinstance(lost.exc_value, Interrupted):
            sys.__unraisablehook__(lost)
            return
        signal.signal(signal.SIGALRM, self._again)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    def _again(self, _signum: int, _frame: FrameType | None) -> None:
        if self.received is not None and not self._running:  # else `run` raises it
            raise Interrupted(self.received)


signals = Signals()
