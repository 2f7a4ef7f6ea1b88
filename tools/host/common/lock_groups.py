"""Group the waits of all threads by futex word or file: the kind of object, its evidence, and who ended each wait.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Literal, NamedTuple

from whystall.tools.host.common.objects import OWNED, Objects, passing_words
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.thread_states import ThreadStates
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.common.wait_kinds import Kind, wait_kind

What = Literal["lock", "queue", "barrier", "join", "interpreter", "file", "unknown"]
Evidence = Literal["memory", "function", "passes", "program_line", "call", "none"]

_FUTEX = frozenset({"futex", "futex_wait", "futex_waitv"})
_FILE_CALLS = frozenset({"flock", "fcntl"})
# Kinds of objects by kinds of futex waits that are known with certainty.
_CERTAIN: Mapping[str, What] = {
    "interpreter_lock": "interpreter",
    "lock": "lock",
    "queue": "queue",
    "queue_full": "queue",
    "barrier": "barrier",
    "collective": "barrier",
    "join": "join",
    "file_lock": "file",
}
_MOST_GROUPS = 5000
_MOST_COMPARED = 200_000
_MOST_SPANS = 2000
# A thread that waits on the same word again this soon after a time-out is in the same wait.
_SAME_WAIT_NS = 2_000_000


class EndedWait(NamedTuple):
    """A wait, or a part of it, and the thread `tid` that ended it."""

    tid: int
    start_ns: int
    end_ns: int
    waiter_tid: int


@dataclass
class Waiter:
    """The waits of one thread on one object."""

    line: Timeline
    total_ns: int = 0
    max_ns: int = 0
    count: int = 0
    open_ns: int = 0
    by_place: Counter[str] = field(default_factory=Counter)
    by_call: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Time by system call and innermost line of Python."""
    waits: list[Wait] = field(default_factory=list)

    @property
    def code(self) -> str:
        """The line of the program that waits longest."""
        return self.by_place.most_common(1)[0][0] if self.by_place else ""


@dataclass
class Group:
    """Waits on one futex word of a process (`word`), or for a file lock (`path`)."""

    pid: int
    word: int
    path: str
    what: What = "unknown"
    evidence: Evidence = "none"
    waiters: dict[int, Waiter] = field(default_factory=dict)
    kinds: Counter[Kind] = field(default_factory=Counter)
    ended: list[EndedWait] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        """The time that all threads waited."""
        return sum(w.total_ns for w in self.waiters.values())

    @property
    def longest(self) -> Waiter:
        """The thread that waits most."""
        return max(self.waiters.values(), key=lambda w: w.total_ns)

    def ended_by(self, waiter: Waiter | None = None) -> Counter[int]:
        """Return the waiting time that each thread ended, ns by tid; only that of `waiter` if given."""
        found: Counter[int] = Counter()
        for part in self.ended:
            if waiter is None or part.waiter_tid == waiter.line.tid:
                found[part.tid] += part.end_ns - part.start_ns
        return found


def groups_of(lines: Mapping[int, Timeline], objects: Objects, known: ThreadStates | None) -> list[Group]:
    """Return the waits on futex words and file locks, longest first."""
    found: dict[tuple[int, int, str], Group] = {}
    for line in lines.values():
        gil = objects.gil_words.get(line.pid, set())
        for wait in line.waits:
            key = _key(line, wait, gil)
            if key is None or wait.awake_ns <= wait.start_ns:
                continue
            group = found.get(key)
            if group is None:
                if len(found) >= _MOST_GROUPS:
                    continue
                group = found[key] = Group(*key)
            waiter = group.waiters.setdefault(line.tid, Waiter(line))
            took = wait.awake_ns - wait.start_ns
            waiter.waits.append(wait)
            waiter.total_ns += took
            waiter.max_ns = max(waiter.max_ns, took)
            waiter.count += 1
            waiter.by_place[wait.place.line] += took
            waiter.by_call[wait.syscall, wait.place.code] += took
            if wait.open:
                waiter.open_ns = took
            group.kinds[wait_kind(wait, gil)] += took
    for group in found.values():
        for waiter in group.waiters.values():
            group.ended += _ended(waiter)
    for group in found.values():
        if group.word and group.word in objects.gil_words.get(group.pid, ()):
            group.ended += _by_activity(group, lines)
    passing = passing_words(lines.values())
    owned = known.lock_kinds if known is not None else {}
    for group in found.values():
        group.what, group.evidence = _object_kind(group, objects, owned, passing.get(group.pid, set()))
    return sorted(found.values(), key=lambda g: -g.total_ns)


def _key(line: Timeline, wait: Wait, gil: Collection[int]) -> tuple[int, int, str] | None:
    """Return (process, word, path) of what a wait is on; None if it is neither a futex nor a file lock. The interpreter
    lock's words count as one."""
    if wait.syscall in _FUTEX and wait.lock > 0:
        return line.pid, min(gil) if wait.lock in gil else wait.lock, ""
    if wait.syscall in _FILE_CALLS and (wait.path or wait.state != "D"):
        return 0, 0, wait.path or wait.object
    return None


