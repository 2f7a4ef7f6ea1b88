"""lock_wait and python_stacks on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import COMM, PID, Scene

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host import offcputime, python_stacks
from whystall.tools.host.lock_wait import tool as lock_wait

WAITER, HOLDER, THIRD = PID, PID + 1, PID + 2
WORD, GIL = 0x5000, 0x9000
USES, HOLDS = ("sem_wait", "use (job.py:10)", "main (job.py:30)"), ("clock_nanosleep", "hold (job.py:6)")
GETS = (
    "sem_wait",
    "Condition.wait (python3.11/threading.py:320)",
    "Queue.get (python3.11/queue.py:171)",
    "eat (job.py:9)",
)
SECONDS = 10


def waited(by: int = HOLDER, user: tuple[str, ...] = USES, ms: float = 800, word: int = WORD) -> Scene:
    """`WAITER` waits each second until `by` wakes it, which sleeps meanwhile."""
    scene = Scene(window_s=SECONDS).thread(WAITER).thread(by, "holder")
    for second in range(SECONDS):
        waker = (PID, by, "holder")
        scene.wait(second, ms, "futex", lock=word, waker=waker, user=user, context="task")
        scene.wait(second, ms - 20, "clock_nanosleep", tid=by, user=HOLDS)
    return scene


def thread(scene: Scene, tid: int, frame: str = "", *, comm: str = COMM, pid: int = PID, **row: Any) -> Scene:
    stack = scene.stack((frame, "main (job.py:30)") if frame else (), kernel=False)
    defaults = {"state": "S", "syscall": "futex", "tracer_pid": 0}
    return scene.seen("threads", pid=pid, tid=tid, comm=comm, pystack=stack, **(defaults | row))


def locks(scene: Scene, **build: Any) -> Judgement[lock_wait.Data]:
    return lock_wait.judge(scene.build(**build), lock_wait.Params(pid=PID, top=50))


def stacks(scene: Scene) -> Judgement[python_stacks.Data]:
    return python_stacks.judge(scene.build(), python_stacks.Params(pid=PID, top=50))


def bad(findings: list[Finding]) -> dict[str, Finding]:
    return {f.kind: f for f in findings if f.polarity is Polarity.ABNORMAL}


def test_one_holder_and_one_waiter_by_the_owner_in_memory() -> None:
    scene = thread(waited(), WAITER, "use (job.py:10)", lock=WORD, lock_kind="python", owner_tid=HOLDER)
    thread(scene, HOLDER, "hold (job.py:6)", comm="holder", syscall="clock_nanosleep")
    scene.wait(SECONDS - 0.1, 100, "futex", lock=WORD, user=USES, still=True)
    result = locks(scene)
    found = bad(result.findings)
    assert found.keys() == {"lock.wait", "lock.held"}
    words = found["lock.wait"].attributes
    assert (words["holder"], words["holder_code"], words["holder_doing"]) == (
        "holder (4001)",
        "hold (job.py:6)",
        "sleep",
    )
    assert (words["code"], words["evidence"]) == ("use (job.py:10)", "memory")
    assert found["lock.wait"].metrics["window_pct"] == pytest.approx(81)
    assert result.data.rows[0].holder_pct == pytest.approx(100 * 80 / 81)


@pytest.mark.parametrize(
    ("scene", "kind", "evidence"),
    [
        (waited(user=GETS), "queue", "function"),
        (waited(user=("gomp_team_barrier_wait_end", "loss (job.py:3)")), "barrier", "function"),
        (waited(user=("___pthread_mutex_lock", "call (job.py:4)")), "lock", "function"),
        (waited(), "unknown", "program_line"),  # a lock, or a queue of C
        (
            waited().wait(0.9, 50, "futex", tid=HOLDER, lock=WORD, waker=(PID, WAITER, COMM), user=USES),
            "lock",
            "passes",
        ),
    ],
)
def test_the_kind_of_object_follows_from_the_evidence(scene: Scene, kind: str, evidence: str) -> None:
    result = locks(thread(scene, WAITER))
    assert (result.data.rows[0].kind, result.data.rows[0].evidence) == (kind, evidence)
    assert ("lock.wait" in bad(result.findings)) is (kind == "lock")
    normal = [f.kind for f in result.findings if f.polarity is Polarity.NORMAL]
    assert ("lock.wait" in normal) is (kind in ("queue", "barrier"))


def test_offcputime_follows_the_evidence() -> None:
    """A lock with one holder is contended; a wait that may be for one rules nothing out."""
    known = thread(waited(), WAITER, lock=WORD, lock_kind="python", owner_tid=HOLDER)
    for scene, kinds in ((known, {"offcpu.lock_wait"}), (thread(waited(), WAITER), set())):
        findings = offcputime.judge(scene.build(), offcputime.Params()).findings
        assert bad(findings).keys() == kinds
        normal = {f.kind for f in findings if f.polarity is Polarity.NORMAL and f.subject.tid is None}
        assert "offcpu.lock_wait" not in normal


@pytest.mark.parametrize(
    ("user", "lock"),
    [
        (("pthread_cond_timedwait", "take_gil", "use (job.py:10)"), "interpreter"),
        (("pthread_mutex_lock",), "contended"),
    ],
)
def test_offcputime_tells_the_interpreter_lock_from_others(user: tuple[str, ...], lock: str) -> None:
    scene = thread(waited(user=user), WAITER)
    findings = offcputime.judge(scene.build(), offcputime.Params()).findings
    assert bad(findings)["offcpu.lock_wait"].attributes["lock"] == lock


def test_offcputime_separates_a_lock_from_the_interpreter_lock_of_the_same_thread() -> None:
    scene = thread(waited(ms=300), WAITER, lock=WORD, lock_kind="python", owner_tid=HOLDER)
    user = ("pthread_cond_timedwait", "take_gil", "compute (job.py:12)")
    for second in range(SECONDS):
        scene.wait(second + 0.5, 400, "futex", lock=GIL, waker=(PID, HOLDER, "holder"), user=user, context="task")
    findings = offcputime.judge(scene.build(), offcputime.Params()).findings
    waits = [f for f in findings if f.kind == "offcpu.lock_wait" and f.subject.tid == WAITER]
    found = {f.attributes["lock"]: (f.attributes["code"], round(f.window_pct)) for f in waits}
    assert found == {"contended": ("use (job.py:10)", 30), "interpreter": ("compute (job.py:12)", 40)}


def test_each_threads_share_of_the_interpreter_lock() -> None:
    """Two threads take turns of 50 ms; a wait for the lock times out every 5 ms."""
    scene = Scene(window_s=SECONDS).thread(WAITER).thread(HOLDER, "holder")
    for turn in range(SECONDS * 10):
        waiter, holder = (WAITER, HOLDER) if turn % 2 else (HOLDER, WAITER)
        for part in range(10):
            waker = (PID, holder, "x") if part == 9 else (0, 0, "")
            context = "task" if part == 9 else "timer"
            begin = turn * 0.1 + part * 0.005
            word = GIL + 4 * (part % 2)
            scene.wait(begin, 4.9, "futex", tid=waiter, lock=word, waker=waker, context=context, user=USES)
    for word in (GIL, GIL + 4):
        scene.seen("interpreters", pid=PID, version="3.11", word=word, holder_tid=HOLDER)
    result = locks(scene)
    held = {row.tid: row.held_pct for row in result.data.interpreters}
    assert held == {WAITER: pytest.approx(25, abs=1), HOLDER: pytest.approx(25, abs=1)}
    finding = bad(result.findings)["lock.interpreter"]
    assert finding.metrics["held_pct"] == pytest.approx(25, abs=1)
    assert [row.kind for row in result.data.rows] == ["interpreter"]


def test_the_interpreter_lock_is_held_by_who_keeps_the_longest_waiter_waiting() -> None:
    """When the window ends, the waiter has the lock for a moment, and the thread that had it before waits."""
    scene = Scene(window_s=SECONDS).thread(WAITER).thread(HOLDER, "holder")
    for second in range(SECONDS):
        for begin, ms, waiter, by in ((0.0, 800, WAITER, HOLDER), (0.85, 50, HOLDER, WAITER)):
            waker = (PID, by, "x")
            scene.wait(second + begin, ms, "futex", tid=waiter, lock=GIL, waker=waker, context="task", user=USES)
    scene.wait(SECONDS - 0.05, 50, "futex", tid=HOLDER, lock=GIL, user=USES, still=True)
    thread(scene, HOLDER, "use (job.py:10)", comm="holder", lock=GIL, owner_tid=WAITER)
    scene.seen("interpreters", pid=PID, version="3.11", word=GIL, holder_tid=WAITER)
    found = bad(locks(scene).findings)["lock.interpreter"]
    assert (found.subject.tid, found.attributes["holder"]) == (WAITER, f"holder ({HOLDER})")


def test_a_file_lock_names_the_process_that_has_it() -> None:
    scene = Scene(window_s=SECONDS).thread(WAITER)
    scene.wait(1, 9000, "flock", "/data/index.lock", user=("flock", "index (job.py:3)"), still=True)
    scene.seen("file_locks", looks="end", kind="flock", pid=PID, waits=True, holder_pid=900, path="/data/index.lock")
    thread(scene, 900, "rebuild (other.py:8)", pid=900, comm="indexer", syscall="clock_nanosleep")
    found = bad(locks(scene).findings)
    assert found["lock.file"].subject.path == "/data/index.lock"
    assert found["lock.file"].attributes["holder"] == "indexer (900)"
    assert found["lock.held"].attributes["holder_code"] == "rebuild (other.py:8)"


JOINS = "Thread.join (python3.11/threading.py:1112)"


def stuck(*waits: tuple[int, int, str, int | None], main: str = JOINS) -> Scene:
    """Threads that wait at both readings: thread, word, kind of lock, owner."""
    scene = Scene(window_s=1)
    thread(scene, PID, main, lock=0x1, syscall="futex" if main == JOINS else "clock_nanosleep")
    for tid, word, kind, owner in waits:
        thread(scene, tid, f"work{tid} (job.py:5)", lock=word, lock_kind=kind, owner_tid=owner or -1)
    return scene


def test_a_waiter_that_gets_the_lock_while_owners_are_read_is_in_no_deadlock() -> None:
    scene = stuck((HOLDER, 1, "python", HOLDER))
    scene.wait(0.1, 300, "futex", tid=HOLDER, lock=1, waker=(PID, THIRD, "x"), context="task", user=USES)
    scene.wait(0.7, 300, "futex", tid=HOLDER, lock=1, user=USES, still=True)
    assert "lock.deadlock" not in bad(stacks(scene).findings)


@pytest.mark.parametrize(
    ("scene", "proof", "threads"),
    [
        (stuck((HOLDER, 1, "mutex", THIRD), (THIRD, 2, "python", HOLDER)), "cycle", 2),
        (stuck((HOLDER, 1, "python", HOLDER)), "itself", 1),  # a lock that is not reentrant
        (stuck((HOLDER, 1, "mutex", 777)), "dead_owner", 1),
        (stuck((HOLDER, 1, "abandoned", None)), "dead_owner", 1),
        (stuck((HOLDER, 1, "", None), (THIRD, 2, "", None)), "no_owner_kept", 2),
    ],
)
def test_deadlocks(scene: Scene, proof: str, threads: int) -> None:
    finding = bad(stacks(scene).findings)["lock.deadlock"]
    assert (finding.attributes["proof"], finding.metrics["threads"]) == (proof, threads)
    assert f"{COMM} ({HOLDER}) at work{HOLDER} (job.py:5)" in finding.attributes["cycle"]


@pytest.mark.parametrize(
    "scene",
    [
        stuck((HOLDER, 1, "mutex", PID)),  # the owner waits for a thread to end
        stuck((HOLDER, 1, "", None), (THIRD, 2, "", None), main="sleep (job.py:9)"),  # who may release one
        stuck((HOLDER, 1, "mutex", THIRD), (THIRD, 0, "", None)),
    ],
)
def test_no_deadlock(scene: Scene) -> None:
    assert bad(stacks(scene).findings) == {}


def test_equal_stacks_are_merged_with_the_holder_of_what_they_wait_for() -> None:
    scene = Scene(window_s=1)
    for tid in (WAITER, HOLDER):
        thread(scene, tid, "recv (job.py:7)", syscall="recvfrom", object="socket:[5]", comm="w")
    scene.seen("sockets", inode=5, peer=6, pid=PID, family="inet", protocol="tcp", state="established")
    scene.seen("sockets", inode=6, peer=5, pid=900, comm="srv", family="inet", protocol="tcp", state="established")
    thread(scene, 900, "answer (srv.py:3)", pid=900, comm="srv", state="R", syscall="", holds_gil=True)
    thread(scene, 901, pid=901, comm="gone", state="T", syscall="")
    result = stacks(scene)
    rows = {row.comm: row for row in result.data.rows}
    assert (rows["w"].threads, rows["w"].doing) == (2, "socket")
    assert rows["w"].whom == "srv (900) at answer (srv.py:3)"
    assert (rows["srv"].doing, rows["srv"].holds_interpreter_lock) == ("running", True)
    assert bad(result.findings)["process.stopped"].attributes == {"wait": "stopped"}
    assert "2 threads (4000, 4001) w: waiting: socket" in result.artifacts[0].text
