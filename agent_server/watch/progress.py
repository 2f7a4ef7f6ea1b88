"""Learn the rhythm of a process from where its threads wait, and find when it stalls. Pure: no I/O, no clock.

A thread that makes progress visits the same places again and again: its data loader, its collective, its log. Nothing
is instrumented. These deviations are found:

* ``gap``: a thread visits none of its usual places for far longer than ever before;
* ``late``: a place that is visited once per step is overdue, while the thread visits others (a slow step);
* ``wait``: a thread that mostly runs, and so has no usual places, waits once for far longer than ever before;
* ``signal``: a sign of progress that was named for the job stays away (`signals`);
* ``slowdown``, ``drift``: the step time rises and stays, or rises slowly.

Times are CLOCK_MONOTONIC in nanoseconds, which does not advance while the host is suspended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from whystall.agent_server.watch.call_rate import CallRate
from whystall.agent_server.watch.memory import Learnt, sampled
from whystall.agent_server.watch.pause_account import Wait, account, goes_on_as_usual, stuck_until_ns
from whystall.agent_server.watch.pauses import RUNNING, Pauses
from whystall.agent_server.watch.rhythm import MIN_GAP_NS, NS, Rhythm
from whystall.agent_server.watch.slowdown import Slower, StepTimes

Kind = Literal["gap", "late", "wait", "signal", "slowdown", "drift"]
# Places visited so often are judged together: a second without any of them is a gap.
_OFTEN_NS = NS // 4
_TIMES_FASTEST = 3
_PLACES = 256
_RECENT_NS, _RECENT = 180 * NS, 8192
_RECENT_OF_OTHERS = 256  # of a thread that is not followed
# A place that is overdue by this multiple of its bound, while others are visited, belongs to a phase that has ended.
_PHASE_OVER = 10
_RECHOSEN_NS = 10 * NS
_LEARN_AGAIN_NS, _KEPT_PLACES = 5 * NS, 16
# Visits to any usual place until the times between them can be judged.
_MANY_VISITS = 64
_SHORTEST_STEP_NS = NS // 100
# A thread without usual places: it waits for less than this share of its time, and once for 10 times the longest.
_MOSTLY_RUNS, _UNUSUAL = 0.5, 10
# Places at which it begins to wait later, as in a stall (a polling loop), become usual only if this lasts so long.
_SETTLED_NS = 15 * NS
# Of the waits at a usual place, so many must be long enough to be recorded.
_LONG_ENOUGH = 0.9


@dataclass(frozen=True)
class Stall:
    """A deviation of the thread `tid`. `start_ns`: the last sign of progress; `end_ns`: the next one, None while there
    is none; `usual_ns`: the usual interval; `now_ns`: the present step time of a slowdown. `place`: where most of a
    pause that has ended was spent, 0 if the thread ran; `waited_ns`, `runnable_ns`: how long it waited in all, and how
    much of that for a CPU; `unusual_ns`: how much longer than usual it was blocked, by place; `starved`: how many times
    more than before lack of a CPU lengthened its work, 1: as usual. `phase`: it went on at other places than usual:
    another phase of the program.
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
    unusual_ns: int = 0
    starved: float = 1.0
    phase: bool = False

    @property
    def ongoing(self) -> bool:
        return self.end_ns is None