def _ended(waiter: Waiter) -> Iterable[EndedWait]:
    """Yield the thread's waits on the object with who ended each. A wait that only timed out, as those for Python's
    interpreter lock do every 5 ms, is attributed to the thread that ends the wait directly after it."""
    tid, since = 0, 0
    line = waiter.line
    for wait in reversed(waiter.waits):
        if wait.waker_tid > 0 and wait.context in ("", "task") and wait.waker_tid != line.tid:
            tid, since = wait.waker_tid, wait.start_ns
        elif tid and since - wait.end_ns > _SAME_WAIT_NS:
            tid = 0
        if tid:
            since = wait.start_ns
            yield EndedWait(tid, wait.start_ns, wait.awake_ns, line.tid)


def _by_activity(group: Group, lines: Mapping[int, Timeline]) -> list[EndedWait]:
    """Return the waits for the interpreter lock without a recorded waker, with the thread that held it.

    A thread waits for 5 ms, then requests the lock from the holder, which takes microseconds. The holder is the one
    contending thread that was active for most of the wait; a wait during which two were active is left out.
    """
    known = {(part.waiter_tid, part.start_ns) for part in group.ended}
    contenders = {tid: lines[tid] for tid in {*group.waiters, *group.ended_by()} if tid in lines}
    found, budget = [], _MOST_COMPARED
    for tid, waiter in group.waiters.items():
        others = [line for other, line in contenders.items() if other != tid and line.pid == group.pid]
        for wait in waiter.waits:
            budget -= len(others)
            if (tid, wait.start_ns) in known or budget < 0:
                continue
            active = [line.tid for line in others if 2 * _active(line, wait) > wait.awake_ns - wait.start_ns]
            if len(active) == 1:
                found.append(EndedWait(active[0], wait.start_ns, wait.awake_ns, tid))
    return found


def _active(line: Timeline, during: Wait) -> int:
    """Return how long a thread ran, or waited for a CPU, during a wait of another one."""
    blocked = sum(
        max(0, min(w.awake_ns, during.awake_ns) - max(w.start_ns, during.start_ns))
        for w in line.waits_within(during.start_ns, during.awake_ns)
    )
    return during.awake_ns - during.start_ns - blocked


def _object_kind(
    group: Group, objects: Objects, owned: Mapping[tuple[int, int], str], passing: set[int]
) -> tuple[What, Evidence]:
    """Return the kind of object that a group of waits is on, and the evidence for it.

    In this order: the word itself (interpreter lock, owner in memory); the function that waits; waiters that end each
    other's waits, which happens with locks and not with queues. A C method called from a line of the program may belong
    to a lock or a queue: unknown.
    """
    if group.path or not group.word:
        return "file", "call"
    if group.word in objects.gil_words.get(group.pid, ()):
        return "interpreter", "memory"
    kind = owned.get((group.pid, group.word), "")
    if kind in OWNED:
        return "lock", "memory"
    if kind == "join":
        return "join", "memory"
    certain = [(took, k) for k, took in group.kinds.items() if not k.presumed]
    if certain:
        took, most = max(certain)
        if 2 * took >= sum(group.kinds.values()) and most.code in _CERTAIN:
            return _CERTAIN[most.code], "function"
    if group.word in passing:
        return "lock", "passes"
    if any(k == Kind("lock", presumed=True) for k in group.kinds):
        return "unknown", "program_line"
    return "unknown", "none"


class Activity(NamedTuple):
    """What a thread did most of the time: `doing` is the code of a wait or ``running``."""

    doing: str
    code: str


def main_activity(
    line: Timeline, spans: Iterable[tuple[int, int]], gil: Collection[int], sample_ns: float
) -> Activity | None:
    """Return what a thread did in most of the longest `spans`; None if nothing is known. `sample_ns`: sampling
    period."""
    took: Counter[tuple[str, str]] = Counter()
    whole = waited = 0
    for start, end in nlargest(_MOST_SPANS, spans, key=lambda span: span[1] - span[0]):
        whole += end - start
        for wait in line.waits_within(start, end):
            part = min(end, wait.end_ns) - max(start, wait.start_ns)
            waited += part
            took[wait_kind(wait, gil).code, wait.place.line] += part
        for sample in line.samples_within(start, end):
            took[RUNNING, sample.place.line] += int(sample_ns)
    if not any(doing == RUNNING for doing, _ in took) and 2 * waited < whole:
        took[RUNNING, ""] += whole - waited
    if not took or not whole:
        return None
    by_doing: Counter[str] = Counter()
    for (doing, _), part in took.items():
        by_doing[doing] += part
    most = by_doing.most_common(1)[0][0]
    # a thread that waits for a CPU has no stack: use the line where it ran
    code = max(took, key=lambda did: (bool(did[1]), did[0] == most, took[did]))[1]
    return Activity(most, code)
