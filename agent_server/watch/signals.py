"""Find when a sign of progress that was named for a job stays away. Pure: no I/O, no clock.

It is a stall also if the threads of the job run: what the sign counts is what the job is for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from whystall.agent_server.watch.pauses import RUNNING, Pauses
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.rhythm import Rhythm

# A sign that changes more often than it is looked at is seen once per look, up to a step earlier or later.
_SLACK_NS = 100_000_000
# Looks further apart than this (a busy host) do not show when in between it changed.
_NEAR_NS = 1_500_000_000


class Reading(NamedTuple):
    """A number that changes with progress, and when it last changed, as far as is known: CLOCK_MONOTONIC, ns."""

    value: float
    at_ns: int


class Signal:
    """One sign of progress. Times are CLOCK_MONOTONIC, ns. `unreadable`: it could not be read at the last look."""

    def __init__(self, learn_ns: int) -> None:
        self.pauses = Pauses()
        self.unreadable = False
        self._learn_ns = learn_ns
        self._first_ns = 0
        self._value: float | None = None
        self._rhythm: Rhythm | None = None
        self._same_ns = self._looked_ns = 0
        self._open: Stall | None = None

    @property
    def open(self) -> Stall | None:
        """The gap in progress, if `look` has reported one."""
        return self._open

    def look(self, reading: Reading | None, now_ns: int, tid: int) -> Stall | None:
        """Record what was read at `now_ns`. Return a stall that began or has ended, as one of thread `tid`. Its end is
        the last look that showed no progress."""
        self.unreadable = reading is None
        if reading is None:  # it is unknown whether the job makes progress
            self.unobserved(now_ns)
            return None
        rhythm, before = self._rhythm, self._looked_ns
        self._looked_ns = now_ns
        if rhythm is None:
            self._first_ns, self._value, self._rhythm = now_ns, reading.value, Rhythm(now_ns)
            return None
        if reading.value == self._value:
            self._same_ns = now_ns
            if not self._overdue(rhythm, now_ns) or self._open is not None:
                return None
            self._open = Stall("signal", tid, rhythm.last_ns, None, rhythm.median_ns)
            return self._open
        self._value, self._open = reading.value, None
        start, same = rhythm.last_ns, max(self._same_ns, rhythm.last_ns)
        at = min(max(reading.at_ns, before), now_ns)
        if not self._overdue(rhythm, at if now_ns - before <= _NEAR_NS else same):
            rhythm.visit(at)
            return None
        rhythm.resume(at)
        end = max(same, min(at, start + rhythm.gap_ns))
        known = self.pauses.known(RUNNING, end - start)
        self.pauses.add(RUNNING, start, end - start)
        if known or self.pauses.known(RUNNING, end - start):
            return None
        return Stall("signal", tid, start, end, rhythm.median_ns)

    def _overdue(self, rhythm: Rhythm, at_ns: int) -> bool:
        return rhythm.learnt and at_ns - self._first_ns >= self._learn_ns and rhythm.overdue_ns(at_ns) > _SLACK_NS

    def unobserved(self, until_ns: int) -> None:
        """Forget the time before `until_ns`, in which nothing was observed."""
        self._open = None
        if self._rhythm is not None:
            self._rhythm.resume(until_ns)

    def state(self) -> dict[str, Any]:
        """Return what is known of it: the usual interval in seconds, whether it stays away, whether it can be read."""
        usual = self._rhythm.median_ns / 1e9 if self._rhythm is not None and self._rhythm.learnt else 0.0
        return {"usual_s": round(usual, 2), "stalled": self._open is not None, "unreadable": self.unreadable}