class ThreadProgress:
    """The usual places of one thread. `learn_ns`: how long after its first wait nothing is reported; `followed`: it is
    the one that makes the progress of its process."""

    def __init__(self, tid: int, learn_ns: int) -> None:
        self.tid = tid
        self.pauses = Pauses()
        self.followed = True
        self._learn_ns = learn_ns
        self._first_ns = 0
        self._places: dict[int, Rhythm] = {}
        self._core: frozenset[int] = frozenset()
        self._any = Rhythm(0)  # the visits to any of these
        self._steps: dict[int, StepTimes] = {}
        self._chosen_ns = 0
        self._recent: deque[Wait] = deque(maxlen=_RECENT)
        self._blocked_ns = 0
        self._longest_ns = 0
        self._gap: Stall | None = None
        self._last_ns = 0
        self._paused_until_ns = 0
        self._calls = CallRate()
        self._learnt: Learnt | None = None

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
            self._places[wait.place] = self._first_visit(wait)
            return []
        away_ns = wait.end_ns - self._any.last_ns
        silent = away_ns > MIN_GAP_NS and wait.place in self._core and self._silent(wait.end_ns - 1)
        if silent or (rhythm.learnt and rhythm.overdue_ns(wait.end_ns) > 0):
            return self._returned(wait.place, rhythm, wait.end_ns, silent=silent)
        interval = wait.end_ns - rhythm.last_ns
        rhythm.visit(wait.end_ns)
        if wait.place in self._core:
            self._gap = None
            self._any.visit(wait.end_ns)
        return self._step(wait.place, wait.end_ns, interval)

    def _first_visit(self, wait: Wait) -> Rhythm:
        known = self._learnt.places.get(wait.place) if self._learnt is not None else None
        if known is None:
            return Rhythm(wait.end_ns)
        self._chosen_ns = 0  # choose again soon
        return Rhythm.restored(wait.end_ns, *known)

    def restore(self, learnt: Learnt, *, same: bool) -> None:
        """Take over what was learnt before. A place counts once it is visited again. `same`: of this very process,
        which need not be learnt for as long again; another run of the job may start differently."""
        self._learnt = learnt if same else replace(learnt, step=0, steps=[])
        for place, length in learnt.pauses.items():
            self.pauses.accept(place, length)
        if same and learnt.places:
            self._learn_ns = min(self._learn_ns, _LEARN_AGAIN_NS)

    def learnt(self, run: str, seen: float) -> Learnt:
        """Return what is worth keeping, of the places with most time. `run`, `seen`: see `Learnt`."""
        known = {place: one for place, one in self._places.items() if one.learnt}
        kept = sorted(known, key=lambda place: (place in self._core, known[place].count), reverse=True)[:_KEPT_PLACES]
        step = self._step_place()
        return Learnt(
            run,
            seen,
            self.tid,
            {place: (known[place].count, sampled(list(known[place].intervals))) for place in kept},
            self.pauses.accepted(),
            step or 0,
            self._steps[step].reference if step is not None else [],
        )

    def judge(self, now_ns: int, calls: Callable[[], int | None] | None = None) -> list[Stall]:
        """Return the gap that is in progress at `now_ns`, once. `calls`: returns how many I/O system calls the thread
        has made, None if that is not known; called only if needed."""
        if now_ns - self._chosen_ns >= _RECHOSEN_NS:
            self._choose(now_ns)
        if calls is not None and self._core and (ended := self._count_calls(now_ns, calls)) is not None:
            return ended
        if self._gap is not None or self._learning(now_ns) or not self._silent(now_ns):
            return []
        self._gap = Stall("gap", self.tid, self._silent_since(), None, self._usual_ns())
        return [self._gap]

    def _count_calls(self, now_ns: int, calls: Callable[[], int | None]) -> list[Stall] | None:
        """Return None unless its calls show progress of the thread without any waits; if there was a gap, it has ended
        with the last reading that showed none, or the last long wait."""
        quiet_ns = now_ns - self._silent_since()
        near = min((self._places[place].gap_ns for place in self._core if place in self._places), default=0) // 2
        if quiet_ns < near and not self._calls.due(now_ns):
            return None
        count = calls()
        if count is None:
            return None
        if quiet_ns < near:
            self._calls.read(now_ns, count)
            return None
        since = self._silent_since()
        if not self._calls.makes_progress(since, now_ns, count):
            return None
        # after a stall it may catch up without waiting at any usual place; its calls are read each second only
        gap, idle_ns, stuck_ns = self._gap, self._calls.idle_ns, stuck_until_ns(self._recent, since)
        idle_ns = stuck_ns if idle_ns - stuck_ns < NS else idle_ns
        self._go_on(now_ns)
        if gap is None or idle_ns - since < MIN_GAP_NS + gap.usual_ns:
            return []
        return self._ended("gap", since, idle_ns, gap.usual_ns)

    def _go_on(self, until_ns: int) -> None:
        self._gap, self._calls.idle_ns = None, 0
        self._resume(until_ns)

    def _resume(self, at_ns: int) -> None:
        self._any.resume(at_ns)
        for place in {*self._core, *self._steps} & self._places.keys():
            self._places[place].resume(at_ns)

    def unobserved(self, until_ns: int) -> None:
        """Forget the time before `until_ns`, in which nothing was observed."""
        self._gap = None
        for rhythm in [self._any, *self._places.values()]:
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
    def last_ns(self) -> int:
        """When its last wait ended that is known."""
        return self._last_ns

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
        """Return whether it has been to none of its usual places for too long: by the times between visits to any of
        them, or to each."""
        if not self._core:
            return False
        if len(self._core) > 1 and self._any.count >= _MANY_VISITS and self._any.overdue_ns(now_ns) > 0:
            return True
        return all(self._places[place].overdue_ns(now_ns) > 0 for place in self._core if place in self._places)

    def _silent_since(self) -> int:
        return max((self._places[place].last_ns for place in self._core if place in self._places), default=0)

    def _usual_ns(self) -> int:
        return min((self._places[place].median_ns for place in self._core if place in self._places), default=0)

    def _returned(self, place: int, rhythm: Rhythm, now_ns: int, *, silent: bool) -> list[Stall]:
        """Handle a visit that was overdue: the end of a gap, a late step, or the return of a phase."""
        start, usual = rhythm.last_ns, rhythm.median_ns
        is_step = place == self._step_place() and rhythm.periodic
        if self._learning(now_ns):
            for learning in (rhythm, self._any) if place in self._core else (rhythm,):
                learning.accept_again(now_ns)
        if silent:
            since = self._silent_since()
            self._gap = None
            self._resume(now_ns)
            return self._ended("gap", since, now_ns, self._usual_ns())
        rhythm.resume(now_ns)
        if place in self._core:
            self._gap = None
            self._any.resume(now_ns)
        if not is_step or start < self._paused_until_ns:  # the same pause, which ended at another place
            return []
        if goes_on_as_usual(self._recent, start, now_ns, self._core - {place}):
            return []  # its waits there were too short to be recorded
        return self._ended("late", start, now_ns, usual)

    def _ended(self, kind: Kind, start: int, end: int, usual: int) -> list[Stall]:
        self._paused_until_ns = end
        found = account(self._recent, start, end, usual, self._core)
        if not found.phase:
            self._forget_new_places(start)
        known = self.pauses.known(found.place, end - start)
        self.pauses.add(found.place, start, end - start)
        if known or self.pauses.known(found.place, end - start) or self._learning(end):
            return []
        return [Stall(kind, self.tid, start, end, usual, 0, *found)]

    def _forget_new_places(self, start: int) -> None:
        """Forget places at which the thread began to wait in a pause, such as those of a polling loop."""
        for place, rhythm in list(self._places.items()):
            if rhythm.since_ns > start and place not in self._core:
                del self._places[place]

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
        since = self._silent_since() if self._core and self._silent(now_ns) else 0
        learnt = {
            place: rhythm
            for place, rhythm in self._places.items()
            if rhythm.learnt and (place in self._core or self._settled(rhythm, since))
        }
        fastest = min((rhythm.high_ns for rhythm in learnt.values()), default=0)
        bound = max(_OFTEN_NS, _TIMES_FASTEST * fastest)
        core = frozenset(place for place, rhythm in learnt.items() if rhythm.high_ns <= bound)
        if core != self._core:
            self._core, self._any = core, Rhythm(now_ns)
        most = _RECENT if self.followed else _RECENT_OF_OTHERS
        while self._recent and (self._recent[0].end_ns < now_ns - _RECENT_NS or len(self._recent) > most):
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
        before = self._learnt.steps if self._learnt is not None and self._learnt.step == best else None
        self._steps = {} if best is None else {best: StepTimes(before)}

    def _settled(self, rhythm: Rhythm, since: int) -> bool:
        """Return whether a place may become usual: it has been visited for long, or was before the gap that began at
        `since`, or while the thread was learnt."""
        long = rhythm.last_ns - rhythm.since_ns >= _SETTLED_NS
        return long or not self._core or rhythm.since_ns <= max(since, self._first_ns + self._learn_ns)

    def _forget_phases(self) -> None:
        """Forget places that are long overdue although the thread has visited others regularly since."""
        live = [r for r in self._places.values() if r.learnt and r.overdue_ns(self._last_ns) <= 0]
        if not live or self._gap is not None:
            return
        for place, rhythm in list(self._places.items()):
            if rhythm.learnt and self._last_ns - rhythm.last_ns > _PHASE_OVER * rhythm.gap_ns:
                del self._places[place]


def _slower(tid: int, found: Slower, now_ns: int) -> Stall:
    return Stall(found.kind, tid, found.since_ns, now_ns, found.usual_ns, found.now_ns)
