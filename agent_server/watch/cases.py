"""The stalls of watched jobs as cases: when one is investigated, and how many are. No I/O but through `Investigators`.

Stalls of the ranks of a job that overlap are one case. Cases are investigated one at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from whystall.agent_server.watch.jobs import WatchedJob
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.rhythm import MIN_GAP_NS, NS

# After its end, before it is investigated: the waits of others end, and ranks notice it at different times.
SETTLE_NS = NS * 3 // 2
_HOUR_NS = 3600 * NS
_BUSY, _MORE_STARVED = 0.3, 3.0
# A thread that waits, if only for a CPU, for less than this share of a pause was at work.
_AT_WORK = 0.4


@dataclass(frozen=True)
class CaseLimits:
    """`look_after_s`: how long a stall lasts before it is looked at while it lasts; `hang_after_s`: and before it is a
    hang, at least 10 usual intervals; `per_job`, `per_host`: investigations per hour; `busy_per_job`: of these, of
    pauses in which the thread ran: mostly work of its own, else a garbage collection. Pauses in which it could have run
    as much as before are not investigated."""

    look_after_s: float = 4.0
    hang_after_s: float = 60.0
    per_job: int = 6
    per_host: int = 30
    busy_per_job: int = 2


State = Literal["open", "looking", "reported"]


@dataclass
class Case:
    """A stall of a job. `stalls`: the latest one by process; `noticed_ns`: when the first was noticed; `looked`: the
    diagnosis made while it lasted, ``-`` if there was none; ``reported``: it lasts, and has been judged as a hang.
    `cause`: that was found and takes most of it.
    `ran`: while it lasts, its thread runs or could: it works at something that shows no waits, and is not looked at;
    `active`: for which share of the time it was measured to run or to wait for a CPU, at least; None: not known.
    `tried`: processes whose own account explained nothing; those that wait for them may.
    """

    job: WatchedJob
    noticed_ns: int
    stalls: dict[int, Stall] = field(default_factory=dict)
    state: State = "open"
    looked: str = ""
    skipped: str = ""
    cause: str = ""
    ran: bool = False
    active: float | None = None
    tried: set[int] = field(default_factory=set)

    @property
    def start_ns(self) -> int:
        return min(one.start_ns for one in self.stalls.values())

    @property
    def end_ns(self) -> int | None:
        """When the last process went on; None while one is stalled."""
        ends = [one.end_ns for one in self.stalls.values()]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def blocked(self) -> float:
        """The largest share of a stall in which its thread was blocked; 1 while one lasts, whose waits are unknown."""
        return max((_blocked(one) for one in self.stalls.values()), default=0.0)

    @property
    def busy(self) -> bool:
        """Whether all threads ran for most of it, or could have, and had the CPU as much as before, or went on at other
        places. Not if it was blocked somewhere for unusually long, or the job's own sign of progress stayed away."""
        if self.signalled:
            return False
        if self.active is not None and self.active < _BUSY and not all(one.phase for one in self.stalls.values()):
            return False  # it was blocked, in waits too short to be recorded
        quiet = self.blocked < _BUSY and all(
            one.starved < _MORE_STARVED and one.unusual_ns < MIN_GAP_NS for one in self.stalls.values()
        )
        return quiet or all(one.phase for one in self.stalls.values())

    @property
    def at_work(self) -> bool:
        """Whether a thread ran for most of it, and went to no other places meanwhile."""
        return any(
            one.end_ns is not None and not one.phase and one.waited_ns < _AT_WORK * (one.end_ns - one.start_ns)
            for one in self.stalls.values()
        )

    @property
    def signalled(self) -> bool:
        """Whether a sign of progress that was named for the job stayed away."""
        return any(one.kind == "signal" for one in self.stalls.values())

    def main(self) -> tuple[int, Stall]:
        """Return the process to investigate, with its stall: of several that which did something else than the others;
        those that wait for it are at one place."""
        places: dict[int, int] = {}
        for one in self.stalls.values():
            places[one.place] = places.get(one.place, 0) + 1
        left = {pid: one for pid, one in self.stalls.items() if pid not in self.tried} or self.stalls
        return min(left.items(), key=lambda each: (places[each[1].place], each[1].start_ns))


