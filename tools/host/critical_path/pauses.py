"""Find functions of the program that a thread enters repeatedly for a short time, and the lag of its event loop.
Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median, median_high
from typing import NamedTuple

from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.places import Function, Place
from whystall.tools.host.common.running_kinds import running_kind, spinning_wait
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording

_DEFAULT_PERIOD_NS = 10_101_010.0
_LEAST_NS = 20_000_000
_LEAST_COUNT = 2
# Largest share of the window for a pause; a function with more is the thread's work.
_MOST_SHARE = 0.5
_MOST_EPISODES = 1000
# An event loop is late if the time between two polls is at least this, and much longer than usual: it adds to the
# latency of every other request; asyncio's debug mode warns from 100 ms on (loop.slow_callback_duration).
_LATE_NS, _LATE_MEDIANS = 25_000_000, 10


def sample_period_ns(recording: Recording) -> float:
    """Return the time between two CPU samples, ns; the usual one without samples."""
    if not recording.has("samples") or recording.table("samples.events").is_empty():
        return _DEFAULT_PERIOD_NS
    period = float(recording.table("samples.events")["period"][0])
    return period if period > 0 else _DEFAULT_PERIOD_NS


class _Moment(NamedTuple):
    """A wait, or a sample with its period."""

    start_ns: int
    end_ns: int
    place: Place
    code: str
    detail: str


@dataclass
class Pause:
    """Episodes of a thread in `function`, in order. `parts`: time by (wait or `running`, mode or detail, line)."""

    function: Function
    episodes: list[tuple[int, int]] = field(default_factory=list)
    parts: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The function as text: ``save (train.py)``."""
        return f"{self.function.name} ({self.function.file})"

    @property
    def lengths(self) -> list[int]:
        """How long each episode took, ns."""
        return [end - start for start, end in self.episodes]

    @property
    def typical_ns(self) -> int:
        """The upper median of the lengths."""
        return median_high(self.lengths)

    @property
    def total_ns(self) -> int:
        """Time in all episodes."""
        return sum(self.lengths)

    @property
    def period_ns(self) -> float:
        """The median of the times between the starts of two episodes; 0 if there is only one."""
        gaps = [after[0] - before[0] for before, after in pairwise(self.episodes)]
        return median(gaps) if gaps else 0.0


def pauses_of(world: World, line: Timeline, sample_ns: float) -> list[Pause]:
    """Return the pauses of thread `line`, those with most time first. `sample_ns`: the period of the samples.

    Of functions that call each other in the same episodes, only the outermost is returned.
    """
    moments = _moments(world, line, sample_ns)
    open_: dict[Function, int] = {}
    found: dict[Function, Pause] = {}
    last_end = 0
    for moment in moments:
        inside = dict.fromkeys(moment.place.functions)
        for function in [f for f in open_ if f not in inside]:
            _close(found[function], open_.pop(function), last_end)
        for function in inside:
            found.setdefault(function, Pause(function))
            open_.setdefault(function, moment.start_ns)
            found[function].parts[moment.code, moment.detail, moment.place.line] += moment.end_ns - moment.start_ns
        last_end = moment.end_ns
    for function, start in open_.items():
        _close(found[function], start, last_end)
    lived = max(line.alive[1] - line.alive[0], 1)
    pauses = [pause for pause in found.values() if _recurs(pause, lived)]
    pauses.sort(key=lambda pause: -pause.total_ns)
    kept: list[Pause] = []
    callers = _callers(moments)
    for pause in pauses:
        if not any(
            _same_episodes(pause, other) and other.function in callers.get(pause.function, ()) for other in pauses
        ):
            kept.append(pause)
    return kept


def _moments(world: World, line: Timeline, sample_ns: float) -> list[_Moment]:
    moments = []
    for wait in line.waits:
        if wait.place.python:
            kind = world.kind(line, wait)
            moments.append(_Moment(wait.start_ns, wait.end_ns, wait.place, kind.code, kind.detail))
    half = int(sample_ns / 2)
    for sample in line.samples:
        if sample.place.python:
            code, mode = spinning_wait(sample.place), ""
            if not code:
                kind = running_kind(sample.place, sample.kernel)
                code, mode = RUNNING, f"{kind.code} {kind.detail}".strip()
            moments.append(_Moment(sample.at_ns - half, sample.at_ns + half, sample.place, code, mode))
    return sorted(moments)


def _close(pause: Pause, start: int, end: int) -> None:
    if len(pause.episodes) < _MOST_EPISODES:
        pause.episodes.append((max(start, 0), max(end, start)))


