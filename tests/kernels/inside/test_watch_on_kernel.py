"""The recorder of the watch on this kernel: one process is recorded by hooks at switches, another is only looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from whystall.bpf.continuous import ContinuousSession, Detail
from whystall.tools.collect.slice_scan import Scan, Waits

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="attaching BPF programs needs root")

MS = 1_000_000
_NAPPING = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.02)"
_WAITS = 20


@pytest.fixture
def napping() -> Iterator[tuple[int, int]]:
    """Two processes that wait 20 ms again and again."""
    command = [sys.executable, "-c", _NAPPING]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second,
    ):
        for one in (first, second):
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        yield first.pid, second.pid
        first.kill()
        second.kill()


@pytest.mark.parametrize("reuse_ns", [0, 1000 * MS], ids=["full", "brief"])
def test_levels_of_processes(napping: tuple[int, int], reuse_ns: int) -> None:
    looked, hooked = napping
    session = ContinuousSession(frozenset(napping), MS, 50 * MS, lambda record: None)
    session.load()
    try:
        session.start()
        session.set_details([Detail(MS, MS, 0), Detail(5 * MS, 50 * MS, reuse_ns)], 1000 * MS)
        session.limit({looked: 2, hooked: 1}, 1)
        session.measure(True)
        scan, found = Scan(), Waits()
        until = time.monotonic() + 120  # an emulated guest is slow
        while found.tgid.count(hooked) < _WAITS and time.monotonic() < until:
            time.sleep(0.5)
            scan.read(session.take(), found)
        costs = session.measure(False)
        session.limit({looked: 2, hooked: 2}, 1)
        assert "on_switch" not in session.hooks
    finally:
        session.close()
    waits = list(zip(found.tgid, found.start_ns, found.end_ns, strict=True))
    assert len([one for one in waits if one[0] == hooked and one[2] - one[1] >= 5 * MS]) >= _WAITS
    assert [one for one in waits if one[0] == looked and one[2] - one[1] < 500 * MS] == []
    assert costs[hooked].ns > costs[hooked].runs > _WAITS
    assert looked not in costs