class Cases:
    """The open cases, and which is next."""

    def __init__(self, limits: CaseLimits) -> None:
        self._limits = limits
        self.open: list[Case] = []
        self._started: deque[tuple[int, str, bool]] = deque(maxlen=1000)

    def add(self, job: WatchedJob, pid: int, stall: Stall, now_ns: int) -> Case:
        """Add a stall of the process `pid` to the case of its job that it overlaps, or to a new one."""
        for case in self.open:
            if case.job.id == job.id and _overlap(case, pid, stall):
                break
        else:
            case = Case(job, now_ns)
            self.open.append(case)
        known = case.stalls.get(pid)
        case.stalls[pid] = _merged(known, stall) if known is not None else stall
        return case

    def drop(self, case: Case) -> None:
        self.open.remove(case)

    def due(self, now_ns: int, allowance_ns: int = 0) -> Case | None:
        """Return the case to investigate now, of those that have ended or last long that in which a thread was blocked
        for the largest part. A case beyond the limits per hour is marked `skipped` and returned, too. `allowance_ns`:
        the longest usual pause of the host's jobs."""
        ready = [case for case in self.open if case.state == "open" and self._ready(case, now_ns, allowance_ns)]
        if not ready:
            return None
        case = max(ready, key=lambda one: one.blocked)
        self._limit(case, now_ns)
        return case

    def _ready(self, case: Case, now_ns: int, allowance_ns: int) -> bool:
        end = case.end_ns
        if end is None:
            return (case.signalled or not case.ran) and self._lasts(case, now_ns, allowance_ns)
        return now_ns - end >= SETTLE_NS

    def is_hang(self, case: Case, now_ns: int) -> bool:
        """Return whether `case` lasts so long that its ticket does not wait for its end."""
        usual = max(one.usual_ns for one in case.stalls.values())
        return case.end_ns is None and now_ns - case.start_ns >= max(self._limits.hang_after_s * NS, 10 * usual)

    def _lasts(self, case: Case, now_ns: int, allowance_ns: int) -> bool:
        if case.looked:
            return self.is_hang(case, now_ns)
        return now_ns - case.noticed_ns >= max(self._limits.look_after_s * NS, allowance_ns)

    def _limit(self, case: Case, now_ns: int) -> None:
        while self._started and self._started[0][0] < now_ns - _HOUR_NS:
            self._started.popleft()
        of_job = [busy for _, job, busy in self._started if job == case.job.id]
        if case.busy and not case.at_work:
            case.skipped = "busy_as_usual"
        elif case.busy and sum(of_job) >= self._limits.busy_per_job:
            case.skipped = "limit_of_own_work"
        elif len(of_job) >= self._limits.per_job:
            case.skipped = "limit_of_job"
        elif len(self._started) >= self._limits.per_host:
            case.skipped = "limit_of_host"
        else:
            self._started.append((now_ns, case.job.id, case.busy))


def _blocked(stall: Stall) -> float:
    if stall.end_ns is None or stall.kind in ("slowdown", "drift"):
        return 1.0
    return (stall.waited_ns - stall.runnable_ns) / max(stall.end_ns - stall.start_ns, 1)


def _merged(known: Stall, stall: Stall) -> Stall:
    """Return `stall`, which continues `known`. If one is that of a thread and one of a sign of progress, what is known
    of the thread is kept, and the stall stays one of the sign."""
    if not _of_two_kinds(known, stall):
        return stall
    of_thread = known if stall.kind == "signal" else stall
    return replace(of_thread, kind="signal", end_ns=stall.end_ns or known.end_ns, phase=False)


def _of_two_kinds(one: Stall, other: Stall) -> bool:
    return (one.kind == "signal") != (other.kind == "signal")


def _overlap(case: Case, pid: int, stall: Stall) -> bool:
    """Return whether `stall` of the process `pid` is part of `case`: it continues its stall there, or is at one time
    with those of other processes."""
    known = case.stalls.get(pid)
    if known is not None and not _of_two_kinds(known, stall):
        return known.ongoing or known.start_ns == stall.start_ns
    end = case.end_ns
    return (end is None or stall.start_ns < end) and (stall.end_ns is None or stall.end_ns > case.start_ns)
