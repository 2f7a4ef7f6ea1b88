"""By how much lack of a CPU lengthened the work of a thread."""

from __future__ import annotations

import pytest
from recordings import PID, Scene

from whystall.agent_server.watch.awaited_cpu import stretch


@pytest.mark.parametrize(("lacks_ms", "expected"), [(0, 1.0), (400, 5.0 / 3)])
def test_a_thread_that_waits_for_a_cpu_takes_longer_by_that(lacks_ms: float, expected: float) -> None:
    scene = Scene().thread(user=60)
    for second in range(12):  # of each second it is blocked for 400 ms, or lacks a CPU as long
        scene.wait(second, 400, "futex", lock=64, runnable_ns=int(lacks_ms * 1e6))
    assert stretch(scene.build(), PID) == pytest.approx(expected, rel=0.02)


def test_a_thread_that_hardly_did_anything_is_not_judged() -> None:
    scene = Scene().thread(user=0)
    for second in range(12):
        scene.wait(second, 999, "futex", lock=64, runnable_ns=0)
    assert stretch(scene.build(), PID) is None
    assert stretch(scene.build(), PID + 1) is None
