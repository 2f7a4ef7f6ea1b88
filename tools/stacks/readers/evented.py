"""Convert begins and ends of calls to samples: one for each period of an unchanged stack."""

from __future__ import annotations

from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_STACK, NO_TIME
from whystall.tools.stacks.readers.whole_file import DEEPEST

_LATEST_NS = 1 << 62


def instant(at: float, length: float, scale: float) -> tuple[int, int]:
    """Return (instant, span) in nanoseconds; `scale`: nanoseconds in a unit, 0 if the unit is not of time."""
    if not scale or not (0 <= at * scale < _LATEST_NS and 0 <= length * scale < _LATEST_NS):
        return NO_TIME, 0
    return round(at * scale), round(length * scale)


class Evented:
    """The open calls of one thread; times must not decrease."""

    def __init__(self, builder: Builder, event: int, thread: int, scale: float, start: float = 0.0) -> None:
        self.now = start
        self.open: list[int] = []  # frames, the outermost first
        self._builder, self._event, self._thread, self._scale = builder, event, thread, scale
        self._stacks = [NO_STACK]

    def begin(self, at: float, frame: int) -> bool:
        """Begin a call; return False when it is too deep."""
        if len(self.open) >= DEEPEST:
            return False
        self.until(at)
        self.open.append(frame)
        self._stacks.append(self._builder.call(self._stacks[-1], frame))
        return True

    def end(self, at: float) -> None:
        """End the innermost call."""
        self.until(at)
        self.open.pop()
        self._stacks.pop()

    def until(self, at: float) -> None:
        """Add a sample of the open calls up to `at`."""
        length = at - self.now
        if length > 0 and self.open:
            start, span = instant(self.now, length, self._scale)
            weight = length * (self._scale or 1.0)
            self._builder.sample(self._stacks[-1], self._event, weight, at_ns=start, span_ns=span, thread=self._thread)
        self.now = max(at, self.now)
