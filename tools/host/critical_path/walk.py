"""Follow a wait to the threads that ended it, and what they did meanwhile. Pure.

The method is that of Perfetto's critical path of ``thread_executing_span`` and of BCC's ``offwaketime``: the time for
which a thread waits is the time of the thread that wakes it, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from whystall.tools.host.common.held import HELD_WAITS
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.running_kinds import running_kind, spinning_wait
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.critical_path.brief import brief_waits

if TYPE_CHECKING:
    from whystall.tools.host.critical_path.world import World

_DEPTH = 12
ON_CPU = (RUNNING, "cpu")
_OF_KERNEL = (*ON_CPU, "unknown")
# Most waits that are followed for one table; further ones count as not followed.
_BUDGET = 400_000
# A thread that waits again in the same place this soon after a time-out is in the same wait.
SAME_WAIT_NS = 2_000_000
# A thread without quota left waits for the rest of a period, which is 100 ms by default; one that competes waits for a
# slice, of 3 ms by default (kernel/sched/fair.c, sysctl_sched_base_slice).
THROTTLED_NS = 4_000_000
NOT_FOLLOWED = "not_followed"
MUTUAL = "mutual"
"""Detail of a wait that has not ended, or that timed out, for a thread that waits for this one."""


class Step(NamedTuple):
    """What a thread of a chain did: `code` is a wait's, or `RUNNING` with its mode in `mode`."""

    tid: int
    code: str
    mode: str
    detail: str
    line: str
    object: str


Chains = Counter[tuple[Step, ...]]
"""Time by chain: the steps from the first waker to the thread at the end."""


class Walk:
    """What the threads of `world` did, and those that they waited for. `spent`: waits followed so far."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._brief: dict[int, tuple[Wait, str] | None] = {}
        self.spent = 0

    @property
    def exhausted(self) -> bool:
        """Whether so many waits were followed that further ones are not."""
        return self.spent > _BUDGET

    def chains(
        self, line: Timeline, start: int, end: int, path: tuple[int, ...] = ()
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield what thread `line` did in [start, end), as chains with their times; they sum to `end - start`."""
        at = start
        for wait in line.waits_within(start, end):
            begin, stop = max(wait.start_ns, start), min(wait.end_ns, end)
            if begin > at:
                yield from self._ran(line, at, begin, path)
            awake = min(max(wait.awake_ns, begin), stop)
            if awake > begin:
                yield from self._waited(line, wait, begin, awake, path)
            if stop > awake:
                text = wait.place.line or line.line_near(awake)
                held = line.pid in self._world.throttled and wait.end_ns - wait.awake_ns >= THROTTLED_NS
                yield (Step(line.tid, "quota" if held else "cpu", "", "", text, ""),), stop - awake
            at = stop
        if end > at:
            yield from self._ran(line, at, end, path)

    def _waited(
        self, line: Timeline, wait: Wait, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        kind = self._world.kind(line, wait)
        own = Step(
            line.tid,
            kind.code,
            "",
            kind.detail,
            wait.place.line,
            wait.path or wait.object or self._world.object_at_end(line, wait),
        )
        self.spent += 1
        if self.exhausted or len(path) >= _DEPTH:
            yield (own, Step(0, NOT_FOLLOWED, "", "", "", "")), end - start
            return
        other = self._world.enders.waker(line, wait, kind.code)
        if kind.code in HELD_WAITS:
            # who let it run again did nothing for it meanwhile, and is likely who stopped it
            yield (own._replace(object=label(other) if other is not None else ""),), end - start
            return
        if other is None or other.tid in path:
            mutual = other is not None and (wait.open or wait.context == "timer") and not kind.detail
            yield (own._replace(detail=MUTUAL) if mutual else own,), end - start
            return
        if own.code == "events" and self._world.enders.awaits_server(line, wait):
            own = own._replace(code="socket")
        for chain, took in self.answers(other, start, end, (*path, line.tid)):
            yield (own, *chain), took

    def answers(
        self, line: Timeline, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield what thread `line`, for which another waits, did in [start, end), as `chains` does.

        A worker of the kernel that runs, or was not observed, does what the other thread asked for, so that its chain
        is empty: the operation itself is the end.
        """
        kernel = self._world.is_kernel(line)
        for chain, took in self.chains(line, start, end, path):
            yield () if kernel and chain[0].code in _OF_KERNEL else chain, took

    def _ran(
        self, line: Timeline, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield where a thread ran, by its samples; without any in the interval, by the line at which it next waits, or
        the nearest sample. A thread that was mostly in waits too short to be recorded singly did not run."""
        begin, stop = line.alive
        if line.new and start < begin < end:
            yield from self._ran(line, start, begin, path)
            start = begin
        before = end <= begin or line.tid not in self._world.lines
        starter = self._starter(line) if before and len(path) < _DEPTH else None
        if starter is not None and starter.tid not in path:
            yield from self.answers(starter, start, end, (*path, line.tid))
            return
        if line.tid not in self._world.lines or end <= begin or start >= stop:  # its time was not recorded
            yield (Step(line.tid, "unknown", "", "", "", ""),), end - start
            return
        samples = line.samples_within(start, end)
        if line.tid not in self._brief:
            self._brief[line.tid] = brief_waits(self._world, line)
        if not samples and (brief := self._brief[line.tid]) is not None:
            yield from self._waited_briefly(line, *brief, start, end, path)
            return
        if not samples:
            after = line.next_wait(end)
            place = after.place.line if after is not None and after.start_ns - end < SAME_WAIT_NS else ""
            yield (Step(line.tid, RUNNING, "user", "", place or line.line_near(start), ""),), end - start
            return
        steps: Counter[Step] = Counter()
        for sample in samples:
            code, kind = spinning_wait(sample.place), running_kind(sample.place, sample.kernel)
            mode, detail = ("", "") if code else (kind.code, kind.detail)
            steps[Step(line.tid, code or RUNNING, mode, detail, sample.place.line, "")] += 1
        for step, count in steps.items():
            yield (step,), (end - start) * count // len(samples)

    def _starter(self, line: Timeline) -> Timeline | None:
        """Return the main thread of the process of a thread that started within the window: what it did before delayed
        that start. None for main threads, and for others that may have been there all along.

        A thread of the target without any record has not ended a wait yet, so that it has just started.
        """
        started = line.new or (line.tid not in self._world.lines and line.pid in self._world.target)
        return self._world.lines.get(line.pid) if started and line.tid != line.pid else None

    def _waited_briefly(
        self, line: Timeline, brief: Wait, code: str, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield an interval that a thread spent in short waits like `brief`; those for the interpreter lock are
        followed to the thread that ran."""
        own = Step(line.tid, code, "", "", brief.place.line, brief.path or brief.object)
        wait = brief._replace(start_ns=start, awake_ns=end, end_ns=end)
        other = (
            self._world.enders.runs_meanwhile(line, wait) if code == "interpreter_lock" and len(path) < _DEPTH else None
        )
        if other is None or other.tid in path:
            yield (own,), end - start
            return
        for chain, took in self.answers(other, start, end, (*path, line.tid)):
            yield (own, *chain), took


def label(line: Timeline) -> str:
    """Return a thread as text: ``python3 (812)``; of a process with several, with its pid: ``worker (815 of 812)``."""
    return f"{line.comm} ({line.tid})" if line.pid == line.tid else f"{line.comm} ({line.tid} of {line.pid})"
