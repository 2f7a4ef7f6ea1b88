"""Waits for a CPU against what programs logged of their own lateness, and against the scheduler's own account."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from kernel_sessions import KernelSession, kernel_session
from scripted import Child, child

from whystall.bpf.collectors.run_queue import QueueTotal, RunQueue
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.params import TargetParams
from whystall.tools.host import runqlat
from whystall.tools.recording.collector import Need
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import observe

MS = 1_000_000
OLD_WAYS = dict.fromkeys(("current_btf", "plain_loads", "switch_has_state"), False)

BURNER = """
log(what="ready")  # first: who waits for it may be starved
os.sched_setaffinity(0, {int(sys.argv[1])})
os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[2]))
if len(sys.argv) > 3: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True: pass
"""
# It sleeps until a moment and logs how late it came back. Nobody is pushed aside for a thread of SCHED_BATCH when it
# wakes (kernel/sched/fair.c), but it has its share.
SLEEPER = """
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
go()
late, account = [], lambda: [int(n) for n in open("/proc/self/schedstat").read().split()]
before, end = account(), time.monotonic_ns() + 800_000_000
while time.monotonic_ns() < end:
    due = time.monotonic_ns() + 3_000_000
    time.sleep(0.003)
    late.append(time.monotonic_ns() - due)
after = account()
log(what="done", late=late, waited=after[1] - before[1], runs=after[2] - before[2])
sys.stdin.readline()
"""


class Account(NamedTuple):
    """/proc/PID/schedstat: ns on a CPU, ns waiting for one, how often it got one."""

    run: int
    wait: int
    runs: int


def account(pid: int) -> Account:
    return Account(*map(int, Path(f"/proc/{pid}/schedstat").read_text().split()))


@pytest.fixture
def cpu() -> Iterator[int]:
    """The last CPU, for the programs; we stay on the others."""
    before = os.sched_getaffinity(0)
    last = max(before)
    if len(before) > 1:
        os.sched_setaffinity(0, before - {last})
    yield last
    os.sched_setaffinity(0, before)


def session(*pids: int, **config: Any) -> KernelSession:
    targets = frozenset(pids) or None
    return kernel_session(targets=targets, syscalls=False, switches=False, run_queue=True, **config)


def of(seen: RunQueue | None, pid: int) -> QueueTotal:
    assert seen is not None
    (total,) = [total for total in seen.totals if total.tid == pid]
    return total


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_a_sleeper_beside_a_burner_waits_as_long_as_it_was_late(cpu: int, variants: dict[str, bool]) -> None:
    with ExitStack() as stack:
        stack.enter_context(child(BURNER, str(cpu), "0"))
        sleeper = stack.enter_context(child(SLEEPER, str(cpu)))
        with session(sleeper.pid, variants=variants) as watch:
            sleeper.go()
            done = sleeper.until("done")[-1]
            seen = watch.read()
    assert seen.lost == {}
    assert seen.seen["self_waits"] > 0
    total = of(seen.run_queue, sleeper.pid)
    late = sum(done["late"])
    assert late > 20 * MS, "the burner did not get in its way"
    # all it was late it waited, but for the timer's own lateness
    assert total.total_ns >= 0.8 * late
    assert total.max_ns >= 0.8 * max(done["late"]) - MS
    # and the scheduler's own account of the same time agrees: beyond it only how it started and ended
    assert done["waited"] * 0.95 - MS <= total.total_ns <= done["waited"] * 1.05 + 60 * MS
    assert done["runs"] <= total.count <= 1.2 * done["runs"] + 10
    assert seen.run_queue is not None
    assert {slot.tgid for slot in seen.run_queue.slots} == {sleeper.pid}
    assert sum(slot.count for slot in seen.run_queue.slots) == total.count


def test_a_thread_that_is_never_let_run_waits_the_whole_window(cpu: int) -> None:
    with ExitStack() as stack:
        starved = stack.enter_context(child(BURNER, str(cpu), "0", "idle"))
        stack.enter_context(child(BURNER, str(cpu), "-20"))  # the first to go: the other needs a CPU to end
        _until_starved(starved)
        before = account(starved.pid)
        watch = stack.enter_context(session(starved.pid))
        time.sleep(0.3)
        seen = watch.read()
        after = account(starved.pid)
    total = of(seen.run_queue, starved.pid)
    window = seen.window_end - seen.window_start
    assert seen.lost == {}
    if before.runs == after.runs:  # as a rule: its share beside the other is one in ten thousand
        assert total.count == 1
        assert total.total_ns >= 0.99 * window
    assert window >= total.total_ns >= window - (after.run - before.run) - 5 * MS


def _until_starved(starved: Child) -> None:
    """A thread that just woke is let run once; after that it has had more than its share for long."""
    for _ in range(30):
        before = account(starved.pid)
        time.sleep(0.1)
        if account(starved.pid).runs == before.runs:
            return


TALKER = """
log(what="ready")
reader, writer = os.pipe()
other = os.fork()
if not other:
    os.close(writer)
    while os.read(reader, 1): pass
    os._exit(0)
log(what="other", pid=other)
sys.stdin.readline()
for i in range(300):
    os.write(writer, b"x")
    time.sleep(0.0005)
log(what="done"); sys.stdin.readline()
"""


def test_whom_a_target_wakes_is_not_a_target() -> None:
    with child(TALKER) as talker:
        talker.until("other")
        with session(talker.pid) as watch:
            talker.go()
            talker.until("done")
            mine = watch.read()
    assert mine.run_queue is not None
    assert {total.tgid for total in mine.run_queue.totals} == {talker.pid}
    with child(TALKER) as talker:
        other = talker.until("other")[-1]["pid"]
        before = account(other).runs
        with session(other) as watch:
            talker.go()
            talker.until("done")
            theirs = watch.read()
        runs = account(other).runs - before
    assert theirs.lost == {}
    assert of(theirs.run_queue, other).count == pytest.approx(runs, abs=2)
    assert runs > 100


@pytest.mark.parametrize("engine", [EbpfEngine, ProcfsEngine])
def test_both_engines_accuse_the_same_thread(
    cpu: int, engine: type[EbpfEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    with ExitStack() as stack:
        burner = stack.enter_context(child(BURNER, str(cpu), "0"))
        stack.enter_context(child(BURNER, str(cpu), "0"))
        target = resolve(TargetParams(pid=burner.pid))
        recording = anyio.run(lambda: observe([Need("run_queue")], target, 1.0, [engine]))
    (found,) = runqlat.judge(recording, runqlat.Params()).findings
    assert (found.polarity, found.subject.tid) == (Polarity.ABNORMAL, burner.pid)
    assert 25 <= found.metrics["window_pct"] <= 100  # two of them share one CPU
    assert found.kind == ("sched.queue_latency" if engine is EbpfEngine else "sched.runqueue_delay")
    assert recording.manifest.collectors["run_queue"].proven
