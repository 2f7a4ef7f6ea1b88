"""Account for one pause of a thread, and compare it with the time before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from whystall.agent_server.watch.pauses import RUNNING
from whystall.agent_server.watch.rhythm import LEARN_VISITS, NS

# Of the usual number of visits, this many at other places show that a thread makes progress; while it is stuck and
# polls, it blocks for more of the time than usual, and runs for less of it than this part of the usual share.
_ACTIVE, _FEW, _MORE_BLOCKED, _MORE_STARVED, _RUNS_LESS = 0.5, 5, 0.15, 2.0, 0.2
# Between two polls for the interpreter lock, of 5 ms each (CPython, sys.setswitchinterval), it runs for less than this.
_HARDLY_NS = NS // 1000
# Between two waits for a CPU, which a quota or tasks of high priority impose, it runs for less than this part of one.
_HARDLY_OF_LACK = 0.1
# A thread that visits its usual places this often, compared with the time before, makes progress as usual.
_AS_OFTEN = 0.7
# More of a pause than this at one place: the place of the pause.
_MAJOR = 0.5


class Wait(NamedTuple):
    """One wait of a thread. `place`: where, as a stable number; `runnable_ns`: the part of it without a CPU;
    `preempted`: it only lost its CPU, wherever it was; `timed`: a sleep, or a timer ended it."""

    tid: int
    place: int
    start_ns: int
    end_ns: int
    runnable_ns: int = 0
    preempted: bool = False
    timed: bool = False


class Account(NamedTuple):
    """What a thread did in a pause. `place`: where it spent most of it, `RUNNING` if it ran; `unusual_ns`: how much
    longer than usual it was blocked, by place; `starved`, `phase`: see `progress.Stall`."""

    place: int
    waited_ns: int
    runnable_ns: int
    unusual_ns: int
    starved: float
    phase: bool


class _Use:
    """Time by place, and visits, in [start, end)."""

    def __init__(self, waits: Iterable[Wait], start: int, end: int) -> None:
        self.length = max(end - start, 1)
        self.waited = self.runnable = self.polling = self.timed = 0
        self.places: dict[int, int] = {}
        self.blocked: dict[int, int] = {}
        self.visits: dict[int, int] = {}
        for one in waits:
            part = min(one.end_ns, end) - max(one.start_ns, start)
            if part <= 0:
                continue
            runnable = min(part, one.runnable_ns)
            self.waited += part
            self.runnable += runnable
            self.timed += one.timed * (part - runnable)
            self.places[one.place] = self.places.get(one.place, 0) + part
            self.blocked[one.place] = self.blocked.get(one.place, 0) + part - runnable
            self.visits[one.place] = self.visits.get(one.place, 0) + (not one.preempted)

    @property
    def blocked_share(self) -> float:
        return (self.waited - self.runnable) / self.length

    @property
    def timed_share(self) -> float:
        return self.timed / self.length

    @property
    def running_share(self) -> float:
        return max(0.0, 1.0 - self.waited / self.length)

    @property
    def stretch(self) -> float:
        """By how much lack of a CPU lengthens its work: 2 if it waits for as long as it runs."""
        runnable = self.runnable - self.polling
        active = self.length - (self.waited - runnable)
        return max(1.0, active / max(active - runnable, active // 1000, 1))

    def count_polling(self, core: Collection[int]) -> None:
        """Count lack of a CPU at places where it polls as a part of these waits."""
        for place, visits in self.visits.items():
            if visits >= LEARN_VISITS and place not in core:
                late = self.places[place] - self.blocked[place]
                self.polling += late
                self.blocked[place] += late


def account(recent: Collection[Wait], start: int, end: int, usual_ns: int, core: Collection[int]) -> Account:
    """Return the account of the pause [start, end) of a thread. `recent`: its waits in it, and before it; `usual_ns`:
    the usual interval between visits; `core`: its usual places."""
    inside = _Use(recent, start, end)
    first = min((one.start_ns for one in recent), default=start)
    before = _Use((one for one in recent if one.end_ns <= start), first, max(start, first))
    most = max(inside.places, key=lambda place: inside.places[place], default=RUNNING)
    if before.places and inside.running_share < _RUNS_LESS * before.running_share:
        inside.count_polling(core)
    starved = inside.stretch / (before.stretch if before.places else 1.0)
    unusual = sum(
        max(0.0, took - inside.length * before.blocked.get(place, 0) / before.length)
        for place, took in inside.blocked.items()
    )
    return Account(
        most if inside.places.get(most, 0) >= _MAJOR * inside.length else RUNNING,
        inside.waited,
        inside.runnable,
        int(unusual),
        round(starved, 2),
        _is_phase(inside, before, starved, usual_ns, core),
    )


def stuck_until_ns(recent: Iterable[Wait], since: int) -> int:
    """Return when the longest stretch of waiting after `since` ended, ns: waits between which the thread hardly ran;
    0 if none lasted for a second. `recent`: its waits in the order of their ends."""
    longest = until = begun = ended = hardly = 0
    for one in recent:
        if one.end_ns <= since:
            continue
        if one.start_ns - ended > max(_HARDLY_NS, hardly):
            begun = max(one.start_ns, since)
        ended, hardly = one.end_ns, int(_HARDLY_OF_LACK * one.runnable_ns)
        if ended - begun > max(longest, NS):
            longest, until = ended - begun, ended
    return until


def goes_on_as_usual(recent: Collection[Wait], start: int, end: int, core: Collection[int]) -> bool:
    """Return whether the thread was at its usual places in [start, end) about as often as before, and ran as much."""
    first = min((one.start_ns for one in recent), default=start)
    if start - first < end - start:
        return False  # too little is known
    inside = _Use(recent, start, end)
    before = _Use((one for one in recent if one.end_ns <= start), first, start)
    now, then = (sum(use.visits.get(place, 0) for place in core) / use.length for use in (inside, before))
    runs = inside.running_share >= _AS_OFTEN * before.running_share
    return runs and then > 0 and now >= _AS_OFTEN * then


def _is_phase(inside: _Use, before: _Use, starved: float, usual_ns: int, core: Collection[int]) -> bool:
    """Return whether the thread went on, at other places than usual: another phase of the program."""
    if before.places and inside.running_share < _RUNS_LESS * before.running_share:
        return False
    if any(took >= _MAJOR * inside.length and inside.visits[place] < _FEW for place, took in inside.blocked.items()):
        return False  # it was held up once, however regular the rest was
    if inside.timed_share >= max(_MAJOR, before.timed_share + _MORE_BLOCKED):
        return False  # it slept between tries, or waited with a time-out
    active = any(n >= LEARN_VISITS and place not in core for place, n in inside.visits.items())
    active |= sum(inside.visits.values()) >= max(_FEW, _ACTIVE * inside.length / (usual_ns or inside.length))
    if active and starved < _MORE_STARVED and inside.blocked_share <= before.blocked_share + _MORE_BLOCKED:
        return True
    return usual_ns > 0 and any(_same_rhythm(n, inside.length, usual_ns) for n in inside.visits.values())


def _same_rhythm(visits: int, length: int, usual: int) -> bool:
    """Return whether a place was visited about as often as usual ones are: the same work by another name."""
    return visits >= _FEW and _ACTIVE <= visits * usual / length <= 1 / _ACTIVE
