"""Learn the rhythm of a process from where its threads wait, and find when it stalls. Pure: no I/O, no clock.

A thread that makes progress visits the same places again and again: its data loader, its collective, its log. Nothing
is instrumented. Four deviations are found:

* ``gap``: a thread visits none of its usual places for far longer than ever before;
* ``late``: a place that is visited once per step is overdue, while the thread visits others (a slow step);
* ``wait``: a thread that mostly runs, and so has no usual places, waits once for far longer than ever before;
* ``slowdown``, ``drift``: the step time rises and stays, or rises slowly.

Times are CLOCK_MONOTONIC in nanoseconds, which does not advance while the host is suspended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from whystall.agent_server.watch.pauses import RUNNING, Pauses
from whystall.agent_server.watch.rhythm import LEARN_VISITS, MIN_GAP_NS, NS, Rhythm
from whystall.agent_server.watch.slowdown import Slower, StepTimes

Kind = Literal["gap", "late", "wait", "slowdown", "drift"]
# Places visited so often are judged together: a second without any of them is a gap.
_OFTEN_NS = NS // 4
_TIMES_FASTEST = 3
_PLACES = 256
_RECENT_NS, _RECENT = 180 * NS, 8192
# A place that is overdue by this multiple of its bound, while others are visited, belongs to a phase that has ended.
_PHASE_OVER = 10
_RECHOSEN_NS = 10 * NS
_SHORTEST_STEP_NS = NS // 100
# A thread without usual places: it waits for less than this share of its time, and once for 10 times the longest.
_MOSTLY_RUNS, _UNUSUAL = 0.5, 10
# Of the usual number of visits, this many at other places show that a thread goes on; while it is stuck and polls, it
# blocks for more of the time than usual.
_ACTIVE, _FEW, _MORE_BLOCKED, _MORE_STARVED = 0.5, 5, 0.15, 2.0
# More of a pause than this at one place: the place of the pause.
_MAJOR = 0.5
# Of the waits at a usual place, so many must be long enough to be recorded.
_LONG_ENOUGH = 0.9


class Wait(NamedTuple):
    """One wait of a thread. `place`: where, as a stable number; `runnable_ns`: the part of it without a CPU;
    `preempted`: it only lost its CPU, wherever it was."""

    tid: int
    place: int
    start_ns: int
    end_ns: int
    runnable_ns: int = 0
    preempted: bool = False


@dataclass(frozen=True)
class Stall:
    """A deviation of the thread `tid`. `start_ns`: the last sign of progress; `end_ns`: the next one, None while there
    is none; `usual_ns`: the usual interval; `now_ns`: the present step time of a slowdown. `place`: where most of a
    pause that has ended was spent, 0 if the thread ran; `waited_ns`, `runnable_ns`: how long it waited in all, and how
    much of that for a CPU; `starved`: how many times more than before lack of a CPU lengthened its work, 1: as usual.
    `phase`: it went on at other places than usual: another phase of the program.
    """

    kind: Kind
    tid: int
    start_ns: int
    end_ns: int | None
    usual_ns: int
    now_ns: int = 0
    place: int = RUNNING
    waited_ns: int = 0
    runnable_ns: int = 0
    phase: bool = False
    starved: float = 1.0

    @property
    def ongoing(self) -> bool:
        return self.end_ns is None


class ThreadProgress:
    """The usual places of one thread. `learn_ns`: how long after its first wait nothing is reported."""

    def __init__(self, tid: int, learn_ns: int) -> None:
        self.tid = tid
        self.pauses = Pauses()
        self._learn_ns = learn_ns
        self._first_ns = 0
        self._places: dict[int, Rhythm] = {}
        self._core: frozenset[int] = frozenset()
        self._steps: dict[int, StepTimes] = {}
        self._chosen_ns = 0
        self._recent: deque[Wait] = deque(maxlen=_RECENT)
        self._blocked_ns = 0
        self._longest_ns = 0
        self._gap: Stall | None = None
        self._last_ns = 0
        self._paused_until_ns = 0

    # --- what happens ---------------------------------------------------------------------------------------------

    def wait(self, wait: Wait) -> list[Stall]:
        """Record `wait`, in the order of their ends. Return deviations that ended with it."""
        found: list[Stall] = []
        self._first_ns = self._first_ns or wait.start_ns
        self._last_ns = max(self._last_ns, wait.end_ns)
        self._recent.append(wait)
        if wait.end_ns - self._chosen_ns >= _RECHOSEN_NS:
            self._choose(wait.end_ns)
        if not wait.preempted:
            found += self._visit(wait)
        if not self._core:
            found += self._unusual(wait)
        length = wait.end_ns - wait.start_ns
        self._blocked_ns += length
        self._longest_ns = max(self._longest_ns, length)
        return found

    def _visit(self, wait: Wait) -> list[Stall]:
        """Record the visit of the place at which `wait` ended."""
        rhythm = self._places.get(wait.place)
        if rhythm is None:
            if len(self._places) >= _PLACES:
                del self._places[min(self._places, key=lambda place: self._places[place].last_ns)]
            self._places[wait.place] = Rhythm(wait.end_ns)
            return []
        if rhythm.learnt and rhythm.overdue_ns(wait.end_ns) > 0:
            return self._returned(wait.place, rhythm, wait.end_ns)
        interval = wait.end_ns - rhythm.last_ns
        rhythm.visit(wait.end_ns)
        if wait.place in self._core:
            self._gap = None
        return self._step(wait.place, wait.end_ns, interval)

    def judge(self, now_ns: int) -> list[Stall]:
        """Return the gap that is in progress at `now_ns`, once."""
        if now_ns - self._chosen_ns >= _RECHOSEN_NS:
            self._choose(now_ns)
        if self._gap is not None or self._learning(now_ns) or not self._silent(now_ns):
            return []
        self._gap = Stall("gap", self.tid, self._silent_since(), None, self._usual_ns())
        return [self._gap]

    def unobserved(self, until_ns: int) -> None:
        """Forget the time before `until_ns`, in which nothing was observed."""
        self._gap = None
        for rhythm in self._places.values():
            rhythm.resume(until_ns)

    def forget_short(self, min_ns: int) -> None:
        """Forget the places at which its waits were often shorter than `min_ns`, the shortest that is recorded now.
        They would seem to be missed."""
        lengths: dict[int, list[int]] = {}
        for one in self._recent:
            if not one.preempted:
                lengths.setdefault(one.place, []).append(one.end_ns - one.start_ns)
        for place in list(self._places):
            found = lengths.get(place, [])
            if sum(length >= min_ns for length in found) < _LONG_ENOUGH * max(len(found), 1):
                del self._places[place]
                self._steps.pop(place, None)
        self._core &= self._places.keys()
        self._gap = self._gap if self._core else None

    @property
    def regular(self) -> int:
        """How many places it visits regularly; 0: none is known yet."""
        return len(self._core)

    @property
    def step_ns(self) -> int:
        """The median interval of the place that is visited once per step; 0: there is none."""
        place = self._step_place()
        return 0 if place is None else self._places[place].median_ns

    @property
    def open(self) -> Stall | None:
        """The gap in progress, if `judge` has reported one."""
        return self._gap

    # --- judging --------------------------------------------------------------------------------------------------

    def _learning(self, now_ns: int) -> bool:
        return now_ns - self._first_ns < self._learn_ns

    def _silent(self, now_ns: int) -> bool:
        return bool(self._core) and all(
            self._places[place].overdue_ns(now_ns) > 0 for place in self._core if place in self._places
        )

    def _silent_since(self) -> int:
        return max(self._places[place].last_ns for place in self._core if place in self._places)

    def _usual_ns(self) -> int:
        return min((self._places[place].median_ns for place in self._core if place in self._places), default=0)

    def _returned(self, place: int, rhythm: Rhythm, now_ns: int) -> list[Stall]:
        """Handle a visit that was overdue: the end of a gap, a late step, or the return of a phase."""
        start, usual = rhythm.last_ns, rhythm.median_ns
        in_core, is_step = place in self._core, place == self._step_place() and rhythm.periodic
        silent = in_core and self._silent(now_ns - 1)
        since = self._silent_since() if silent else start
        rhythm.resume(now_ns)
        self._gap = None if in_core else self._gap
        if silent:
            return self._ended("gap", since, now_ns, self._usual_ns())
        if is_step and start >= self._paused_until_ns:  # else: the same pause, which ended at another place
            return self._ended("late", start, now_ns, usual)
        return []

    def _ended(self, kind: Kind, start: int, end: int, usual: int) -> list[Stall]:
        length = end - start
        self._paused_until_ns = end
        inside = [one for one in self._recent if one.end_ns > start and one.start_ns < end]
        places: dict[int, int] = {}
        visits: dict[int, int] = {}
        waited = runnable = 0
        for one in inside:
            part = min(one.end_ns, end) - max(one.start_ns, start)
            places[one.place] = places.get(one.place, 0) + part
            visits[one.place] = visits.get(one.place, 0) + (not one.preempted)
            waited += part
            runnable += min(part, one.runnable_ns)
        most = max(places, key=lambda place: places[place], default=RUNNING)
        at = most if places.get(most, 0) >= _MAJOR * length else RUNNING
        known = self.pauses.known(at, length)
        self.pauses.add(at, start, length)
        if known or self.pauses.known(at, length):
            return []
        if self._learning(end):
            return []
        stretch, blocked = self._usually(start)
        starved = _stretch(length, waited, runnable) / stretch
        active = any(n >= LEARN_VISITS and place not in self._core for place, n in visits.items())
        active |= sum(visits.values()) >= max(_FEW, _ACTIVE * length / usual if usual else length)
        phase = active and starved < _MORE_STARVED and waited - runnable <= (blocked + _MORE_BLOCKED) * length
        phase |= usual > 0 and any(_same_rhythm(n, length, usual) for n in visits.values())
        return [Stall(kind, self.tid, start, end, usual, 0, at, waited, runnable, phase, round(starved, 2))]

    def _usually(self, until: int) -> tuple[float, float]:
        """Return by how much lack of a CPU usually lengthens its work, and the share of time for which it blocks."""
        before = [one for one in self._recent if one.end_ns <= until]
        span = until - before[0].start_ns if before else 0
        if span <= 0:
            return 1.0, 0.0
        waited = sum(one.end_ns - one.start_ns for one in before)
        runnable = sum(one.runnable_ns for one in before)
        return _stretch(span, waited, runnable), (waited - runnable) / span

    def _unusual(self, wait: Wait) -> list[Stall]:
        """Return a wait of unusual length in a thread that mostly runs."""
        length, lived = wait.end_ns - wait.start_ns, wait.start_ns - self._first_ns
        if lived < max(self._learn_ns, NS) or length < max(MIN_GAP_NS, _UNUSUAL * self._longest_ns):
            return []
        if self._blocked_ns > _MOSTLY_RUNS * lived:
            return []
        self._longest_ns = 0  # the next one is compared with the ordinary ones again
        return self._ended("wait", wait.start_ns, wait.end_ns, 0)

    def _step(self, place: int, now_ns: int, interval: int) -> list[Stall]:
        times = self._steps.get(place)
        if times is None or place != self._step_place():
            return []
        slower = times.add(now_ns, interval)
        if slower is None or self._learning(slower.since_ns):
            return []
        return [_slower(self.tid, slower, now_ns)]

    def _step_place(self) -> int | None:
        return next(iter(self._steps), None)

    def _choose(self, now_ns: int) -> None:
        """Choose the places that are judged; forget those of phases that have ended."""
        self._chosen_ns = now_ns
        self._forget_phases()
        learnt = {place: rhythm for place, rhythm in self._places.items() if rhythm.learnt}
        fastest = min((rhythm.high_ns for rhythm in learnt.values()), default=0)
        bound = max(_OFTEN_NS, _TIMES_FASTEST * fastest)
        self._core = frozenset(place for place, rhythm in learnt.items() if rhythm.high_ns <= bound)
        while self._recent and self._recent[0].end_ns < now_ns - _RECENT_NS:
            self._recent.popleft()
        known = self._step_place()
        if known in learnt:
            return
        periodic = {
            place: rhythm.count * rhythm.median_ns
            for place, rhythm in learnt.items()
            if rhythm.periodic and rhythm.median_ns >= _SHORTEST_STEP_NS
        }
        best = max(periodic, key=lambda place: periodic[place], default=None)
        self._steps = {} if best is None else {best: StepTimes()}

    def _forget_phases(self) -> None:
        """Forget places that are long overdue although the thread has visited others regularly since."""
        live = [r for r in self._places.values() if r.learnt and r.overdue_ns(self._last_ns) <= 0]
        if not live or self._gap is not None:
            return
        for place, rhythm in list(self._places.items()):
            if rhythm.learnt and self._last_ns - rhythm.last_ns > _PHASE_OVER * rhythm.gap_ns:
                del self._places[place]


def _same_rhythm(visits: int, length: int, usual: int) -> bool:
    """Return whether a place was visited about as often as usual ones are: the same work by another name."""
    return visits >= _FEW and _ACTIVE <= visits * usual / length <= 1 / _ACTIVE


def _stretch(length: int, waited: int, runnable: int) -> float:
    """Return by how much lack of a CPU lengthens the work of a thread: 2 if it waits for as long as it runs."""
    active = length - (waited - runnable)
    return active / max(active - runnable, active // 1000, 1)


def _slower(tid: int, found: Slower, now_ns: int) -> Stall:
    return Stall(found.kind, tid, found.since_ns, now_ns, found.usual_ns, found.now_ns)


class ProcessProgress:
    """The progress of one process: that of its main thread, or of the thread with most usual places if the main thread
    has none."""

    def __init__(self, pid: int, learn_ns: int) -> None:
        self.pid = pid
        self._learn_ns = learn_ns
        self._threads: dict[int, ThreadProgress] = {}
        self._followed: int | None = None

    def feed(self, waits: Iterable[Wait], now_ns: int) -> list[Stall]:
        """Record the waits that ended since the last call, and return the deviations of the thread that makes progress,
        also one in progress at `now_ns`."""
        found: list[Stall] = []
        for wait in sorted(waits, key=lambda one: one.end_ns):
            thread = self._threads.get(wait.tid)
            if thread is None:
                if len(self._threads) >= _PLACES:
                    continue
                thread = self._threads[wait.tid] = ThreadProgress(wait.tid, self._learn_ns)
            found += thread.wait(wait)
        for thread in self._threads.values():
            found += thread.judge(now_ns)
        followed = self.thread
        return [one for one in found if followed is not None and one.tid == followed.tid]

    def unobserved(self, until_ns: int) -> None:
        """See `ThreadProgress.unobserved`."""
        for thread in self._threads.values():
            thread.unobserved(until_ns)

    def forget_short(self, min_ns: int) -> None:
        """See `ThreadProgress.forget_short`."""
        for thread in self._threads.values():
            thread.forget_short(min_ns)

    @property
    def thread(self) -> ThreadProgress | None:
        """The thread that makes progress, if known."""
        main = self._threads.get(self.pid)
        if main is not None and (main.regular or len(self._threads) == 1):
            return main
        if self._followed is not None and self._threads[self._followed].regular:
            return self._threads[self._followed]
        best = max(self._threads.values(), key=lambda one: one.regular, default=None)
        if best is None or not best.regular:
            return main
        self._followed = best.tid
        return best
