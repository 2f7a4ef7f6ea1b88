"""Choose the thread whose progress is the progress of the job, by what it does and who waits for whom. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.critical_path.world import World

# Waits for work, time or the end of another thread. A thread with no other time makes no progress itself.
_IDLE = frozenset({"events", "queue", "queue_full", "join", "child", "sleep", "signal", "terminal", "other", "unknown"})
# They lengthen whatever a thread does, so they do not count as its own time.
_DELAYS = frozenset({"interpreter_lock", "cpu"})
# Who waits for these is itself delayed, and its chain leads to the thread that lets it wait.
_ASKS = frozenset({"socket", "socket_full", "connect", "lock", "file_lock"})
_PARKED = 0.95
_RUNS = 0.02
_AWAITED = 0.1
# A process that has used less than this share of the CPU time of the busiest one since its start is a helper.
_HELPER = 0.1
# A process that has used more CPU time than this works itself, unless its children have used this share of as much.
_WORKED_NS, _SHARE_BELOW = 1_000_000_000, 0.5


class Choice(NamedTuple):
    """The chosen thread, and the second best. `reason`: a code of ``chosen_by`` in ``prompts/words``."""

    line: Timeline
    reason: str
    runner_up: Timeline | None


class _Use(NamedTuple):
    """Parts of the time of a thread, ns. `ended`: idle waits that another thread of the target ended; `delayed`:
    waits for a CPU or the interpreter lock; `stuck`: of `other`, one wait all along; `awaited`: time that other threads
    of the target, but no helpers, waited for this one; `asked`: of it, for an answer or a lock.
    """

    running: int = 0
    idle: int = 0
    ended: int = 0
    other: int = 0
    delayed: int = 0
    stuck: int = 0
    awaited: int = 0
    asked: int = 0


def choose_thread(world: World, root: int | None, *, stands_still: bool = False) -> Choice | None:
    """Return the thread whose time is accounted for; None if no thread of the target was recorded. `stands_still`: the
    job is reported to hang.

    1. The main thread of the target process `root`, unless it is parked: it hardly runs, waits only for time, children
       or threads that hand it nothing, and no thread waits for it.
    2. The main thread of another process of the target that is not parked (ranks below a launcher), without helpers,
       which have hardly run since they started, children of such processes (workers of a rank), and those that are
       parked but for answers and locks that others wait for: among those with the most frequent command, the one that
       waits most.
    3. The thread with most time that is neither idle nor parked. A stuck thread, which is in one wait all the time, is
       eligible only if `stands_still`, or if the main thread is stuck too.
    4. If that thread is parked and clients wait for an answer: the thread that waits longest while it handles a
       request, if only for time or for another thread.
    5. The main thread, if that thread is parked.
    """
    lines = [line for line in world.lines.values() if line.pid in world.target and not world.is_kernel(line)]
    if not lines:
        return None
    uses = _uses(world, lines)
    main = next((line for line in lines if line.tid == root), None)
    ranked = sorted(lines, key=lambda line: -_progress(uses[line.tid]))

    def choice(line: Timeline, reason: str) -> Choice:
        return Choice(line, reason, next((other for other in ranked if other.tid != line.tid), None))

    if main is not None and not _parked(main, uses[main.tid]):
        return choice(main, "main_thread")
    mains = [line for line in lines if line.tid == line.pid and not _parked(line, uses[line.tid], asked=False)]
    if mains := _topmost(world, [line for line in mains if not _is_helper(world, line.pid)] or mains):
        # ranks of a job run the same command; helpers run others
        name = Counter(line.comm for line in mains).most_common(1)[0][0]
        peers = [line for line in mains if line.comm == name]
        return choice(max(peers, key=lambda line: (uses[line.tid].other, uses[line.tid].running)), "main_of_job")
    goes_on = main is not None and not stands_still and not any(_all_along(main, wait) for wait in main.waits)
    able = [line for line in ranked if not (goes_on and uses[line.tid].stuck)]
    if able and not _parked(able[0], uses[able[0].tid]):
        return choice(able[0], "stuck_thread" if uses[able[0].tid].stuck else "most_progress")
    if main is not None and (handler := _waiting_handler(world, main, lines)) is not None:
        return choice(handler, "handles_request")
    return choice(main or ranked[0], "main_thread")


def _waiting_handler(world: World, main: Timeline, lines: list[Timeline]) -> Timeline | None:
    """Return the thread of a server that waits longest while it handles a request; None if no request is unanswered."""
    if not world.objects.requests_in_flight(main.pid):
        return None
    waits = {
        line.tid: sum(
            wait.end_ns - wait.start_ns
            for wait in line.waits
            if wait.place.in_handler and world.kind(line, wait).code != "events"
        )
        for line in lines
        if line.pid == main.pid and line is not main
    }
    able = [line for line in lines if waits.get(line.tid, 0) >= _AWAITED * world.window_ns]
    return max(able, key=lambda line: (waits[line.tid], line.running_ns), default=None)


def _is_helper(world: World, pid: int) -> bool:
    """Return whether a process has hardly run since it started, compared with the others of the target: it tracks
    resources, or forwards signals."""
    most = max((world.used_ns.get(other, 0) for other in world.target), default=0)
    return pid in world.used_ns and world.used_ns[pid] < _HELPER * most


def leaves_work(own_ns: int, below_ns: int) -> bool:
    """Return whether a process leaves its work to its children, by the CPU time that it and they have used so far.

    A shell and a launcher of ranks use next to nothing, or import as much as one of their children.
    """
    return own_ns <= _WORKED_NS or below_ns >= _SHARE_BELOW * own_ns


def _leaves_work(world: World, pid: int) -> bool:
    below = _descendants(world, {pid})
    return leaves_work(world.used_ns.get(pid, 0), sum(world.used_ns.get(child, 0) for child in below))


def _topmost(world: World, mains: list[Timeline]) -> list[Timeline]:
    """Return the main threads `mains` without those in descendants of the processes of others."""
    below = _descendants(world, {line.pid for line in mains})
    return [line for line in mains if line.pid not in below]


def _descendants(world: World, pids: set[int]) -> set[int]:
    below: set[int] = set()
    while pids:
        pids = {child for pid in pids for child in world.children.get(pid, ())} - below
        below |= pids
    return below


def _uses(world: World, lines: list[Timeline]) -> dict[int, _Use]:
    uses: dict[int, _Use] = {}
    awaited: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for line in lines:
        helper = _is_helper(world, line.pid)
        idle = ended = other = delayed = stuck = 0
        for wait in line.waits:
            took = wait.end_ns - wait.start_ns
            kind = world.kind(line, wait)
            by = world.enders.waker(line, wait, kind.code)
            if by is not None and by.pid in world.target and not helper:
                awaited[by.tid] += took
                asked[by.tid] += took if kind.code in _ASKS else 0
            if kind.code not in _IDLE:
                other += took
                delayed += took if kind.code in _DELAYS else 0
                stuck += took if _all_along(line, wait) else 0
                continue
            idle += took
            launches = kind.code == "child" and wait.open and _leaves_work(world, line.pid)
            if by is not None and by.pid in world.target and not launches:
                ended += took
        other += sum(short.total_ns for short in line.short)
        uses[line.tid] = _Use(line.running_ns, idle, ended, other, delayed, stuck)
    return {tid: use._replace(awaited=awaited[tid], asked=asked[tid]) for tid, use in uses.items()}


def _parked(line: Timeline, use: _Use, *, asked: bool = True) -> bool:
    """Return whether a thread makes no progress itself and none waits for it; `asked`: waits for an answer or a lock
    count."""
    lived = max(line.alive[1] - line.alive[0], 1)
    idle = use.running < _RUNS * lived and use.idle - use.ended > _PARKED * (lived - use.delayed)
    return idle and use.awaited - (0 if asked else use.asked) < _AWAITED * lived


def _all_along(line: Timeline, wait: Wait) -> bool:
    return wait.open and wait.end_ns - wait.start_ns > _PARKED * (line.alive[1] - line.alive[0])


def _progress(use: _Use) -> int:
    return use.running + use.other + use.ended // 2
