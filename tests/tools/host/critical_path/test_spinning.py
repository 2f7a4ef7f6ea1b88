"""A thread that spins for a lock waits, and the thread that runs beside it has the lock. One that tries a failing call
again and again spins, too."""

from __future__ import annotations

from collections import Counter

import pytest
from recordings import Scene

from whystall.tools.host.common.failed_calls import FailureRow
from whystall.tools.host.common.objects import objects_of
from whystall.tools.host.common.places import Place, place_of_calls
from whystall.tools.host.common.timelines import Sample, Timeline
from whystall.tools.host.critical_path.looks import Calls
from whystall.tools.host.critical_path.retries import explain_busy_retries
from whystall.tools.host.critical_path.rows import rows_of
from whystall.tools.host.critical_path.world import World

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


def program(function: str, line: int, *inner: tuple[str, str]) -> Place:
    frames = [(name, file, 0, "native") for name, file in inner]
    return place_of_calls([*frames, (function, "/job/serve.py", line, "python")])


@pytest.mark.parametrize(
    ("failed", "calls", "error", "spins"),
    [
        (90_000, 90_000, "EMFILE", True),
        (90_000, 900_000, "EMFILE", False),  # most calls succeed
        (300, 300, "EMFILE", False),  # it does other work in between
        (90_000, 90_000, "EAGAIN", False),  # as calls that must not wait do
    ],
)
def test_a_call_that_fails_and_is_tried_again_at_once_is_spinning(
    failed: int, calls: int, error: str, spins: bool
) -> None:
    kernel = ("do_accept", "__x64_sys_accept4", "do_syscall_64")
    parts = [(program("serve", 4, ("call", "/lib/python3")), ()), (program("serve", 5), kernel), (program("f", 9), ())]
    samples = [Sample(number * 10_000_000, *parts[number % 3]) for number in range(99)]
    line = Timeline(MAIN, MAIN, "serve", samples=samples, alive=(0, SECOND))
    rows = rows_of(World({MAIN: line}, objects_of(Scene().thread().build()), SECOND, frozenset({MAIN})), line)
    who = {"pid": MAIN, "tid": MAIN, "comm": "serve", "syscall": "accept4", "path": "", "object": ""}
    failure = FailureRow(**who, error=error, count=failed, first_s=0, last_s=1)
    explain_busy_retries(rows, MAIN, [failure], Calls(Counter(accept4=calls), Counter()))
    found = {row.line: (row.mode, row.detail) for row in rows}
    retry = ("spin", f"retry accept4 {error}")
    assert found["serve (serve.py:4)"] == (retry if spins else ("user", ""))
    assert found["serve (serve.py:5)"] == (retry if spins else ("system", "accept4"))
    assert found["f (serve.py:9)"] == ("user", "")
