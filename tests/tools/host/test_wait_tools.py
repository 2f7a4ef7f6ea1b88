"""offcputime and biolatency on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import COMM, FSYNC_STACK, PID, Scene

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host import biolatency, offcputime

OTHER = PID + 1
SELF, PEER = (PID, PID, COMM), (PID, OTHER, "peer")


def waits(scene: Scene, **build: Any) -> Judgement[offcputime.Data]:
    return offcputime.judge(scene.build(**build), offcputime.Params(top=200))


def bad(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.polarity is Polarity.ABNORMAL]


def test_a_wait_on_a_file_names_it_its_call_and_the_kernel_path() -> None:
    scene = Scene()
    for number in range(4):
        scene.wait(number, 500, "fsync", f"/d/chk_{number}.bin", state="D", stack=FSYNC_STACK)
    (finding,) = bad(waits(scene).findings)
    assert (finding.kind, finding.subject.path) == ("offcpu.blocked", "/d/chk_*.bin")
    assert finding.attributes["syscall"] == "fsync"
    assert finding.attributes["state"] == "D"
    assert "ext4_sync_file" in finding.attributes["kernel_path"]
    assert finding.metrics["window_pct"] == pytest.approx(100 * 2 / 12)
    assert (finding.interval.start_ns, finding.interval.end_ns) == (0, 3_500_000_000)


@pytest.mark.parametrize(
    ("state", "syscall", "path", "kind", "abnormal"),
    [
        ("D", "fsync", "/d/x", "offcpu.blocked", True),
        ("D", "", "", "offcpu.blocked", True),  # a page fault
        ("S", "write", "/fuse/x", "offcpu.blocked", True),  # a file server lets its clients sleep
        ("S", "newfstatat", "", "offcpu.blocked", True),  # the same for a name
        ("S", "read", "", "offcpu.blocked", False),  # a pipe
        ("S", "clock_nanosleep", "", "offcpu.blocked", False),
        ("S", "epoll_wait", "", "offcpu.blocked", False),
        ("S", "futex", "", "offcpu.lock_wait", False),
        ("S", "flock", "/d/lock", "offcpu.lock_wait", True),
        ("R", "", "", "offcpu.preempted", True),
    ],
)
def test_waiting_for_work_is_no_stall(state: str, syscall: str, path: str, kind: str, abnormal: bool) -> None:
    findings = waits(Scene().wait(1, 3000, syscall, path, state=state)).findings
    (mine,) = [f for f in findings if f.subject.tid == PID]
    assert (mine.kind, mine.polarity is Polarity.ABNORMAL) == (kind, abnormal)
    others = {f.kind for f in findings if f.subject.tid is None}
    assert others == {"offcpu.blocked", "offcpu.lock_wait", "offcpu.preempted"} - ({kind} if abnormal else set())


def contended(mine: tuple[int, int, str], peers: tuple[int, int, str], lock: int = 64) -> Scene:
    scene = Scene()
    for second in range(12):
        scene.wait(second, 450, "futex", lock=64, waker=mine)
        scene.wait(second + 0.5, 300, "futex", lock=lock, waker=peers, tid=OTHER)
    return scene


@pytest.mark.parametrize(
    ("scene", "lock"),
    [
        (contended(PEER, SELF), True),
        (contended(PEER, SELF, lock=65), False),  # each waits elsewhere: work is handed to and fro
        (contended((0, 0, ""), (0, 0, "")), False),  # wakers were not recorded
        (contended((PID, 999, "main"), (PID, 999, "main")), False),  # woken by one who never waits there
        (contended(SELF, PEER), False),  # a time-out
    ],
)
def test_a_futex_is_a_lock_only_when_waiters_wake_each_other(scene: Scene, lock: bool) -> None:
    found = [f for f in waits(scene).findings if f.kind == "offcpu.lock_wait" and f.subject.tid is not None]
    assert {f.subject.tid for f in found} == {PID, OTHER}
    assert {f.polarity is Polarity.ABNORMAL for f in found} == {lock}
    assert {f.attributes.get("lock") for f in found} == {"contended" if lock else None}


def test_a_few_wake_ups_among_colleagues_make_no_lock() -> None:
    """Workers wait for work on one condition; now and then one of them brings some."""
    scene = contended((PID, 999, "main"), (PID, 999, "main"))
    scene.wait(0.46, 30, "futex", lock=64, waker=PEER).wait(1.46, 30, "futex", lock=64, waker=PEER)
    assert bad(waits(scene).findings) == []


def test_an_idle_pool_hides_nobody() -> None:
    scene = Scene()
    for tid in range(PID + 10, PID + 110):
        scene.wait(0, 12_000, "futex", tid=tid, lock=tid, still=True, seeded=True)
    scene.wait(1, 700, "fsync", "/d/x", state="D").wait(9, 3000, "read", "/d/y", state="D", still=True)
    result = waits(scene)
    assert [(f.subject.path, f.subject.tid) for f in bad(result.findings)] == [("/d/y", PID), ("/d/x", PID)]
    assert result.data.open[0].path == "/d/y"
    assert sum(o.whole_window for o in result.data.open) == 100
    assert result.totals["open"] == 101


def test_a_waker_tells_whether_it_was_held_up_itself() -> None:
    scene = Scene()
    scene.wait(1, 400, "futex", lock=1, waker=PEER).wait(2, 400, "futex", lock=1, waker=PEER)
    scene.wait(1.1, 200, "fsync", "/d/x", state="D", tid=OTHER)
    scene.wait(1.35, 100, "fsync", "/d/x", state="D", tid=OTHER)  # half of it after the wait has ended
    scene.wait(2, 400, "clock_nanosleep", tid=OTHER)  # no operation
    (waker,) = waits(scene).data.wakers
    assert (waker.tid, waker.waker_tid, waker.syscall, waker.count) == (PID, OTHER, "futex", 2)
    assert waker.total_ms == pytest.approx(800)
    assert waker.waker_blocked_ms == pytest.approx(250)


@pytest.mark.parametrize(
    ("syscall", "context", "waker_syscall", "named"),
    [
        ("clock_nanosleep", "timer", "", False),
        ("clock_nanosleep", "", "", False),  # recorded without the context
        ("clock_nanosleep", "signal", "kill", True),
        ("fsync", "block", "", False),
        ("fsync", "task", "", True),  # by the thread that commits the journal
        ("recvfrom", "network", "sendto", True),  # over loopback, inside the sender's call
        ("recvfrom", "network", "", False),  # from another host, on top of whoever ran
        ("sendto", "network", "recvfrom", True),  # the reader's acknowledgement
        ("recvfrom", "network", "recvfrom", False),
        ("read", "", "", True),
        ("flock", "", "", True),
    ],
)
def test_only_a_thread_that_ended_a_wait_is_its_waker(
    syscall: str, context: str, waker_syscall: str, named: bool
) -> None:
    """An interrupt runs on top of any thread, which has no part in the wait."""
    path = "/d/x" if syscall in ("fsync", "flock") else ""
    state = "D" if syscall == "fsync" else "S"
    more = {"context": context, "waker_syscall": waker_syscall}
    result = waits(Scene().wait(1, 3000, syscall, path, state=state, waker=PEER, **more))
    (found,) = [f for f in result.findings if f.subject.tid == PID]
    assert ("waker" in found.attributes) == bool(result.data.wakers) == named


def test_folded_stacks_are_one_line_each_whatever_the_names() -> None:
    scene = Scene().thread(PID, "a;b c", user=1).wait(1, 5, "fsync", "/d/x;y", state="D", stack=("inner", "outer"))
    (artifact,) = waits(scene).artifacts
    assert artifact.text == "a:b c;[fsync /d/x:y];outer;inner 5000\n"


@pytest.mark.parametrize(
    ("ms", "count", "queue_ms", "abnormal"),
    [(40, 90, 0.1, True), (1, 90, 60, True), (1, 900, 0.1, False), (900, 3, 0.1, False), (15, 500, 1, False)],
)
def test_slow_requests(ms: float, count: int, queue_ms: float, abnormal: bool) -> None:
    scene = Scene().requests("sda", "write", ms, count, queue_ms=queue_ms)
    result = biolatency.judge(scene.build(), biolatency.Params())
    (finding,) = result.findings
    assert (finding.polarity is Polarity.ABNORMAL) is abnormal
    assert (finding.subject.device, finding.attributes["operation"]) == ("sda", "write")
    (row,) = result.data.rows
    assert sum(b.count for b in row.device_histogram) == sum(b.count for b in row.queue_histogram) == count
    assert row.queue_pct == pytest.approx(100 * queue_ms / (ms + queue_ms))
    assert row.p50_ms is not None
    assert row.p50_ms <= row.max_ms == pytest.approx(ms + queue_ms)
