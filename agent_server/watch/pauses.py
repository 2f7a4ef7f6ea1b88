"""Pauses that a thread makes again and again: checkpoints, evaluations, idle times of a server. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from whystall.agent_server.watch.rhythm import NS

RUNNING = 0
"""The place of a pause in which the thread mostly ran."""
KEPT = 32
"""Places of which pauses are known."""
_LONGER = 1.5
_SLACK_NS = NS
# Two pauses are alike if the one is at most this many times as long as the other.
_ALIKE = 2.0
# The third of three pauses recurs if its distance from the second differs from that before by at most this share.
_REGULAR = 0.3


@dataclass
class _Class:
    """Pauses at one place. `starts`: when they began; `accepted`: the longest that is no stall, ns, 0 if none."""

    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    accepted: int = 0


class Pauses:
    """The pauses of one thread, by the place at which most of the pause was spent."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}

    def known(self, place: int, length_ns: int) -> bool:
        """Return whether a pause of this length at `place` was accepted before."""
        known = self._classes.get(place)
        return known is not None and known.accepted > 0 and length_ns <= _LONGER * known.accepted + _SLACK_NS

    @property
    def allowance_ns(self) -> int:
        """The longest pause that may be an accepted one, at whatever place, ns; 0 if none was accepted."""
        longest = max((one.accepted for one in self._classes.values()), default=0)
        return int(_LONGER * longest) + _SLACK_NS if longest else 0

    def add(self, place: int, start_ns: int, length_ns: int) -> None:
        """Record a pause. The third of three alike pauses at regular distances is accepted, and those after it."""
        known = self._classes.setdefault(place, _Class())
        known.starts = [*known.starts[-2:], start_ns]
        known.lengths = [*known.lengths[-2:], length_ns]
        if len(known.starts) == 3 and _recurs(known):
            known.accepted = max(known.accepted, length_ns)
        if len(self._classes) > KEPT:
            del self._classes[min(self._classes, key=lambda each: self._classes[each].starts[-1:] or [0])]

    def accept(self, place: int, length_ns: int) -> None:
        """Accept pauses of up to 1.5 times this length at `place`: a look at one found no fault."""
        known = self._classes.setdefault(place, _Class())
        known.accepted = max(known.accepted, length_ns)

    def accepted(self) -> dict[int, int]:
        """Return the accepted lengths, ns, by place."""
        return {place: one.accepted for place, one in self._classes.items() if one.accepted}


def _recurs(known: _Class) -> bool:
    first, second = known.starts[1] - known.starts[0], known.starts[2] - known.starts[1]
    alike = max(known.lengths) <= _ALIKE * min(known.lengths)
    return alike and abs(second - first) <= _REGULAR * first
