"""The cost of a continuous recording: it is measured while it runs, and lowered when it is above its limits.

There are two: the share of one core that all of it takes, and the run time of its programs in the kernel as a share of
the job's own CPU time, by which they slow the job down.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol

from whystall.bpf.libbpf import run_statistics

if TYPE_CHECKING:
    from whystall.tools.collect.accelerator_watch import CallsState

_MINUTE_NS = 60_000_000_000
_STATISTICS_NS = 20_000_000_000  # between measurements of the programs' run time, which add to it
_FIRST_NS = 2_000_000_000  # between the first ones at a level
_MEASUREMENTS = 3  # their median counts: one falls into a moment in which the host is overloaded
_MEASURED_NS = 900_000_000
_LOWER_AFTER_NS = 20_000_000_000  # a level takes effect before the next one
_FAR = 2.0  # times the limit: then sooner
_STORM = 4.0  # times the limit: then without hooks at switches, which finds little
_SOON_NS = 6_000_000_000
_RAISE_AFTER_NS = 300_000_000_000
_RAISE_BELOW = 0.4  # of the limit
_MOST_RAISE_AFTER_NS = 3600_000_000_000
_JOB_MEASUREMENTS = 30  # some ten minutes
_JOB_FLOOR = 0.005  # of a core, per process: it delays a process that waits most of the time by as much at most
_IDLE = 0.001  # cores: below, a share of the job's CPU time says nothing


@dataclass(frozen=True)
class Limits:
    """Limits of a continuous recording: `cpu_share` of one core, on average; `job_share` of the CPU time of the
    recorded processes for the programs in the kernel, if that is more than 0.5 % of a core per process; `log_bytes`
    of slices in memory or on disk; `memory_bytes`: above, caches of this process are freed; `slice_ns`: length of a
    slice; `min_ns`: shortest wait that is recorded with its stacks, `sample_hz`: samples per second and CPU, both
    at first; `calls`: probe the calls of accelerators' libraries, for at most `calls_share` of the CPU time of the
    recorded processes (or 2 % of a core per process that has them), which counts in no other share."""

    cpu_share: float = 0.01
    job_share: float = 0.01
    log_bytes: int = 64 << 20
    memory_bytes: int = 128 << 20
    slice_ns: int = 5_000_000_000
    min_ns: int = 1_000_000
    sample_hz: int = 19
    calls: bool = False
    calls_share: float = 0.05


class Level(NamedTuple):
    """One level of detail: for how long stacks are reused by the registers alone, ns (a line of Python may then stand
    for another one that waits for the same object); factor of `Limits.min_ns`; the shortest wait of which it is known
    who ended it, ns; one in so many samples. `looks`: no hook at switches, see `ContinuousSession.limit`."""

    reuse_ns: int
    min_factor: int
    wake_min_ns: int
    sample_one_in: int
    looks: bool = False


_MS = 1_000_000
LEVELS = (
    Level(0, 1, 0, 1),
    Level(10 * _MS, 1, 0, 1),
    Level(100 * _MS, 2, 10 * _MS, 2),
    Level(1000 * _MS, 5, 50 * _MS, 2),
    Level(1000 * _MS, 20, 100 * _MS, 4),
    Level(1000 * _MS, 1000, 1000 * _MS, 4, looks=True),
)
"""From the most detail to the least."""


def wake_min_of(min_ns: int) -> int:
    """Return the shortest wait of which it is known who ended it, in a recording whose shortest wait is `min_ns`."""
    factor = min_ns / Limits().min_ns
    return next((level.wake_min_ns for level in LEVELS if factor <= level.min_factor), LEVELS[-1].wake_min_ns)


@dataclass(frozen=True)
class Cost:
    """What a recording costs. Shares are of one core over the last minute: all, this process (without what was asked
    for, see `ContinuousRecorder.flush`), the kernel's programs; `job_share`: these, of the CPU time of the job.
    `reasons`: why detail was lowered, and when (seconds since the start); `notes`: what else is not as wanted;
    `calls`: of accelerators' libraries, with their own cost; None: not wanted, or not possible."""

    cpu_share: float
    user_share: float
    kernel_share: float
    job_share: float
    memory_bytes: int
    disk_bytes: int
    events_per_s: float
    lost: int
    min_ns: int
    sample_hz: float
    wake_min_ns: int
    longest_cut_ms: float
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    calls: CallsState | None = None


