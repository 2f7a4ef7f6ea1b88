"""The level of detail of each process of a continuous recording: what its hooks cost it, and when that is too much."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from whystall.bpf.continuous import Detail

MEASUREMENTS = 3  # their median counts: one falls into a moment in which the host is overloaded
LOWER_AFTER_NS = 20_000_000_000  # a level takes effect before the next one
LOWER_ABOVE = 0.9  # of the limit of all, so that what it costs stays below
_LOWER_ABOVE = 0.7  # of the limit of a process: it also has hooks that are not counted by process (softirqs, timers)
FAR = 2.0  # times the limit: then sooner
RAISE_AFTER_NS = 300_000_000_000
_SOON_NS = 6_000_000_000
_RAISE_BELOW = 0.4  # of the limit
_MOST_RAISE_AFTER_NS = 3600_000_000_000
_JOB_MEASUREMENTS = 30  # some ten minutes
_PROCESS_FLOOR = 0.001  # of a core: the share of a process that takes less than 10 % of one says little
_MANY_RUNS = 2000  # of hooks per second: fewer cost 0.02 % of a core, and stacks once per second, thread and place
_MS = 1_000_000


class Level(NamedTuple):
    """One level of detail: for how long stacks are reused by the registers alone, ns (a line of Python may then stand
    for another one that waits for the same object); factor of `Limits.min_ns`; the shortest wait of which it is known
    who ended it, ns; one in so many samples. `looks`: no hook at switches, see `ContinuousSession.limit`."""

    reuse_ns: int
    min_factor: int
    wake_min_ns: int
    sample_one_in: int
    looks: bool = False


LEVELS = (
    Level(0, 1, 0, 1),
    Level(10 * _MS, 1, 0, 1),
    Level(100 * _MS, 2, 10 * _MS, 2),
    Level(1000 * _MS, 5, 50 * _MS, 2),
    Level(1000 * _MS, 20, 100 * _MS, 4),
    Level(1000 * _MS, 1000, 1000 * _MS, 4, looks=True),
)
"""From the most detail to the least; only the last one looks."""
LAST = len(LEVELS) - 1


def details(min_ns: int) -> list[Detail]:
    """Return the levels with hooks, for a shortest wait of `min_ns` at the first."""
    return [Detail(min_ns * one.min_factor, wake_min(min_ns, one), one.reuse_ns) for one in LEVELS if not one.looks]


def wake_min(min_ns: int, level: Level) -> int:
    """Return the shortest wait of which it is known who ended it, ns."""
    return max(min_ns * level.min_factor, level.wake_min_ns)


@dataclass(eq=False)
class ProcessLevel:
    """The level of one process, and what is known to choose it. Instants by CLOCK_MONOTONIC, ns. `shares`: of a core,
    that its hooks took, at this level; `cores`: that it took itself; `runs`: of its hooks per second, at last."""

    level: int
    changed: int
    calm_since: int
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=MEASUREMENTS))
    cores: deque[float] = field(default_factory=lambda: deque(maxlen=_JOB_MEASUREMENTS))
    runs: float = 0.0
    _raised: int = 0
    _raise_after_ns: int = RAISE_AFTER_NS

    @property
    def share(self) -> float:
        """The share of a core that its hooks take."""
        return median(self.shares) if self.shares else 0.0

    @property
    def job_share(self) -> float:
        """The same, of its own CPU time: of the most in some minutes, for one that stalls uses none."""
        return self.share / max(max(self.cores, default=0.0), 1e-9)

    def load(self, limit: float) -> float:
        """Return what its hooks take, as a part of what they may: `limit` of its CPU time, or very little."""
        return self.share / max(limit * max(self.cores, default=0.0), _PROCESS_FLOOR)

    def must_lower(self, load: float, now: int) -> bool:
        """Return whether it has to lose detail at a `load` of its limit: its hooks only if they run often."""
        if load <= _LOWER_ABOVE:
            return False
        self.calm_since = now
        return self.level < LAST - (self.runs < _MANY_RUNS) and settled(len(self.shares), self.changed, load, now)

    def may_rise(self, load: float, now: int) -> bool:
        """Return whether it can have more detail again, after some minutes of at most `_RAISE_BELOW` of its limit."""
        if load > _RAISE_BELOW:
            self.calm_since = now
        return bool(self.level) and now - max(self.calm_since, self.changed) >= self._raise_after_ns

    def change(self, level: int, now: int) -> None:
        """Begin a level. If more detail was too much, it is tried less often."""
        if level < self.level:
            self._raised = now
        elif self._raised and now - self._raised < RAISE_AFTER_NS:
            self._raise_after_ns = min(2 * self._raise_after_ns, _MOST_RAISE_AFTER_NS)
        self.level, self.changed = level, now
        self.shares.clear()


def settled(measurements: int, changed: int, load: float, now: int) -> bool:
    """Return whether enough is known since the last change to make another one: sooner, if far above the limit."""
    far = load > FAR
    return measurements >= MEASUREMENTS - far and now - changed >= (_SOON_NS if far else LOWER_AFTER_NS)


def costliest(processes: Iterable[ProcessLevel]) -> list[ProcessLevel]:
    """Return those that can lose detail and together make up half of what all such cost: one or more, if there are."""
    able = sorted((one for one in processes if one.level < LAST), key=lambda one: -one.share)
    whole, taken = sum(one.share for one in able), 0.0
    found: list[ProcessLevel] = []
    for one in able:
        if found and taken >= whole / 2 > 0:
            break
        found.append(one)
        taken += one.share
    return found


def wake_min_of(min_ns: int, first_ns: int) -> int:
    """Return the shortest wait of which it is known who ended it, in a recording whose shortest wait is `min_ns`;
    `first_ns`: at the first level."""
    factor = min_ns / first_ns
    return next((level.wake_min_ns for level in LEVELS if factor <= level.min_factor), LEVELS[-1].wake_min_ns)
