"""The cost of a continuous recording: it is measured while it runs, and lowered when it comes near its limits.

There are two: the share of one core that all of it takes, and the time of the hooks that run for a process, as a share
of its own CPU time, by which they slow it down. What a process costs lowers the detail of that process alone.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Protocol

from whystall.bpf.continuous import Detail, HookTime
from whystall.bpf.libbpf import run_statistics
from whystall.tools.collect import continuous_levels as levels
from whystall.tools.collect.continuous_levels import LEVELS, LOWER_ABOVE, LOWER_AFTER_NS, MEASUREMENTS, ProcessLevel

if TYPE_CHECKING:
    from whystall.tools.collect.accelerator_watch import CallsState

_MINUTE_NS = 60_000_000_000
_STATISTICS_NS = 20_000_000_000  # between measurements of the programs' run time, which add to it
_FIRST_NS = 2_000_000_000  # between the first ones at a level
_MEASURED_NS = 900_000_000
_RAISE_BELOW = 0.6  # of the share of a core
_JOB_MEASUREMENTS = 30  # some ten minutes
_IDLE = 0.001  # cores: below, a share of the job's CPU time says nothing
_NAMED = 3  # processes in a reason


@dataclass(frozen=True)
class Limits:
    """Limits of a continuous recording: `cpu_share` of one core, on average; `job_share` of the CPU time of each
    recorded process for the hooks that run for it, if that is more than 0.1 % of a core; `log_bytes` of slices in
    memory or on disk; `memory_bytes`: above, caches of this process are freed; `slice_ns`: length of a slice; `min_ns`:
    shortest wait that is recorded with its stacks, `sample_hz`: samples per second and CPU, both at first; `calls`:
    probe the calls of accelerators' libraries, for at most `calls_share` of the CPU time of the recorded processes (or
    2 % of a core per process that has them), which counts in no other share."""

    cpu_share: float = 0.01
    job_share: float = 0.01
    log_bytes: int = 64 << 20
    memory_bytes: int = 128 << 20
    slice_ns: int = 5_000_000_000
    min_ns: int = 1_000_000
    sample_hz: int = 19
    calls: bool = False
    calls_share: float = 0.05


def wake_min_of(min_ns: int) -> int:
    """Return the shortest wait of which it is known who ended it, in a recording whose shortest wait is `min_ns`."""
    return levels.wake_min_of(min_ns, Limits().min_ns)


@dataclass(frozen=True)
class Cost:
    """What a recording costs. Shares are of one core over the last minute: all, this process (without what was asked
    for, see `ContinuousRecorder.flush`), the kernel's programs; `job_share`: these, of the CPU time of the job.
    `min_ns`, `wake_min_ns`: of the process with the least detail; `lowered`: the shortest recorded wait of each process
    that has less than full detail; 1 s: it is only looked at.
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
    lowered: Mapping[int, int] = field(default_factory=dict)


class Limited(Protocol):
    """What a `Budget` measures and limits: a `whystall.bpf.continuous.ContinuousSession`."""

    def set_details(self, details: Sequence[Detail], look_min_ns: int) -> None: ...
    def limit(self, levels: Mapping[int, int], sample_one_in: int) -> None: ...
    def level_of(self, pid: int) -> int: ...
    def measure(self, on: bool) -> dict[int, HookTime]: ...
    def job_times_ns(self) -> dict[int, int]: ...
    def run_time_ns(self) -> int: ...


