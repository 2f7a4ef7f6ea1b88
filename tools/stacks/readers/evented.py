"""Samples from calls that are told by their beginnings and ends: a sample for each stretch of one stack."""

from __future__ import annotations

from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_STACK, NO_TIME
from whystall.tools.stacks.readers.whole_file import DEEPEST

_LATEST_NS = 1 << 62


def instant(at: float, length: float, scale: float) -> tuple[int, int]:
    """(instant, span) in nanoseconds; `scale`: nanoseconds in a unit, 0 when it is none of time."""
    if not scale or not (0 <= at * scale < _LATEST_NS and 0 <= length * scale < _LATEST_NS):
        return NO_TIME, 0
    return round(at * scale), round(length * scale)


class Evented:
    """The calls of one thread as they open and close; times must not go back."""

    def __init__(self, builder: Builder, event: int, thread: int, scale: float, start: float = 0.0) -> None:
        self.now = start
        self.open: list[int] = []  # frames, the outermost first
        self._builder, self._event, self._thread, self._scale = builder, event, thread, scale
        self._stacks = [NO_STACK]

    def begin(self, at: float, frame: int) -> bool:
        """Return a call begins; False when it is too deep."""
        if len(self.open) >= DEEPEST:
            return False
        self.until(at)
        self.open.append(frame)
        self._stacks.append(self._builder.call(self._stacks[-1], frame))
        return True

    def end(self, at: float) -> None:
        """The innermost call ends."""
        self.until(at)
        self.open.pop()
        self._stacks.pop()

    def until(self, at: float) -> None:
        """Nothing changes until `at`."""
        length = at - self.now
        if length > 0 and self.open:
            start, span = instant(self.now, length, self._scale)
            weight = length * (self._scale or 1.0)
            self._builder.sample(self._stacks[-1], self._event, weight, at_ns=start, span_ns=span, thread=self._thread)
        self.now = max(at, self.now)