class Limited(Protocol):
    """What a `Budget` measures and limits: a `whystall.bpf.continuous.ContinuousSession`."""

    def limit(self, *, min_ns: int, wake_min_ns: int, sample_one_in: int, reuse_ns: int, looks: bool) -> None: ...
    def job_time_ns(self) -> int: ...
    def job_processes(self) -> int: ...
    def run_time_ns(self) -> int: ...


class Budget:
    """Measures the cost of a session, and chooses its level of detail."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], int] = time.monotonic_ns,
        statistics: Callable[[], int | None] = run_statistics,
    ) -> None:
        """`clock`: CLOCK_MONOTONIC, ns. `statistics`: as `libbpf.run_statistics`; where it returns None, the
        programs' share counts as 0."""
        self._limits, self._clock, self._run_statistics = limits, clock, statistics
        self.level = 0
        self.reasons: list[str] = []
        self._spent_ns = 0
        self._looks: deque[tuple[int, int, int]] = deque(maxlen=600)  # instant, own time so far, events so far
        self._asked_ns = 0
        self._kernel_shares: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._job_cores: deque[float] = deque(maxlen=_JOB_MEASUREMENTS)
        self._raise_after_ns, self._raised = _RAISE_AFTER_NS, 0
        self._processes = 1
        self._statistics: int | None = None
        self._measured_from: tuple[int, int, int] | None = None
        self._next_measurement = self._since = self._changed = self._calm_since = 0
        self._lost = 0

    @property
    def detail(self) -> Level:
        """The level in force."""
        return LEVELS[self.level]

    @property
    def min_ns(self) -> int:
        """The shortest wait that is recorded, now."""
        return self._limits.min_ns * self.detail.min_factor

    @property
    def wake_min_ns(self) -> int:
        """The shortest wait of which it is recorded who ended it, now."""
        return max(self.min_ns, self.detail.wake_min_ns)

    def start(self, session: Limited) -> None:
        """Begin to measure."""
        self._since = self._changed = self._calm_since = self._clock()
        self._looks.append((self._since, 0, 0))
        self._apply(session)

    def spend(self, ns: int, *, asked: bool = False) -> None:
        """Count CPU time of this process. `asked`: for something that was asked for, which lowers no detail."""
        self._spent_ns += ns
        self._asked_ns += ns if asked else 0

    def check(self, session: Limited, events: int, lost: int) -> None:
        """Measure, and change the level if the cost demands or allows it; call it each second."""
        now = self._clock()
        if now - self._looks[-1][0] >= 500_000_000:
            self._looks.append((now, self._spent_ns - self._asked_ns, events))
        self._measure(session, now)
        share = self._kernel_share + self._user_share(now, _LOWER_AFTER_NS)
        job = self._kernel_share / max(self._limits.job_share * self.job_cores, _JOB_FLOOR * self._processes)
        load = max(share / self._limits.cpu_share, job)
        far = load > _FAR
        measured = len(self._kernel_shares) >= _MEASUREMENTS - far
        after = _SOON_NS if far else _LOWER_AFTER_NS
        over = load > 1
        if over or lost > self._lost:
            self._calm_since = now
            if measured and now - self._changed >= after and self.level < self._last_level(load > _STORM):
                why = f"{100 * share:.2f} % of a core"
                if job > share / self._limits.cpu_share:
                    why = f"{100 * self._kernel_share / max(self.job_cores, 1e-9):.2f} % of the job's CPU time"
                self._change(session, self.level + 1, now, why if over else f"{lost - self._lost} events lost")
        elif load > _RAISE_BELOW:
            self._calm_since = now
        elif self.level and now - max(self._calm_since, self._changed) >= self._raise_after_ns:
            self._change(session, self.level - 1, now, f"{100 * share:.2f} % of a core")
        self._lost = lost

    def cost(
        self, *, memory_bytes: int, disk_bytes: int, lost: int, longest_cut_ns: int, notes: tuple[str, ...]
    ) -> Cost:
        """Return the cost now."""
        now = self._clock()
        user = self._user_share(now, _MINUTE_NS)
        first, last = self._first(now, _MINUTE_NS), self._looks[-1] if self._looks else (now, 0, 0)
        seconds = max((last[0] - first[0]) / 1e9, 1e-9)
        detail = self.detail
        return Cost(
            cpu_share=user + self._kernel_share,
            user_share=user,
            kernel_share=self._kernel_share,
            job_share=self._kernel_share / self.job_cores if self.job_cores > _IDLE else 0.0,
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            events_per_s=(last[2] - first[2]) / seconds,
            lost=lost,
            min_ns=self.min_ns,
            sample_hz=self._limits.sample_hz / detail.sample_one_in,
            wake_min_ns=self.wake_min_ns,
            longest_cut_ms=longest_cut_ns / 1e6,
            reasons=tuple(self.reasons[-10:]),
            notes=notes,
        )

    def close(self) -> None:
        """Stop measuring; idempotent."""
        if self._statistics is not None:
            os.close(self._statistics)
        self._statistics = self._measured_from = None

    def _measure(self, session: Limited, now: int) -> None:
        """Begin or end a measurement of the programs' run time."""
        if self._measured_from is None:
            if now >= self._next_measurement:
                first = len(self._kernel_shares) < _MEASUREMENTS
                self._next_measurement = now + (_FIRST_NS if first else _STATISTICS_NS)
                self._statistics = self._run_statistics()
                self._measured_from = (now, session.run_time_ns(), session.job_time_ns())
            return
        since, before, used = self._measured_from
        if now - since >= _MEASURED_NS:
            self._kernel_shares.append(max(0, session.run_time_ns() - before) / (now - since))
            self._processes = max(1, session.job_processes())
            self._job_cores.append(max(0, session.job_time_ns() - used) / (now - since))
            self.close()

    @property
    def _kernel_share(self) -> float:
        return median(self._kernel_shares) if self._kernel_shares else 0.0

    def _last_level(self, storm: bool) -> int:
        """Return the level of least detail that is worth it: a little above the limit of a core, on a large host where
        the switches of others cost most, switches stay hooked."""
        return len(LEVELS) - 1 if storm else next(at for at, level in enumerate(LEVELS) if level.looks) - 1

    @property
    def job_cores(self) -> float:
        """The CPU time of the job, in cores: the most of the last minutes, for one that stalls uses none."""
        return max(self._job_cores, default=0.0)

    def _first(self, now: int, span_ns: int) -> tuple[int, int, int]:
        return next(
            (look for look in self._looks if look[0] >= now - span_ns), (now, self._spent_ns - self._asked_ns, 0)
        )

    def _user_share(self, now: int, span_ns: int) -> float:
        at, spent, _ = self._first(now, span_ns)
        return (self._spent_ns - self._asked_ns - spent) / (now - at) if now - at > 500_000_000 else 0.0

    def _change(self, session: Limited, level: int, now: int, why: str) -> None:
        word = "less" if level > self.level else "more"
        if level < self.level:
            self._raised = now
        elif self._raised and now - self._raised < _RAISE_AFTER_NS:  # more detail was too much: try less often
            self._raise_after_ns = min(2 * self._raise_after_ns, _MOST_RAISE_AFTER_NS)
        self.level, self._changed = level, now
        self._kernel_shares.clear()
        self.reasons.append(f"{(now - self._since) / 1e9:.0f} s: {word} detail at {why}")
        del self.reasons[:-100]
        self._apply(session)

    def _apply(self, session: Limited) -> None:
        detail = self.detail
        session.limit(
            min_ns=self.min_ns,
            reuse_ns=detail.reuse_ns,
            sample_one_in=detail.sample_one_in,
            looks=detail.looks,
            wake_min_ns=self.wake_min_ns,
        )