class Budget:
    """Measures the cost of a session, and chooses the level of detail of each process."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], int] = time.monotonic_ns,
        statistics: Callable[[], int | None] = run_statistics,
    ) -> None:
        """`clock`: CLOCK_MONOTONIC, ns. `statistics`: as `libbpf.run_statistics`; where it returns None, the
        programs' share counts as 0."""
        self._limits, self._clock, self._run_statistics = limits, clock, statistics
        self.reasons: list[str] = []
        self._processes: dict[int, ProcessLevel] = {}
        self._spent_ns = 0
        self._looks: deque[tuple[int, int, int]] = deque(maxlen=600)  # instant, own time so far, events so far
        self._asked_ns = 0
        self._kernel_shares: deque[float] = deque(maxlen=MEASUREMENTS)
        self._job_cores: deque[float] = deque(maxlen=_JOB_MEASUREMENTS)
        self._statistics: int | None = None
        self._measured_from: tuple[int, int, dict[int, int]] | None = None
        self._next_measurement = self._since = self._changed = 0
        self._lost = 0

    def min_ns_of(self, pid: int) -> int:
        """Return the shortest wait of a process that is recorded, now."""
        one = self._processes.get(pid)
        return self._limits.min_ns * LEVELS[one.level if one is not None else 0].min_factor

    @property
    def lowered(self) -> dict[int, int]:
        """The shortest recorded wait of each process with less than full detail, ns."""
        return {pid: self.min_ns_of(pid) for pid, one in self._processes.items() if one.level}

    @property
    def sample_one_in(self) -> int:
        """One in so many samples is recorded, now: as the process with the most detail demands."""
        return min((LEVELS[one.level].sample_one_in for one in self._processes.values()), default=1)

    def start(self, session: Limited) -> None:
        """Begin to measure."""
        self._since = self._changed = self._clock()
        self._looks.append((self._since, 0, 0))
        session.set_details(levels.details(self._limits.min_ns), self._limits.min_ns * LEVELS[-1].min_factor)
        self._apply(session)

    def spend(self, ns: int, *, asked: bool = False) -> None:
        """Count CPU time of this process. `asked`: for something that was asked for, which lowers no detail."""
        self._spent_ns += ns
        self._asked_ns += ns if asked else 0

    def check(self, session: Limited, events: int, lost: int) -> None:
        """Measure, and change levels if the cost demands or allows it; call it each second."""
        now = self._clock()
        if now - self._looks[-1][0] >= 500_000_000:
            self._looks.append((now, self._spent_ns - self._asked_ns, events))
        self._measure(session, now)
        share = self._kernel_share + self._user_share(now, LOWER_AFTER_NS)
        load = share / self._limits.cpu_share
        for pid, one in self._processes.items():
            own = one.load(self._limits.job_share)
            if one.must_lower(own, now):
                self._change({pid: one}, 1, now, f"{100 * one.job_share:.2f} % of its CPU time")
            elif one.may_rise(own, now) and load <= _RAISE_BELOW:
                self._change({pid: one}, -1, now, f"{100 * one.job_share:.2f} % of its CPU time")
        over = load > LOWER_ABOVE
        if over or lost > self._lost:
            for one in self._processes.values():
                one.calm_since = now
            if levels.settled(len(self._kernel_shares), self._changed, load, now):
                chosen = {id(one) for one in levels.costliest(self._processes.values())}
                why = f"{100 * share:.2f} % of a core" if over else f"{lost - self._lost} events lost"
                self._change({pid: one for pid, one in self._processes.items() if id(one) in chosen}, 1, now, why)
        self._lost = lost
        if self._changed == now:
            self._apply(session)

    def cost(
        self, *, memory_bytes: int, disk_bytes: int, lost: int, longest_cut_ns: int, notes: tuple[str, ...]
    ) -> Cost:
        """Return the cost now."""
        now = self._clock()
        user = self._user_share(now, _MINUTE_NS)
        first, last = self._first(now, _MINUTE_NS), self._looks[-1] if self._looks else (now, 0, 0)
        seconds = max((last[0] - first[0]) / 1e9, 1e-9)
        least = LEVELS[max((one.level for one in self._processes.values()), default=0)]
        return Cost(
            cpu_share=user + self._kernel_share,
            user_share=user,
            kernel_share=self._kernel_share,
            job_share=self._kernel_share / self.job_cores if self.job_cores > _IDLE else 0.0,
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            events_per_s=(last[2] - first[2]) / seconds,
            lost=lost,
            min_ns=self._limits.min_ns * least.min_factor,
            sample_hz=self._limits.sample_hz / self.sample_one_in,
            wake_min_ns=levels.wake_min(self._limits.min_ns, least),
            longest_cut_ms=longest_cut_ns / 1e6,
            reasons=tuple(self.reasons[-10:]),
            notes=notes,
            lowered=self.lowered,
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
                used = session.job_times_ns()
                self._follow(session, used, now)
                first = len(self._kernel_shares) < MEASUREMENTS
                self._next_measurement = now + (_FIRST_NS if first else _STATISTICS_NS)
                self._statistics = self._run_statistics()
                session.measure(True)
                self._measured_from = (now, session.run_time_ns(), used)
            return
        since, before, used = self._measured_from
        took = now - since
        if took < _MEASURED_NS:
            return
        costs = session.measure(False)
        self._kernel_shares.append(max(0, session.run_time_ns() - before) / took)
        cores = {pid: max(0, ns - used[pid]) / took for pid, ns in session.job_times_ns().items() if pid in used}
        for pid, one in self._processes.items():
            hooks = costs.get(pid, HookTime(0, 0))
            one.shares.append(hooks.ns / took)
            one.runs = 1e9 * hooks.runs / took
            one.cores.append(cores.get(pid, 0.0))
        self._job_cores.append(sum(cores.values()))
        self.close()

    def _follow(self, session: Limited, alive: Collection[int], now: int) -> None:
        """Begin to measure new processes, and forget those that ended."""
        before = self._processes
        self._processes = {pid: before.get(pid) or ProcessLevel(session.level_of(pid), now, now) for pid in alive}
        if not before and alive:
            self._kernel_shares.clear()  # those of a recording of nothing
        if self._processes.keys() != before.keys():
            self._apply(session)

    @property
    def _kernel_share(self) -> float:
        return median(self._kernel_shares) if self._kernel_shares else 0.0

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

    def _change(self, found: Mapping[int, ProcessLevel], by: int, now: int, why: str) -> None:
        """Give the processes `found` another level: less detail by 1, or more by -1."""
        if not found:
            return
        for one in found.values():
            one.change(one.level + by, now)
        self._changed = now
        self._kernel_shares.clear()
        self._next_measurement = min(self._next_measurement, now + _FIRST_NS)
        word = "less" if by > 0 else "more"
        self.reasons.append(f"{(now - self._since) / 1e9:.0f} s: {word} detail of {_named(found)} at {why}")
        del self.reasons[:-100]

    def _apply(self, session: Limited) -> None:
        session.limit({pid: one.level for pid, one in self._processes.items()}, self.sample_one_in)


def _named(pids: Collection[int]) -> str:
    """Return the name of one or some processes."""
    shown = ", ".join(map(str, sorted(pids)[:_NAMED]))
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    return f"{'processes' if len(pids) > 1 else 'process'} {shown}{more}"
