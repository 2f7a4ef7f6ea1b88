"""The whole investigation on recordings made by hand: what it accuses, and whom it leaves in peace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from recordings import COMM, PID, Scene, checkpoints
from solving import new_case, solve

from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict
from whystall.tools.contract.findings import Polarity, Severity

BACKGROUND, HELPER = PID + 1, PID + 2
CONFIRMED, LIKELY, OPEN, HEALTHY = Verdict.CONFIRMED, Verdict.LIKELY, Verdict.INCONCLUSIVE, Verdict.HEALTHY


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def investigate(scene: Scene, symptom: str = "slow", **build: Any) -> Diagnosis:
    return solve(RecordedObserver(scene.build(**build)), symptom)


def state(found: Diagnosis, cause: str) -> CauseState:
    return next(a.state for a in found.assessments if a.cause == cause)


# --- what stalls a job --------------------------------------------------------------------------------------


def sync_checkpoint() -> Scene:
    return checkpoints(Scene().thread(user=65, system=2, blocked=30).disk("loop7", busy=99, await_ms=200))


def background_checkpoint() -> Scene:
    scene = Scene().thread(user=93, system=2).thread(BACKGROUND, "writer", system=3, blocked=60)
    return checkpoints(scene.disk("loop7", busy=99, await_ms=200), tid=BACKGROUND, ms=1800)


def getrandom() -> Scene:
    scene = Scene().thread(user=55, system=40)
    for second in range(12):
        scene.call(second + 0.2, 380, "getrandom", waits=0)
    return checkpoints(scene, ms=12)


def throttled() -> Scene:
    scene = Scene().thread(user=40, runnable=58).cgroup(throttled=57, quota=0.4)
    for tenth in range(120):
        scene.wait(tenth / 10 + 0.04, 57, "", state="R")
    return scene


def contended_cpu() -> Scene:
    scene = Scene().thread(user=50, runnable=48).process(PID, COMM, cpu=50).process(77, "stress", cpu=100)
    scene.host(target_cpu_busy_ns=(0, 2.0 * scene.window_ns), runnable=(4, 4), psi_cpu_some_us=(0, 8e6))
    for tenth in range(120):
        scene.wait(tenth / 10, 47, "", state="R")
    return scene


def lock_fight() -> Scene:
    scene = Scene().thread(user=50).thread(HELPER, "helper", user=60)
    for second in range(12):
        scene.wait(second, 450, "futex", lock=64, waker=(PID, HELPER, "helper"))
        scene.wait(second + 0.46, 300, "futex", lock=64, waker=(PID, PID, COMM), tid=HELPER)
    return scene


def reclaim() -> Scene:
    scene = Scene().thread(user=40, system=25, blocked=30).cgroup(full=True, hits=4000)
    scene.host(psi_memory_some_us=(0, 4e6), vm_pgscan_direct=(0, 1e6))
    stack = ("__schedule", "shrink_folio_list", "try_to_free_mem_cgroup_pages", "try_charge_memcg", "exc_page_fault")
    for second in range(12):
        scene.wait(second, 300, "", state="D", stack=stack)
    return scene


def metadata() -> Scene:
    scene = Scene().thread(user=50, blocked=40)
    for number in range(20):
        scene.call(number / 2, 200, "newfstatat", f"/nfs/data/{number}.jpg", stack=("nfs_wait_bit_killable",))
    return scene


def slow_reads() -> Scene:
    scene = Scene().thread(user=50, blocked=40)
    for number in range(20):
        scene.call(number / 2, 200, "pread64", f"/nfs/data/shard_{number}.tar", size=1 << 20)
    return scene


def fsync_storm() -> Scene:
    """Every sync is far below the threshold of a slow call."""
    scene = Scene().thread(user=40, system=5, blocked=50)
    return scene.call(0.5, 4, "fsync", "/data/run7/metrics.sqlite-wal", count=1500)


def lock_behind_a_slow_file() -> Scene:
    """A logger syncs while it holds the lock the training thread wants."""
    scene = Scene().thread(user=55, system=1).thread(HELPER, "logger", user=30, blocked=40)
    for second in range(12):
        scene.call(second + 0.1, 400, "fsync", "/data/run7/train.log", tid=HELPER)
        scene.wait(second + 0.1, 400, "fsync", "/data/run7/train.log", tid=HELPER, state="D")
        scene.wait(second + 0.12, 390, "futex", lock=64, waker=(PID, HELPER, "logger"))
    return scene


@pytest.mark.parametrize(
    ("scene", "verdict", "cause", "ruled_out"),
    [
        (sync_checkpoint, CONFIRMED, "sync_checkpoint_write", {"kernel_cpu_in_syscall", "cpu_contention", "lock_wait"}),
        (getrandom, CONFIRMED, "kernel_cpu_in_syscall", {"sync_checkpoint_write", "slow_device", "cpu_contention"}),
        (throttled, CONFIRMED, "cgroup_cpu_throttling", {"sync_checkpoint_write", "slow_device"}),
        (contended_cpu, CONFIRMED, "cpu_contention", {"sync_checkpoint_write", "slow_device", "memory_reclaim"}),
        (lock_fight, CONFIRMED, "lock_held_computing", {"sync_checkpoint_write", "slow_device"}),
        (reclaim, CONFIRMED, "memory_reclaim", {"sync_checkpoint_write", "cpu_contention"}),
        (metadata, CONFIRMED, "metadata_stall", {"sync_checkpoint_write", "cpu_contention", "slow_file_read"}),
        (slow_reads, CONFIRMED, "slow_file_read", {"sync_checkpoint_write", "cpu_contention", "metadata_stall"}),
        (fsync_storm, CONFIRMED, "fsync_storm", {"cpu_contention", "slow_file_read"}),
    ],
)
def test_a_stall_is_named(scene: Callable[[], Scene], verdict: Verdict, cause: str, ruled_out: set[str]) -> None:
    found = investigate(scene())
    assert (found.verdict, found.cause) == (verdict, cause), found.missing
    assert {c for c in ruled_out if state(found, c) is not CauseState.RULED_OUT} == set()
    assert found.victim is not None
    assert (found.victim.tid, found.severity.rank >= Severity.MAJOR.rank) == (PID, True)
    by_id = {f.id: f for f in found.findings}
    assert found.chain
    assert all(by_id[i].polarity is Polarity.ABNORMAL for i in found.chain)
    assert all(i in by_id for step in found.steps for i in step.findings)


def test_the_culprit_of_a_checkpoint_is_complete() -> None:
    culprit = investigate(sync_checkpoint()).culprit
    assert culprit is not None
    assert (culprit.pid, culprit.tid, culprit.comm, culprit.syscall) == (PID, PID, COMM, "fsync")
    assert culprit.series == "/data/run7/chk_*.bin"
    assert culprit.path is not None
    assert culprit.path.startswith("/data/run7/chk_0001")
    assert culprit.latency_ms == pytest.approx(920)  # write and sync are one episode
    assert culprit.period_s == pytest.approx(3.0)
    assert culprit.count == 4
    assert "ext4_sync_file" in str(culprit.kernel_path)


def test_kernel_time_names_the_system_call_and_no_file() -> None:
    culprit = investigate(getrandom()).culprit
    assert culprit is not None
    assert (culprit.syscall, culprit.path, culprit.device) == ("getrandom", None, None)
    assert culprit.latency_ms == pytest.approx(380)


def test_a_wait_is_followed_to_the_thread_that_is_held_up() -> None:
    found = investigate(lock_behind_a_slow_file())
    assert (found.verdict, found.cause) == (CONFIRMED, "fsync_storm"), found.missing
    assert found.culprit is not None
    assert (found.culprit.tid, found.culprit.path) == (HELPER, "/data/run7/train.log")
    assert found.victim is not None
    assert found.victim.tid == PID
    own = {f.id for f in found.findings if f.subject.tid == PID and f.kind == "path.wait"}
    assert own & set(found.chain), "the chain starts at the victim's own wait"


# --- a busy but healthy host --------------------------------------------------------------------------------


def busy() -> Scene:
    return Scene().thread(user=95, system=3)


def idle_pool() -> Scene:
    scene = busy()
    for tid in range(PID + 10, PID + 74):
        scene.thread(tid, "pool").wait(0, 12_000, "futex", tid=tid, lock=tid, still=True, seeded=True)
    return scene


def dispatched_pool() -> Scene:
    """Workers that wait for work on one condition, woken by the main thread."""
    scene = busy()
    for tid in range(PID + 10, PID + 18):
        scene.thread(tid, "pool", user=10)
        for second in range(12):
            scene.wait(second, 900, "futex", tid=tid, lock=64, waker=(PID, PID, COMM))
    return scene


def neighbours_disk() -> Scene:
    scene = busy().disk("sdb", busy=100, await_ms=400).requests("sdb", "write", 400, 500)
    return scene.call(1, 20, "fsync", "/data/train.log")


def neighbours_cpu() -> Scene:
    scene = Scene().thread(user=91, runnable=6).process(PID, COMM, cpu=91).process(77, "stress", cpu=100)
    scene.host(target_cpu_busy_ns=(0, 2.0 * scene.window_ns), runnable=(3, 3))
    for tenth in range(120):
        scene.wait(tenth / 10, 6, "", state="R")
    return scene


def neighbours_memory() -> Scene:
    scene = Scene().thread(user=80, system=8).host(psi_memory_some_us=(0, 3e6), vm_pgscan_direct=(0, 1e7))
    return scene.host(vm_pswpin=(0, 1e5), vm_pswpout=(0, 1e6))


def tiny_loss() -> Scene:
    """Many short waits of every sort, none of which a user would notice."""
    scene = Scene().thread(user=92, system=2, runnable=2, blocked=2)
    scene.call(1, 30, "fsync", "/data/train.log").call(5, 40, "openat", "/data/x.py").wait(7, 200, "futex", lock=9)
    return scene.call(11.99, 10, "fsync", "/data/train.log", in_flight=True)


def background_wakes_main() -> Scene:
    """The writer of checkpoints also ends waits of the training thread, but never while it is itself blocked."""
    scene = background_checkpoint()
    for second in range(12):
        scene.wait(second + 0.85, 120, "futex", lock=99, waker=(PID, BACKGROUND, "writer"))
    return scene


def timer_wakes_main() -> Scene:
    """A paced loop sleeps; its timer goes off in an interrupt of the writer."""
    scene = Scene().thread(user=60).thread(BACKGROUND, "writer", system=3, blocked=60)
    for second in range(12):
        scene.wait(second, 380, "clock_nanosleep", waker=(PID, BACKGROUND, "writer"))
    return checkpoints(scene, tid=BACKGROUND, ms=1800)


def spinning() -> Scene:
    """A BLAS thread spins until its colleagues are done."""
    scene = Scene().thread(user=70, system=28)
    return scene.call(0, 0.002, "sched_yield", waits=0, count=1_600_000)


def launcher() -> Scene:
    """The main thread only waits for its worker and writes a slow log line now and then."""
    scene = Scene().thread(blocked=3).thread(HELPER, "worker", user=96)
    scene.wait(0, 11_500, "futex", lock=5, still=True)
    return scene.call(3, 300, "fsync", "/data/launcher.log")


def slow_helper() -> Scene:
    """No main thread carries this job; a helper writes slowly beside the worker that computes."""
    scene = Scene().thread().thread(HELPER, "worker", user=93, system=2)
    scene.thread(BACKGROUND, "writer", user=1, system=25, blocked=60)
    return checkpoints(scene, tid=BACKGROUND, ms=1800)


@pytest.mark.parametrize(
    "scene",
    [
        busy,
        idle_pool,
        dispatched_pool,
        background_checkpoint,
        neighbours_disk,
        neighbours_cpu,
        tiny_loss,
        spinning,
        launcher,
        slow_helper,
        neighbours_memory,
    ],
)
@pytest.mark.thorough
def test_a_busy_host_is_healthy(scene: Callable[[], Scene]) -> None:
    found = investigate(scene(), "is anything wrong?")
    assert (found.verdict, found.cause, found.missing) == (HEALTHY, None, [])
    assert (found.culprit, found.chain, found.severity) == (None, [], Severity.INFO)


def test_slow_background_writes_are_seen_and_not_blamed() -> None:
    found = investigate(background_checkpoint())
    slow = [f for f in found.findings if f.kind == "file.slow_sync" and f.polarity is Polarity.ABNORMAL]
    assert [f.subject.tid for f in slow] == [BACKGROUND]
    assert state(found, "sync_checkpoint_write") is not CauseState.SUPPORTED


def test_a_background_writer_is_not_blamed_for_waits_it_did_not_block_in() -> None:
    found = investigate(background_wakes_main())
    assert found.cause is None
    assert found.verdict in (HEALTHY, OPEN)


# --- what cannot be told -----------------------------------------------------------------------------------


def idle_server() -> Scene:
    scene = Scene().thread()
    scene.wait(0, 12_000, "epoll_wait", still=True, seeded=True)
    for tid in range(PID + 10, PID + 26):
        scene.thread(tid, "pool").wait(0, 12_000, "futex", tid=tid, lock=64, still=True, seeded=True)
    return scene


def deadlock() -> Scene:
    return Scene().thread().wait(0, 12_000, "futex", lock=64, still=True, seeded=True)


def kernel_time_without_a_call() -> Scene:
    """Page faults, say: no system call holds the time."""
    return Scene().thread(user=60, system=35)


def kernel_time_beside_a_neighbours_reclaim() -> Scene:
    scene = Scene().thread(user=80, system=15)
    return scene.host(psi_memory_some_us=(0, 4e5), vm_pgscan_direct=(0, 1e7), vm_pswpin=(0, 1e5))


def waits_for_a_busy_colleague() -> Scene:
    scene = Scene().thread(user=60).thread(HELPER, "loader", user=40)
    for second in range(12):
        scene.wait(second, 380, "futex", lock=64, waker=(PID, HELPER, "loader"))
    return scene


@pytest.mark.parametrize(
    ("scene", "missing"),
    [
        (idle_server, {"idle_unexplained"}),
        (deadlock, {"idle_unexplained", "waits_for_thread"}),
        (kernel_time_without_a_call, {"unexplained_loss"}),
        (kernel_time_beside_a_neighbours_reclaim, {"unexplained_loss"}),
        (waits_for_a_busy_colleague, {"unexplained_loss", "awaited_unexplained"}),
        (timer_wakes_main, {"unexplained_loss"}),
    ],
)
def test_what_cannot_be_told_is_neither_blamed_nor_called_healthy(
    scene: Callable[[], Scene], missing: set[str]
) -> None:
    found = investigate(scene())
    assert (found.verdict, found.cause, set(found.missing)) == (OPEN, None, missing)


def test_a_hang_in_an_operation_is_named() -> None:
    scene = Scene().thread(blocked=100).call(0, 12_000, "fsync", "/nfs/run/chk_5.bin", in_flight=True, size=1 << 26)
    found = investigate(scene)
    assert found.victim is not None
    assert (found.victim.chosen_by, found.victim.lost_pct) == ("stuck_thread", pytest.approx(100))
    assert found.culprit is None or found.culprit.path == "/nfs/run/chk_5.bin"
    assert found.verdict is not HEALTHY


def test_a_slow_disk_of_others_confirms_nothing() -> None:
    """The thread waits in state D for something; a disk is slow; nothing ties the one to the other."""
    scene = Scene().thread(user=70, blocked=30).disk("sdb", busy=100, await_ms=300).requests("sdb", "read", 300, 90)
    for second in range(12):
        scene.wait(second, 300, "", state="D", stack=("__schedule", "rwsem_down_read_slowpath", "do_user_addr_fault"))
    found = investigate(scene)
    assert found.verdict in (LIKELY, OPEN)
    assert "not_tied" in found.missing
    assert found.culprit is not None
    assert found.culprit.device is None, "that disk was not seen to be this thread's"


def test_a_quota_that_hardly_binds_is_not_blamed_for_contention() -> None:
    scene = contended_cpu().cgroup(throttled=1.5, quota=1.9)
    found = investigate(scene)
    assert found.cause == "cpu_contention"


@pytest.mark.parametrize(
    ("build", "code"),
    [
        ({"lost": {"syscalls": 3}}, "events_lost"),
        ({"without": ["switches", "block"]}, "rivals_open"),
        ({"unproven": ["syscalls"]}, "rivals_open"),
    ],
)
def test_less_sight_is_a_lower_verdict(build: dict[str, Any], code: str) -> None:
    found = investigate(sync_checkpoint(), **build)
    assert (found.verdict, found.cause) == (LIKELY, "sync_checkpoint_write")
    assert code in found.missing


def test_counters_alone_clear_nobody_who_loses_time() -> None:
    found = investigate(Scene().thread(user=60, blocked=38), without=["syscalls", "switches", "block"])
    assert (found.verdict, found.cause) == (OPEN, None)
    assert {"unexplained_loss", "rivals_open"} <= set(found.missing)


def test_without_an_account_of_threads_there_is_no_victim() -> None:
    found = investigate(checkpoints(Scene()))
    assert found.victim is None
    assert (found.verdict, "no_victim" in found.missing) == (OPEN, True)


def test_a_redacted_recording_gives_the_same_diagnosis() -> None:
    from whystall.tools.recording.redact import redact

    recording = sync_checkpoint().build()
    found = [solve(RecordedObserver(seen), "") for seen in (recording, redact(recording))]
    plain, hidden = found
    assert (hidden.verdict, hidden.cause, hidden.explained_pct) == (plain.verdict, plain.cause, plain.explained_pct)
    assert [(f.kind, f.polarity, f.metrics) for f in hidden.findings] == [
        (f.kind, f.polarity, f.metrics) for f in plain.findings
    ]


def test_what_two_tools_report_alike_is_one_finding() -> None:
    scene = Scene().thread(user=60)
    kill = {"pid": 77, "comm": "hog", "cgroup": "/job", "limit_cgroup": "/job", "anon_bytes": 1 << 30, "source": "log"}
    scene.tables["memory_use.oom_kills"] = [{"at_ns": 1_000_000_000, **kill}]
    case = new_case(RecordedObserver(scene.build()), "slow")
    tools = ["host_snapshot", "memory_growth"]
    results = anyio.run(lambda: case.observe(tools, 12, "first_look"))
    reported = [f.id for result in results for f in result.findings if f.kind == "memory.oom_kill"]
    assert len(reported) == 2
    assert len(set(reported)) == 1
    assert [f.id for f in case.findings if f.kind == "memory.oom_kill"] == reported[:1]
    (step,) = case.steps
    assert len(step.findings) == len(set(step.findings)) == len(case.findings)
