"""Report threads that wait for each other's locks, or for a lock whose owner is gone."""

from __future__ import annotations

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.thread_states import Cycle, ThreadState, ThreadStates
from whystall.tools.recording.store import Recording

_MOST = 10
_NAMED = 6


def deadlock_findings(known: ThreadStates, recording: Recording) -> list[Finding]:
    """Return a finding per cycle of the wait-for graph, per lock whose owner is gone, and per process in which all
    threads wait for locks that store no owner."""
    cycles = known.cycles()
    found = [_cycle(cycle, recording) for cycle in cycles]
    named = {t.pid for cycle in cycles for t in cycle.threads}
    for pid in dict.fromkeys(t.pid for t in known.threads.values()):
        if pid not in named and (stuck := stuck_without_owner(known, pid)):
            found.append(_without_owner(stuck, recording))
    return found[:_MOST]


def stuck_without_owner(known: ThreadStates, pid: int) -> list[ThreadState]:
    """Return the Python threads of a process that wait for locks without an owner, if no other thread can release them.

    That is: at least two threads have waited for different locks all the time, and all other threads that run Python
    wait for a thread to end, without limit.
    """
    threads = [t for t in known.of_process(pid) if t.frames]
    stuck = [t for t in threads if t.lasting and t.kind.code == "lock" and t.lock and t.owner_tid is None]
    others = [t for t in threads if t not in stuck]
    if len({t.lock for t in stuck}) < 2 or not known.complete:
        return []
    return stuck if all(t.lasting and t.kind.code == "join" for t in others) else []


def _cycle(cycle: Cycle, recording: Recording) -> Finding:
    first = cycle.threads[0]
    if cycle.ownerless:
        owner = f" -> ({first.owner_tid})" if first.owner_tid is not None else ""
        attributes = {"proof": "dead_owner", "cycle": f"{_step(first)}{owner}"}
    elif len(cycle.threads) == 1:
        attributes = {"proof": "itself", "cycle": _step(first)}
    else:
        attributes = {"proof": "cycle", "cycle": _chain(cycle.threads)}
    return _finding(first, len(cycle.threads), attributes, Severity.CRITICAL, recording)


def _without_owner(stuck: list[ThreadState], recording: Recording) -> Finding:
    lines = ", ".join(_step(t) for t in stuck[:_NAMED])
    return _finding(stuck[0], len(stuck), {"proof": "no_owner_kept", "cycle": lines}, Severity.MAJOR, recording)


def _finding(
    first: ThreadState, threads: int, attributes: dict[str, str], bad: Severity, recording: Recording
) -> Finding:
    subject = Subject(type="thread", pid=first.pid, tid=first.tid, comm=first.comm)
    interval = window(recording.manifest.window_ns)
    metrics = {"threads": threads, "window_pct": 100.0}
    if first.place.line:
        attributes = {**attributes, "code": first.place.line}
    return finding("lock.deadlock", subject, interval, metrics, bad, attributes)


def _chain(threads: tuple[ThreadState, ...]) -> str:
    names = [_step(t) for t in threads[:_NAMED]]
    more = [f"{len(threads) - _NAMED} more"] if len(threads) > _NAMED else []
    return " -> ".join([*names, *more, threads[0].name])


def _step(thread: ThreadState) -> str:
    return f"{thread.name} at {thread.place.line}" if thread.place.line else thread.name
