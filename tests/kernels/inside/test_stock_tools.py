"""Stock BCC tools on this kernel, through the engine: what they tell agrees with the kernel's counts, or is refused.

They are compiled on the kernel that runs, against its own headers; where there are none, nothing can be said of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.tools.collect.bcc import headers
from whystall.tools.collect.bcc.engine import BccEngine
from whystall.tools.collect.bcc.running import no_kprobes
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or headers.problem() is not None, reason="root and the running kernel's headers are needed"
)

ARMED = Path("/sys/kernel/debug/kprobes/enabled")
WAKES = "import time\nprint(flush=True)\nwhile True: time.sleep(0.005)"
SPAN_S = 3.0


@pytest.fixture(scope="module")
def seen() -> Iterator[tuple[int, dict[str, Capture]]]:
    """A process that sleeps and wakes, and what the stock tools reported of it and of handlers."""
    engine = BccEngine(own=None)
    assert engine.unavailable() is None
    with subprocess.Popen([sys.executable, "-c", WAKES], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            target = Target(everything=False, pid=process.pid, comm="python3", pids=[process.pid])
            engine.load({"run_queue": Options(), "interrupts": Options()}, target)
            engine.start()
            end = time.monotonic() + SPAN_S
            while time.monotonic() < end:
                engine.poll()
                time.sleep(0.05)
            engine.stop()
            yield process.pid, engine.read()
        finally:
            engine.close()
            process.kill()


def test_waits_for_a_cpu_are_as_many_as_the_scheduler_counted(seen: tuple[int, dict[str, Capture]]) -> None:
    pid, captures = seen
    capture = captures["run_queue"]
    assert set(capture.tables["latency"]["pid"]) == {pid}
    counted = capture.tables["totals"]["count"].sum()
    assert counted > 20
    assert capture.tables["latency"]["count"].sum() == pytest.approx(counted, rel=0.2, abs=20)
    assert capture.proven


def test_time_in_handlers_is_reported(seen: tuple[int, dict[str, Capture]]) -> None:
    capture = seen[1]["interrupts"]
    rows = {(row["kind"], row["name"]): row for row in capture.tables["totals"].iter_rows(named=True)}
    timer = rows["softirq", "TIMER"]
    assert timer["count"] > 0
    assert 0 < timer["total_ns"] < SPAN_S * 1e9 * (os.cpu_count() or 1) * 2
    assert capture.proven


@pytest.mark.skipif(not ARMED.exists(), reason="no kprobes, or no debug file system")
def test_kprobes_that_are_disarmed_are_refused_by_name() -> None:
    assert no_kprobes() is None
    ARMED.write_text("0")
    try:
        assert "disarmed" in (BccEngine(own=None).cannot("switches") or "")
        assert BccEngine().first_method("switches") == "own program"
    finally:
        ARMED.write_text("1")


def test_broken_tools_are_known_and_our_program_replaces_them() -> None:
    """A stock tool that does not work on this kernel is never the first method."""
    engine = BccEngine()
    assert engine.first_method("interrupts") == "softirqs-bpfcc + hardirqs-bpfcc"
    assert engine.first_method("run_queue") == "runqlat-bpfcc"
    old = tuple(int(part) for part in os.uname().release.split(".")[:2]) < (5, 16)
    assert (engine.first_method("block") == "biolatency-bpfcc") is (old and no_kprobes() is None)
    assert engine.first_method("syscalls") == engine.first_method("switches") == "own program"


def test_nothing_of_them_is_left() -> None:
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "-bpfcc" not in running