def _recurs(pause: Pause, lived: int) -> bool:
    lengths = [length for length in pause.lengths if length >= _LEAST_NS / 4]
    if len(lengths) < _LEAST_COUNT or pause.total_ns > _MOST_SHARE * lived:
        return False
    return median(lengths) >= _LEAST_NS and pause.period_ns > 2 * median(lengths)


def _callers(moments: list[_Moment]) -> dict[Function, set[Function]]:
    found: dict[Function, set[Function]] = {}
    for functions in {moment.place.functions for moment in moments}:
        for at, function in enumerate(functions):
            found.setdefault(function, set()).update(functions[:at])
    return found


def _same_episodes(inner: Pause, outer: Pause) -> bool:
    """Return whether the numbers of episodes of two functions differ by at most a fifth."""
    if outer.function == inner.function:
        return False
    return abs(len(outer.episodes) - len(inner.episodes)) <= max(1, len(outer.episodes) // 5)


@dataclass
class Lag:
    """Times between two waits of an event loop for events. `longest`: when the longest was; `line`, `code`: what took
    most of the time in the late ones. `waits`: the times are single waits of functions that the loop called."""

    lengths: list[int]
    longest: tuple[int, int]
    line: str
    code: str
    waits: bool = False

    @property
    def typical_ns(self) -> int:
        """The upper median of the lengths."""
        return median_high(self.lengths)

    @property
    def late_from_ns(self) -> float:
        """The length from which on a stretch is late. A wait always is, since a loop should wait for events only;
        computing may be its usual work."""
        return _LATE_NS if self.waits else max(_LATE_NS, _LATE_MEDIANS * median(self.lengths))

    @property
    def late_ns(self) -> int:
        """Total time of the late stretches."""
        return sum(length for length in self.lengths if length >= self.late_from_ns)


def loop_lag(world: World, line: Timeline) -> Lag | None:
    """Return the lag of the event loop of thread `line`; None if it has none.

    A poll that finds events at once does not wait, and is not recorded: two stretches then count as one. If functions
    called by the loop wait for longer than that, their waits are the lag.
    """
    polled, blocked = _between_polls(world, line), _blocked(world, line)
    if polled is None or (blocked is not None and blocked.late_ns > polled.late_ns):
        return blocked
    return polled


def _blocked(world: World, line: Timeline) -> Lag | None:
    """Return the waits of functions that the loop called, from `_LATE_NS` on."""
    waits = [
        w
        for w in line.waits
        if w.awake_ns - w.start_ns >= _LATE_NS
        and w.place.in_loop_callback
        and world.kind(line, w).code not in ("events", "cpu")
    ]
    if not waits:
        return None
    longest = max(waits, key=lambda w: w.end_ns - w.start_ns)
    lines: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for wait in waits:
        lines[wait.place.line] += wait.end_ns - wait.start_ns
        codes[world.kind(line, wait).code] += wait.end_ns - wait.start_ns
    lengths = [w.end_ns - w.start_ns for w in waits]
    return Lag(lengths, (longest.start_ns, longest.end_ns), _most(lines), _most(codes), waits=True)


def _between_polls(world: World, line: Timeline) -> Lag | None:
    """Return the times between two waits for events; None if the thread does not wait for events again and again."""
    polls = [
        w
        for w in line.waits
        if world.kind(line, w).code == "events" and (w.place.role == "event_loop" or _polls(w.place) or _is_native(w))
    ]
    if len(polls) < 3:
        return None
    gaps = [(one.end_ns, other.start_ns) for one, other in pairwise(polls)]
    longest = max(gaps, key=lambda gap: gap[1] - gap[0])
    lag = Lag([end - start for start, end in gaps], longest, "", "")
    lines: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for start, end in [gap for gap in gaps if gap[1] - gap[0] >= lag.late_from_ns] or [longest]:
        waited = 0
        for wait in line.waits_within(start, end):
            code = world.kind(line, wait).code
            took = min(wait.end_ns, end) - max(wait.start_ns, start)
            waited += took
            codes[RUNNING if code == "cpu" else code] += took  # without a CPU, it would run
            lines[wait.place.line or line.line_near(wait.awake_ns)] += took
        samples = line.samples_within(start, end)
        for sample in samples:
            lines[sample.place.line] += (end - start - waited) // len(samples)
        codes[RUNNING] += end - start - waited
    del lines[""]
    return replace(lag, line=_most(lines), code=_most(codes))


def _polls(place: Place) -> bool:
    return any(module in ("selectors.py", "select.py") for _, module in place.library[:1])


def _is_native(wait: Wait) -> bool:
    """Return whether a thread that runs no Python waits at an epoll set: a loop of libuv, libevent, or a C server."""
    return not wait.place.python and wait.syscall.startswith("epoll_")


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda text: counts[text]) if counts else ""
