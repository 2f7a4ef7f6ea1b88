"""Whether a thread makes progress although it waits at none of its usual places: by its I/O system calls. Pure.

On a busy host a loader is ahead of its trainer, which then never waits for it; it still reads from it. The count is
that of reads and writes in /proc/PID/task/TID/io, which costs one short read.
"""

from __future__ import annotations

from collections import deque

from whystall.agent_server.watch.rhythm import NS

_EACH_NS = 5 * NS
_KEPT, _LEAST_KNOWN = 32, 2
_LEAST_PER_S = 2.0
# With this part of its usual calls a thread makes progress. Readings at most so far apart are compared.
_ACTIVE = 0.4
_NEAR_NS = 2 * NS


class CallRate:
    """The calls of one thread. `idle_ns`: until when it is known to have made hardly any, since its last progress."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._since: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None
        self.idle_ns = 0

    def due(self, now_ns: int) -> bool:
        """Return whether its usual rate is to be measured again."""
        return self._since is None or now_ns - self._since[0] >= _EACH_NS

    def read(self, now_ns: int, count: int) -> None:
        """Record the count of a thread that is at its usual places."""
        self._measure(now_ns, count)
        self._last, self.idle_ns = (now_ns, count), 0

    def makes_progress(self, since_ns: int, now_ns: int, count: int) -> bool:
        """Return whether the thread has made progress since the last reading, as far as is known: `count` was read now,
        while it has been to none of its usual places since `since_ns`."""
        last, self._last = self._last, (now_ns, count)
        self._measure(now_ns, count)
        if last is None or last[0] < since_ns or not 0 < now_ns - last[0] <= _NEAR_NS or not self.known:
            return False
        if (count - last[1]) * NS / (now_ns - last[0]) >= _ACTIVE * self._usual:
            return True
        self.idle_ns = now_ns
        return False

    @property
    def known(self) -> bool:
        """Whether the thread makes enough calls to judge by them."""
        return len(self._rates) >= _LEAST_KNOWN and self._usual >= _LEAST_PER_S

    @property
    def _usual(self) -> float:
        """The lower quartile of its rates: checkpoints and logs are written in many calls at once."""
        return sorted(self._rates)[len(self._rates) // 4]

    def _measure(self, now_ns: int, count: int) -> None:
        if not self.due(now_ns):
            return
        if self._since is not None:
            self._rates.append((count - self._since[1]) * NS / (now_ns - self._since[0]))
        self._since = (now_ns, count)
