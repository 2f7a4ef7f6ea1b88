"""Let calls that observe hosts begin together, so that what they see is of one time."""

from __future__ import annotations

from collections.abc import Callable

import anyio

_LONGEST_S = 5.0
_SPARE_S = 0.5


class Gate:
    """Opens when all calls are ready that have begun to prepare and not ended. A silent host delays the others little:
    it opens also half a second after half of them were ready, or half of the time that these needed, if that is longer;
    and 5 s after the first was ready. A call that is ready later passes at once.
    """

    def __init__(self, opened: Callable[[], None]) -> None:
        """`opened` is called when the gate opens."""
        self._opened = opened
        self._start = anyio.current_time()
        self._half, self._all = anyio.Event(), anyio.Event()
        self._preparing: set[int] = set()
        self._ready: set[int] = set()
        self._last = float("inf")

    def prepare(self, number: int) -> None:
        """Count the call `number`, which begins to prepare."""
        self._preparing.add(number)

    def end(self, number: int) -> None:
        """Count it no more."""
        self._preparing.discard(number)
        self._ready.discard(number)
        self._check()

    async def passed(self, number: int) -> None:
        """Wait until the gate is open, as one that is ready."""
        self._ready.add(number)
        self._last = min(self._last, anyio.current_time() + _LONGEST_S)
        self._check()
        with anyio.CancelScope(deadline=self._last):
            await self._half.wait()
        with anyio.CancelScope(deadline=self._last):
            await self._all.wait()
        self._open()

    def _check(self) -> None:
        if self._ready and 2 * len(self._ready) >= len(self._preparing) and not self._half.is_set():
            now = anyio.current_time()
            self._last = min(self._last, now + max(_SPARE_S, (now - self._start) / 2))
            self._half.set()
        if self._ready and len(self._ready) >= len(self._preparing):
            self._open()

    def _open(self) -> None:
        if not self._all.is_set():
            self._opened()
        self._all.set()
