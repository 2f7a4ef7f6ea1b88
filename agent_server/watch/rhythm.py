"""The intervals between visits to one place, and which interval is too long. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

NS = 1_000_000_000
MIN_GAP_NS = NS
"""An interval is called a gap only if it exceeds the usual one by this, ns."""
LEARN_VISITS = 12
"""Intervals before a place can be judged."""
_KEPT = 256
# MAD times this estimates the standard deviation of normal values (Rousseeuw and Croux 1993).
_MAD_SCALE = 1.4826
_SIGMAS = 8.0
# Times the excess over the median that 2 % of the intervals have, or three: of a place that is visited often at the end
# of each step, few are as long as the step. The longest would let the bound creep upwards.
_TAIL, _RARE, _SEVERAL = 1.5, 0.98, 3
# 95 % of the intervals of a periodic place are below this multiple of their median.
_PERIODIC = 1.8
_START, _MOST_STARTS, _BEGINNING = 5, 2, 3
_SLOWEST_NS = 120 * NS
_ALIKE = 2.0


class Rhythm:
    """The visits to one place, with the bounds that follow from their intervals. Times are CLOCK_MONOTONIC, ns.

    `since_ns`: the first visit; `intervals`: the latest 256 accepted ones; `longest`: ever accepted; one that was a gap
    is not accepted.
    """

    __slots__ = ("_bounds", "_fresh", "_late", "count", "intervals", "last_ns", "longest", "since_ns")

    def __init__(self, at_ns: int) -> None:
        self.since_ns = self.last_ns = at_ns
        self.count = 0
        self.longest = 0
        self.intervals: deque[int] = deque(maxlen=_KEPT)
        self._bounds = (0, 0, 0)
        self._fresh = self._late = 0

    @classmethod
    def restored(cls, at_ns: int, count: int, intervals: list[int]) -> Rhythm:
        """Return the rhythm of a place that was visited at `at_ns`, as learnt before."""
        made = cls(at_ns)
        made.count, made.longest = count, max(intervals, default=0)
        made.intervals.extend(intervals)
        return made

    def visit(self, at_ns: int) -> None:
        """Record a visit at `at_ns`; one that is not later than the last is ignored."""
        interval = at_ns - self.last_ns
        if interval <= 0:
            return
        self.last_ns = at_ns
        self.count += 1
        self.intervals.append(interval)
        self.longest = max(self.longest, interval)
        self._fresh -= 1
        if self.count == LEARN_VISITS:
            self._forget_start()

    def resume(self, at_ns: int) -> None:
        """Record a visit after an interval that is not accepted as usual: a gap, or time nobody observed."""
        self.last_ns = max(self.last_ns, at_ns)

    def accept_again(self, at_ns: int) -> None:
        """Accept an overdue interval up to `at_ns` if the overdue one before was about as long: what comes back belongs
        to the rhythm, such as steps at whose ends a place is visited many times. For a rhythm that is being learnt."""
        interval = at_ns - self.last_ns
        alike = max(interval, self._late) <= _ALIKE * min(interval, self._late)
        self._late = interval
        if alike:
            self.intervals.append(interval)
            self.longest, self._fresh = max(self.longest, interval), 0

    @property
    def learnt(self) -> bool:
        """Whether enough intervals are known, and they are short enough to notice that one is missing."""
        return self.count >= LEARN_VISITS and self.median_ns <= _SLOWEST_NS

    @property
    def median_ns(self) -> int:
        return self._computed()[0]

    @property
    def high_ns(self) -> int:
        """The interval that 95 % of those known do not exceed."""
        return self._computed()[1]

    @property
    def periodic(self) -> bool:
        """Whether the place is visited once per period: most intervals are alike."""
        return self.learnt and self.high_ns <= _PERIODIC * self.median_ns

    @property
    def gap_ns(self) -> int:
        """The interval from which on a visit is overdue: the median, and at least a second more, 8 robust standard
        deviations, or 1.5 times the excess of the longest 2 %."""
        return self._computed()[2]

    def overdue_ns(self, now_ns: int) -> int:
        """Return by how much the next visit is overdue at `now_ns`, ns; not positive if it is not."""
        return now_ns - self.last_ns - self.gap_ns

    def _forget_start(self) -> None:
        """Drop at most two of the first intervals that are far longer than the rest: loading, compiling. If there are
        such later, too, they are part of the rhythm."""
        usual = median(self.intervals)
        long = [number for number, one in enumerate(self.intervals) if one > _START * usual]
        if len(long) <= _MOST_STARTS and all(number < _BEGINNING for number in long):
            self.intervals = deque((one for one in self.intervals if one <= _START * usual), maxlen=_KEPT)
            self.longest, self._fresh = max(self.intervals), 0

    def _computed(self) -> tuple[int, int, int]:
        if self._fresh > 0:
            return self._bounds
        if not self.intervals:
            return 0, 0, MIN_GAP_NS
        ordered = sorted(self.intervals)
        middle = int(median(ordered))
        spread = int(median(abs(one - middle) for one in ordered) * _MAD_SCALE)
        high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        rare = ordered[max(int(len(ordered) * _RARE), len(ordered) - _SEVERAL)]  # the longest of the first fifty
        excess = max(MIN_GAP_NS, int(_SIGMAS * spread), int(_TAIL * (rare - middle)))
        self._bounds = middle, high, middle + excess
        self._fresh = 1 + len(ordered) // 8  # sorting at each visit would cost most of the budget
        return self._bounds
