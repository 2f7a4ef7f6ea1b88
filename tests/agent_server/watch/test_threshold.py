"""When short waits are no longer recorded, their places are not missed, and those of longer ones are."""

from __future__ import annotations

from whystall.agent_server.watch.process_progress import ProcessProgress
from whystall.agent_server.watch.progress import Wait

S, MS = 1_000_000_000, 1_000_000
LOCK, LOADER = 1, 2


def steps(begin: int, count: int, lock_ms: int, least_ms: int) -> list[Wait]:
    """Steps of 100 ms: a wait for a lock, and one of 30 ms for a batch; those of at least `least_ms`."""
    found = []
    for at in range(begin, begin + count * 100 * MS, 100 * MS):
        found.append(Wait(7, LOCK, at, at + lock_ms * MS))
        found.append(Wait(7, LOADER, at + 50 * MS, at + 80 * MS))
    return [one for one in found if one.end_ns - one.start_ns >= least_ms * MS]


def followed(lock_ms: int) -> ProcessProgress:
    progress = ProcessProgress(7, 5 * S)
    assert progress.feed(steps(S, 300, lock_ms, 1), 31 * S) == []
    return progress


def test_places_of_short_waits_are_forgotten_and_others_kept() -> None:
    progress = followed(lock_ms=2)
    thread = progress.thread
    assert thread is not None
    assert thread.regular == 2
    progress.forget_short(5 * MS)
    assert thread.regular == 1
    assert progress.feed(steps(31 * S, 100, 2, 5), 41 * S) == []
    (stall,) = progress.feed([], 45 * S)
    assert stall.kind == "gap"


def test_a_job_of_short_waits_alone_has_no_rhythm_then() -> None:
    progress = followed(lock_ms=2)
    progress.forget_short(50 * MS)
    assert progress.feed([], 60 * S) == []
