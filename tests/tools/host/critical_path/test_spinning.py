"""A thread that spins for a lock waits, and the thread that runs beside it has the lock."""

from __future__ import annotations

import pytest
from recordings import Scene

from whystall.tools.host.common.objects import objects_of
from whystall.tools.host.common.places import Place, place_of_calls
from whystall.tools.host.common.timelines import Sample, Timeline
from whystall.tools.host.critical_path.rows import rows_of
from whystall.tools.host.critical_path.walk import World

SECOND = 1_000_000_000
MAIN, OTHER, STRANGER = 1, 2, 9
SPINS = ("pthread_spin_lock", "/lib/libc.so.6")


def at(name: str, file: str = "/job/match") -> Place:
    return place_of_calls([(name, file, 0, "native")])


def thread(tid: int, place: Place, pid: int = MAIN) -> Timeline:
    samples = [Sample(number * 10_000_000, place, ()) for number in range(100)]
    return Timeline(pid, tid, "match", samples=samples, alive=(0, SECOND))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("pthread_spin_lock", "lock"),
        ("base::internal::SpinLock::Lock", "lock"),
        ("pthread_spin_unlock", "running"),
        ("node::SpinEventLoop", "running"),
    ],
)
def test_the_function_tells_that_a_thread_spins_for_a_lock(name: str, code: str) -> None:
    lines = {MAIN: thread(MAIN, at(name))}
    world = World(lines, objects_of(Scene().thread().build()), SECOND, frozenset({MAIN}))
    assert [row.code for row in rows_of(world, lines[MAIN])] == [code]


def test_the_thread_that_runs_meanwhile_has_the_lock() -> None:
    others = [thread(OTHER, at("feed")), thread(3, at(*SPINS)), thread(STRANGER, at("main"), STRANGER)]
    lines = {line.tid: line for line in [thread(MAIN, at(*SPINS)), *others]}
    world = World(lines, objects_of(Scene().thread().build()), SECOND, frozenset({MAIN}))
    (row,) = rows_of(world, lines[MAIN])
    root = row.root()
    assert root is not None
    assert (root[0].tid, root[0].code, root[0].line) == (OTHER, "running", "feed")
    assert (row.detail, row.total_ns, root[1]) == ("spins", SECOND, pytest.approx(SECOND, rel=0.01))
    assert (MAIN, MAIN) in world.presumed
