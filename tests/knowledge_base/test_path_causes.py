"""Causes that rows of the critical path support: each row leads to its own cause, tempting wrong ones stay silent."""

from __future__ import annotations

from typing import Literal

import pytest
from making import finding, victim

from whystall.agent_server.diagnosis.assess import assess
from whystall.agent_server.diagnosis.culprit import culprit
from whystall.agent_server.diagnosis.verdict import Conclusion, conclude
from whystall.knowledge_base.causes import considered_for, load_causes
from whystall.knowledge_base.models import CauseState, Verdict
from whystall.knowledge_base.tokens import concepts
from whystall.tools.contract.findings import Finding, Polarity

_RAN = sorted({tool for cause in load_causes().values() for tool in cause.examined_by})
SENDS = "Connection._send (python3.11/multiprocessing/connection.py:384)"
_NUMBERS = {"count": 40.0, "max_ms": 60.0, "total_ms": 4000.0, "p50_ms": 50.0}


def wait(code: str, pct: float = 40.0, /, *, id: str = "w", **more: str | float) -> Finding:
    words = {name: value for name, value in more.items() if isinstance(value, str)}
    numbers = {name: value for name, value in more.items() if isinstance(value, float)}
    if "root_pct" in numbers:  # its process did at least that
        numbers.setdefault("root_by_pct", numbers["root_pct"])
    kind = "path.running" if code == "running" else "path.wait"
    texts = words if code == "running" else {"wait": code, "open": "no", **words}
    return finding(kind, id=id, words=texts, window_pct=pct, **{**_NUMBERS, **numbers})


def work(pct: float, **more: float) -> Finding:
    """A function of the program that computes, as healthy programs do."""
    words = {"mode": "user", "function": "f (a.py:1)"}
    return finding("path.running", id="w1", words=words, polarity="normal", window_pct=pct, **more)


def hung(code: str, /, **more: str) -> Finding:
    return wait(code, 100.0, open="yes", max_ms=10_000.0, total_ms=10_000.0, count=1.0, **more)


# A worker of a server waits for the thread that waits for the next request of a client.
_REQUEST = "python (9 of 8) events at accept (serve.py:4) < client (99) sleep at pause (client.py:7)"

# A producer of the job waits for the lock of another process, which sleeps meanwhile.
_LOCKED = "python (48) file_lock at produce (p.py:9) of /data/index.lock < other (47) sleep at hold (o.py:5)"


def leader(*found: Finding, symptom: str = "") -> str | None:
    causes = considered_for(load_causes(), symptom)
    who = victim()
    return conclude(causes, assess(causes, found, who, _RAN), found, who, []).cause


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (wait("interpreter_lock"), "interpreter_lock_contention"),
        (wait("lock", root_wait="running"), "lock_held_computing"),
        (wait("lock", root_wait="file"), "lock_held_blocked"),
        (wait("lock", root_wait="sleep"), "lock_held_blocked"),
        (wait("lock", root_wait="sleep", chain="w (7) pipe_full at log (w.py:3) < tee (9) sleep"), "blocked_log_pipe"),
        (hung("pipe", root_wait="sleep", chain="w (7) pipe_full at log (w.py:3) < tee (9) sleep"), "blocked_log_pipe"),
        (wait("pipe", root_wait="sleep", chain="w (7) pipe_full at log (w.py:3) < tee (9) sleep"), "blocked_log_pipe"),
        (wait("lock", root_wait="file", chain="web (7) file read at f (w.py:3) of /pipe_full "), "lock_held_blocked"),
        (hung("lock"), "deadlock"),
        (hung("lock", detail="readers", root_wait="lock"), "deadlock"),
        (hung("lock", detail="readers", root_wait="sleep"), "lock_held_blocked"),
        (hung("lock", detail="readers"), "lock_wait"),
        (hung("lock", role="import"), "lock_wait"),
        (hung("queue", root_wait="lock"), "deadlock"),
        (wait("queue", role="data_loader", root_wait="running"), "data_loader_slow"),
        (wait("queue", root_wait="running", function="run (a.py:1)"), "data_loader_slow"),
        (wait("queue", root_wait="sleep"), "worker_waiting"),
        (wait("join", root_wait="file"), "worker_waiting"),
        (wait("queue", root_wait="sleep", root_by="p (9)", root_outside="yes"), "slow_peer"),
        (wait("queue", root_wait="sleep", root_by="p (9)", root_outside="yes", chain=_REQUEST), None),
        (wait("queue", root_wait="sleep", root_by="p (9)", chain=_REQUEST), None),
        (wait("queue_full", root_wait="running"), "full_queue"),
        (wait("queue_full", root_wait="sleep"), "full_queue"),
        (wait("queue_full", root_wait="stopped"), "stopped_process"),
        (hung("queue_full", root_wait="lock"), "deadlock"),
        (wait("queue", root_wait="running", root_code=SENDS, function="run (a.py:1)"), "handover_overhead"),
        (wait("running", 12.0, mode="user", code=SENDS), "handover_overhead"),
        (wait("running", role="data_loader", mode="user"), "data_loader_slow"),
        (wait("queue", role="data_loader", root_wait="file"), "data_loader_waiting"),
        (wait("pipe", role="data_loader", root_wait="socket"), "data_loader_waiting"),
        (hung("queue", role="data_loader"), "data_loader_stuck"),
        (wait("timeout", 95.0, role="data_loader"), "data_loader_stuck"),
        (wait("socket"), "slow_peer"),
        (wait("socket", open="yes"), "slow_peer"),
        (wait("events", role="network_client"), "slow_peer"),
        (hung("socket"), "silent_peer"),
        (wait("socket", root_wait="events", root_mutual="yes", root_pct=95.0), "held_back_data"),
        (wait("socket", root_wait="events", root_mutual="yes", root_pct=30.0), None),
        (wait("socket_full", root_wait="events", root_mutual="yes", root_pct=95.0), None),
        (wait("socket", root_wait="socket_full", root_mutual="yes", root_pct=60.0), "slow_transfer"),
        (wait("socket", root_wait="socket_full", root_object="socket:[7]", root_pct=60.0), "slow_transfer"),
        (wait("socket", root_wait="socket_full", root_object="db (9)", root_pct=60.0), "slow_peer"),
        (wait("sleep", detail="retry newfstatat ENOENT"), "awaited_file"),
        (wait("poll", detail="retry openat EEXIST"), "awaited_file"),
        (wait("sleep", code="FileBaton.wait (torch/utils/file_baton.py:50)"), "awaited_file"),
        (wait("lock", root_wait="cpu", root_detail="own", root_pct=60.0), "thread_oversubscription"),
        (wait("lock", root_wait="cpu", root_detail="others", root_pct=60.0), "cpu_contention"),
        (wait("io_uring", root_wait="sleep"), "slow_peer"),
        (wait("io_uring"), None),
        (wait("running", mode="spin", detail="retry accept4 ENOTSOCK"), None),
        (wait("dns"), "dns_timeout"),
        (wait("connect"), "connect_timeout"),
        (wait("pipe_full"), "blocked_log_pipe"),
        (hung("child", root_wait="pipe_full", root_by="p (9)"), "unread_output"),
        (hung("pipe_full", root_wait="pipe_full", root_mutual="yes"), "unread_output"),
        (hung("pipe_full", root_wait="child", root_mutual="yes"), "unread_output"),
        (hung("pipe_full", root_wait="pipe_full"), "blocked_log_pipe"),
        (hung("child", root_wait="queue", root_by="p (9)"), None),
        (wait("pipe", role="data_loader", root_wait="pipe", root_by="w (9)"), "data_loader_waiting"),
        (wait("pipe", 90.0, role="data_loader", root_wait="pipe", root_mutual="yes"), "data_loader_stuck"),
        (wait("lock", role="logging", root_wait="pipe_full"), "blocked_log_pipe"),
        (wait("lock", role="logging", root_wait="file"), "lock_held_blocked"),
        (wait("terminal", detail="write"), "blocked_log_pipe"),
        (finding("path.loop_lag", window_pct=3, max_ms=400), "event_loop_blocked"),
        (wait("child"), "child_process_per_step"),
        (wait("start_process"), "child_process_per_step"),
        (wait("start_process", role="subprocess", chain="sh (7) file execve fuse < s (9) sleep at f (s.py:3)"), None),
        (wait("running", 12.0, mode="garbage_collection"), "garbage_collection"),
        (wait("cpu", detail="own"), "thread_oversubscription"),
        (wait("cpu", detail="others"), "cpu_contention"),
        (wait("cpu", detail="pinned"), "wrong_affinity"),
        (wait("cpu", detail="own_pinned", cpus="0"), "wrong_affinity"),
        (wait("cpu", detail="own_cpuset", cpus="0-7"), "wrong_affinity"),
        (hung("stopped"), "stopped_process"),
        (wait("queue", root_wait="stopped"), "stopped_process"),
        (hung("frozen"), "frozen_cgroup"),
        (wait("frozen_files", detail="write ext4"), "frozen_file_system"),
        (wait("pipe", role="data_loader", root_wait="frozen_files", root_by="w (9)"), "frozen_file_system"),
        (wait("file", detail="openat fanotify", root_wait="sleep"), "checked_file_access"),
        (hung("file", detail="openat fanotify"), "checked_file_access"),
        (wait("page_fault", detail="userfaultfd", root_wait="sleep"), "worker_waiting"),
        (wait("page_fault", detail="userfaultfd"), None),
        (wait("file", detail="syncfs ext4"), "whole_file_system_sync"),
        (wait("file", detail="sync"), "whole_file_system_sync"),
        (wait("file", detail="sync_file_range ext4"), None),
        (hung("memory", detail="full"), "out_of_memory_hold"),
        (wait("memory", detail="full"), None),
        (hung("memory"), None),
        (wait("cpu", detail="real_time_limit"), "cgroup_cpu_throttling"),
        (wait("socket", root_wait="cpu", root_detail="real_time_limit", root_pct=90.0), "cgroup_cpu_throttling"),
        (hung("traced"), "traced_process"),
        (wait("page_fault", detail="ext4"), "mapped_file_faults"),
        (wait("file", detail="read ext4"), "slow_file_read"),
        (wait("file", detail="openat ext4"), "metadata_stall"),
        (wait("file", detail="write nfs4"), "remote_file_system"),
        (hung("file", detail="read nfs4"), "stuck_file_operation"),
        (hung("file", detail="read ext4"), "stuck_file_operation"),
        (wait("file_lock"), "file_lock_held"),
        (wait("pipe", root_wait="sleep", chain=_LOCKED), "file_lock_held"),
        (wait("socket", root_wait="running", root_outside="yes", chain=_LOCKED), "file_lock_held"),
        (wait("queue", root_wait="sleep", root_outside="yes", chain=_LOCKED), "file_lock_held"),
        (wait("socket", root_wait="sleep", chain=_LOCKED.replace("file_lock", "pipe")), "slow_peer"),
        (wait("queue", role="collective", root_wait="running", root_by="p (9)", root_pct=80.0), "slow_rank_on_path"),
        (
            wait("queue", 60.0, role="collective", root_wait="running", root_by="p (9)", root_pct=25.0),
            "collective_wait",
        ),
        (wait("queue", 40.0, role="collective", root_wait="running", root_by="p (9)", root_pct=25.0), None),
        (wait("pipe", role="data_loader", root_wait="running", root_outside="yes"), "data_loader_waiting"),
        (wait("pipe", root_wait="running", root_outside="yes"), "slow_peer"),
        (wait("collective", 60.0), "collective_wait"),
        (wait("collective", 40.0, root_wait="running", root_by="p (9)", root_pct=80.0, root_in_turn="yes"), None),
        (hung("collective", root_wait="join", root_by="p (9)"), "absent_rank"),
        (hung("collective", root_wait="file_lock", root_by="p (9)", root_mutual="yes"), "deadlock"),
        (hung("collective", root_wait="collective", root_by="p (9)", root_same="yes"), "collective_wait"),
        (hung("collective", root_wait="queue", root_by="pt_gloo_runloop (10 of 9)"), "collective_wait"),
        (wait("collective", root_mode="garbage_collection", root_pct=90.0), "garbage_collection"),
        (wait("queue", root_wait="cpu", root_detail="others", root_by="p (9)", root_pct=80.0), "cpu_contention"),
        (wait("queue", root_wait="cpu", root_by="p (9)", root_pct=80.0), "lock_wait"),
        (wait("collective", root_wait="cpu", root_by="p (9)", root_pct=80.0), "slow_rank_on_path"),
        (wait("collective", root_wait="cpu", root_detail="confined", root_by="p (9)", root_pct=80.0), "cpu_contention"),
        (
            wait("collective", 60.0, root_wait="cpu", root_detail="others", root_by="p (9)", root_pct=40.0),
            "collective_wait",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_row_leads_to_its_cause(row: Finding, cause: str) -> None:
    assert leader(row) == cause


@pytest.mark.parametrize(
    ("row", "symptom", "cause"),
    [
        (wait("sleep", 90.0), "training is slow", "sleep_in_code"),
        (wait("running", 95.0, mode="user", function="f (a.py:1)"), "it gets slower and slower", "own_hot_code"),
        (work(50.0, interpreted_pct=45.0), "it is slow", "own_hot_code"),
        (work(50.0, interpreted_pct=2.0, growth_ratio=1.4), "it is slow", "own_hot_code"),
        (wait("poll"), "it is slow", "polling_loop"),
        (wait("device", 70.0), "the steps are slow", "device_wait"),
        (wait("pipe", role="compile", root_wait="running"), "no steps yet", "compiling"),
        (wait("queue", role="compile", root_wait="running", brief="yes"), "it is slow", "compiling"),
        (wait("running", 30.0, role="compile", mode="user"), "it is slow", "compiling"),
        (hung("terminal", detail="read"), "it hangs", "waiting_for_person"),
        (hung("queue", standstill="yes"), "it hangs", "nobody_works"),
        (hung("pipe", role="subprocess", root_wait="sleep", root_by="smi (9)"), "it hangs", "child_process_per_step"),
        (hung("child", root_wait="file", root_by="smi (9)"), "it hangs", "child_process_per_step"),
        (hung("join", standstill="yes", root_wait="queue"), "it hangs", "nobody_works"),
        (hung("events", standstill="yes", role="event_loop"), "it hangs", "nobody_works"),
        (finding("path.pause", count=4, window_pct=4.6), "stops and goes every few seconds", "recurring_pause"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_healthy_jobs_show_answers_a_symptom_only(row: Finding, symptom: str, cause: str) -> None:
    assert leader(row, symptom=symptom) == cause
    assert leader(row) is None


@pytest.mark.parametrize(("collecting", "cause"), [(20.0, "own_hot_code"), (45.0, "garbage_collection")])
def test_collecting_what_a_function_makes_is_an_effect_of_its_work_if_it_takes_far_less(
    collecting: float, cause: str
) -> None:
    collects = wait("running", collecting, mode="garbage_collection", function="f (a.py:1)")
    assert leader(work(50.0, interpreted_pct=45.0), collects, symptom="it is slow") == cause


@pytest.mark.parametrize(("symptom", "verdict"), [("it is slow", "inconclusive"), ("", "healthy"), ("ok?", "healthy")])
def test_native_work_alone_is_no_fault(symptom: str, verdict: str) -> None:
    found = work(97.0, interpreted_pct=3.0, growth_ratio=1.0)
    reported: Literal["", "slow"] = "slow" if "slow" in concepts(symptom) else ""
    who = victim().model_copy(update={"user_pct": 97.0, "lost_pct": 0.0})
    causes = considered_for(load_causes(), symptom)
    conclusion = conclude(causes, assess(causes, [found], who, _RAN), [found], who, [], reported=reported)
    assert (conclusion.verdict.value, conclusion.cause) == (verdict, None)
    assert conclusion.missing == (["own_work"] if verdict == "inconclusive" else [])


def test_copies_after_a_fork_answer_a_symptom_about_memory_though_nothing_waits() -> None:
    copied = finding("memory.copies", id="c1", copied_bytes=2e7, remaining_bytes=1e8, rate=2e6, window_pct=100.0)
    who = victim().model_copy(update={"lost_pct": 0.0, "user_pct": 98.0})
    for symptom, verdict in (("the container runs out of memory", Verdict.LIKELY), ("ok?", Verdict.HEALTHY)):
        causes = considered_for(load_causes(), symptom)
        found = conclude(causes, assess(causes, [work(90.0), copied], who, _RAN), [work(90.0), copied], who, [])
        assert found.verdict is verdict


@pytest.mark.parametrize("what", ["asks", "looks", "nothing"])
def test_a_thread_that_only_looks_for_work_is_not_accused_of_its_sleeps(what: str) -> None:
    row = wait("sleep", 95.0, between=what)
    who = victim().model_copy(update={"lost_pct": 95.0})
    causes = considered_for(load_causes(), "it is slow")
    conclusion = conclude(causes, assess(causes, [row], who, _RAN), [row], who, [], reported="slow")
    assert (conclusion.verdict.value, conclusion.cause) == ("inconclusive", None)
    assert conclusion.missing == ["looks_for_work"]


def test_a_real_time_thread_is_named_with_who_it_is() -> None:
    row = wait("cpu", 60.0, detail="real_time", by="spinner (77)")
    hog = finding("sched.real_time", id="r1", subject={"pid": 77, "tid": 77}, words={"policy": "fifo"}, cpu_pct=95)
    assert leader(row) is None
    causes = considered_for(load_causes(), "")
    found = assess(causes, [row, hog], victim(), _RAN)
    assert found[0].cause == "real_time_hog"
    assert "r1" in found[0].for_
    assert not any(a.cause == "cpu_contention" and a.state is CauseState.SUPPORTED for a in found)


@pytest.mark.parametrize("detail", ["own_pinned", "own_cpuset"])
def test_own_threads_on_few_allowed_cpus_confirm_neither_cause(detail: str) -> None:
    row = wait("cpu", 60.0, detail=detail, cpus="0")
    counted = finding("sched.runqueue_delay", id="c1", subject=row.subject.model_dump(), window_pct=60, wait_s=6)
    who, causes = victim(), considered_for(load_causes(), "")
    found = assess(causes, [row, counted], who, _RAN)
    assert {"wrong_affinity", "thread_oversubscription"} == {a.cause for a in found if a.state is CauseState.SUPPORTED}
    conclusion = conclude(causes, found, [row, counted], who, [])
    assert (conclusion.verdict.value, conclusion.cause) == ("likely", "wrong_affinity")
    assert "rivals_open" in conclusion.missing


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        pytest.param(wait("lock", role="collective"), "lock_wait", id="threads of gloo hand a lock to and fro"),
        pytest.param(wait("events", role="event_loop"), "slow_peer", id="a server without requests"),
        pytest.param(hung("join", root_wait="running"), "deadlock", id="the main thread waits for its workers"),
        pytest.param(hung("child"), "child_process_per_step", id="a launcher"),
        pytest.param(wait("cpu", detail="own"), "cpu_contention", id="own threads are no strangers"),
        pytest.param(hung("file", detail="read nfs4"), "slow_file_read", id="a read that never returns is not slow"),
        pytest.param(hung("queue"), "lock_wait", id="a worker that waits for work"),
    ],
)
def test_tempting_causes_stay_silent(row: Finding, cause: str) -> None:
    causes = load_causes()
    (found,) = (a for a in assess(causes, [row], victim(), _RAN) if a.cause == cause)
    assert found.state is not CauseState.SUPPORTED


_BEHIND_OWN = wait("lock", 80.0, root_wait="cpu", root_detail="own_pinned", root_pct=95.0)


@pytest.mark.parametrize(
    ("row", "outweighed", "cause"),
    [
        (wait("cpu", 80.0, detail="own_pinned", cpus="1"), True, "low_cpu_weight"),
        (_BEHIND_OWN, True, "low_cpu_weight"),
        (_BEHIND_OWN, False, "thread_oversubscription"),
    ],
)
def test_a_thread_of_low_weight_behind_its_own_job(row: Finding, outweighed: bool, cause: str) -> None:
    heavier = finding("cpu.outweighed", id="k", words={"setting": "SCHED_IDLE 0"}, weight_ratio=341.0)
    assert leader(row, *([heavier] if outweighed else [])) == cause


_COMMAND = wait("pipe", 93.0, count=1.0, role="subprocess", root_wait="sleep", chain="sh (7) child < sleep (9) sleep")
_THROUGH_A_POOL = wait(
    *("events", 99.0),
    **{"role": "event_loop", "max_ms": 2500.0, "requests_in_flight": 1.0, "root_pct": 95.0},
    **{"root_wait": "sleep", "root_outside": "yes"},
    chain="python (8 of 7) socket at lookup (serve.py:20) of python (9) < python (9) sleep at do_GET (backend.py:14)",
).model_copy(update={"polarity": Polarity.NORMAL})


@pytest.mark.parametrize(("row", "cause"), [(_COMMAND, "child_process_per_step"), (_THROUGH_A_POOL, "slow_peer")])
def test_a_wait_that_is_ordinary_explains_a_job_that_stalled(row: Finding, cause: str) -> None:
    assert leader(row, symptom="the job stalled for 2.70 s") == cause
    assert leader(row) is None


def test_one_long_wait_among_many_short_ones_is_no_handing_over() -> None:
    receives = "Connection._recv (python3.11/multiprocessing/connection.py:395)"
    waits = wait("socket", 93.0, code=receives, count=22.0, p50_ms=0.1, root_wait="stopped", role="data_loader")
    long = waits.model_copy(update={"metrics": {**waits.metrics, "max_ms": 2513.0, "total_ms": 2534.0}})
    assert leader(long) == "stopped_process"


def test_a_busy_disk_refutes_no_slow_device() -> None:
    busy = finding("disk.saturated", polarity="normal", util_pct=97.6, await_ms=4)
    idle = finding("disk.saturated", polarity="normal", util_pct=12, await_ms=1)
    causes = {"slow_device": load_causes()["slow_device"]}
    assert assess(causes, [busy], victim(), _RAN)[0].state is CauseState.UNSUPPORTED
    assert assess(causes, [idle], victim(), _RAN)[0].state is CauseState.RULED_OUT


@pytest.mark.parametrize(("kind", "cause"), [("net.loss", "packet_loss"), ("net.bandwidth", "bandwidth_limit")])
def test_what_limits_the_connection_is_named_before_its_peer(kind: str, cause: str) -> None:
    limit = finding(kind, id="net", subject={"type": "process", "pid": victim().pid})
    assert leader(wait("socket"), limit) == cause
    assert leader(wait("socket", root_wait="events", root_pct=90.0), limit) == cause
    assert leader(wait("socket", root_wait="running", root_pct=40.0), limit) == cause
    assert leader(wait("socket", root_wait="running", root_pct=90.0), limit) == "slow_peer"


@pytest.mark.parametrize("error", ["EROFS", "EIO", "ESTALE", "ENOTCONN"])
def test_a_file_system_that_returns_errors_is_named_before_the_sleeps_between_attempts(error: str) -> None:
    row = wait("sleep", 95.0, detail=f"retry openat {error}", function="save (train.py:9)")
    words = {"syscall": "openat", "error": error, "path": "/data/last.pt"}
    failed = finding("syscall.failed", id="f", words=words, count=20, rate=2.0)
    assert leader(row, failed, symptom="saving hangs") == "failing_file_system"
    assert leader(row, failed) == "failing_file_system"
    socket = finding("syscall.failed", id="f", words={"syscall": "sendto", "error": error}, count=20, rate=2.0)
    assert leader(row, socket) is None


def test_softirqs_that_run_in_a_thread_take_the_cpu_as_those_in_handlers_do() -> None:
    row = wait("cpu", 32.0, by="ksoftirqd/1 (22) +8", detail="others")
    handlers = finding("path.running", id="i", words={"mode": "interrupt", "function": "f (a.py:1)"}, window_pct=30)
    steal = finding("irq.steal", id="s", window_pct=12)
    queue = finding("sched.queue_latency", id="q", window_pct=32, p99_ms=2)
    assert leader(row, handlers, steal, queue) == "softirq_steal"
    assert leader(wait("cpu", 32.0, by="make (22) +8", detail="others"), queue) == "cpu_contention"


def test_a_quota_of_another_rank_is_the_root() -> None:
    row = wait("collective", 80.0, root_wait="quota", root_by="p (9)", root_pct=90.0)
    cgroup = {"type": "cgroup", "cgroup": "/pods/b", "pid": 9}
    words = {"waiter": f"python ({victim().tid})"}
    held = finding("cgroup.cpu_throttled", id="quota", subject=cgroup, words=words, window_pct=52, throttled_s=6)
    assert leader(row, held) == "cgroup_cpu_throttling"
    assert leader(row) is None


@pytest.mark.parametrize(
    ("kind", "words", "cause"),
    [
        ("net.transfer", {"limit": "network"}, "bandwidth_limit"),
        ("net.transfer", {"limit": "either"}, "slow_transfer"),
        ("net.out_of_order", {}, "packet_loss"),
    ],
)
def test_what_a_receiver_sees_alone_is_likely(kind: str, words: dict[str, str], cause: str) -> None:
    causes, row = load_causes(), wait("socket")
    seen = finding(kind, id="net", words=words, window_pct=40, later_pct=90)
    found = conclude(causes, assess(causes, [row, seen], victim(), _RAN), [row, seen], victim(), [])
    assert (found.cause, found.verdict, found.chain) == (cause, Verdict.LIKELY, ["w", "net"])


_HELD = {"stopped": "stopped_process", "traced": "traced_process", "frozen": "frozen_cgroup"}
_FOR_OTHERS: list[tuple[str, dict[str, str]]] = [
    *((code, {}) for code in ("socket", "socket_full", "pipe", "pipe_full", "lock", "queue", "file_lock", "child")),
    *(("queue", {"role": role}) for role in ("data_loader", "collective")),
    *(("events", {"role": role}) for role in ("data_loader", "network_client", "collective")),
    *(("collective", {"role": "collective"}), ("file", {"detail": "read fuse"})),
]


@pytest.mark.parametrize("held", _HELD)
@pytest.mark.parametrize(("code", "words"), _FOR_OTHERS)
def test_a_process_that_cannot_run_is_named_before_what_it_delays(code: str, words: dict[str, str], held: str) -> None:
    row = hung(code, root_wait=held, root_by="p (9)", **words)
    row.metrics["root_pct"] = 100.0
    causes = load_causes()
    found = conclude(causes, assess(causes, [row], victim(), _RAN), [row], victim(), [])
    assert (found.cause, found.missing) == (_HELD[held], ["second_mechanism"])


def test_an_io_limit_needs_a_fast_disk_and_long_waits() -> None:
    fast = finding("block.slow_io", id="disk", polarity="normal", subject={"type": "device", "device": "sda"}, count=90)
    slow = finding("block.slow_io", id="disk", subject={"type": "device", "device": "sda"})
    assert leader(wait("file", detail="read ext4"), fast) == "io_limit"
    assert leader(wait("file", detail="read ext4"), slow) == "slow_file_read"
    assert leader(wait("file", detail="read ext4", p50_ms=0.4), fast) == "slow_file_read"


def test_a_semaphore_held_by_a_sleeping_thread_is_a_wait_for_it() -> None:
    calm = finding("offcpu.lock_wait", id="o", polarity="normal", window_pct=100, total_ms=5000, count=20)
    assert leader(wait("queue", 99.0, root_wait="sleep", root_by="p (9)"), calm) == "worker_waiting"
    assert leader(wait("queue", 99.0, root_wait="queue", root_by="p (9)"), calm) is None


def test_a_peer_with_an_empty_queue_is_not_slow() -> None:
    assert leader(wait("socket", 99.0, root_wait="queue", root_by="messages (9)")) is None
    assert leader(wait("socket", 99.0, root_wait="sleep", root_by="messages (9)")) == "slow_peer"


def test_data_that_nobody_owes_is_a_silent_peer_only_for_a_job_that_hangs() -> None:
    row = hung("pipe", root_wait="sleep", root_by="p (9)", between="still")
    assert leader(row) is None
    assert leader(row, symptom="the worker hangs") == "silent_peer"


def test_what_a_silent_peer_does_does_not_confirm_that_it_owes_an_answer() -> None:
    causes, who = load_causes(), victim()
    row = hung("socket", root_wait="queue", function="take (w.py:3)")
    waker = finding("path.waker", id="k", subject={"tid": 9}, words={"waiter": f"train ({who.tid})"}, window_pct=100)
    waker.attributes["via"] = "take (w.py:3)"
    assessed = assess(causes, [row, waker], who, _RAN)
    assert conclude(causes, assessed, [row, waker], who, []).verdict is Verdict.LIKELY


def test_a_barrier_is_no_contended_lock() -> None:
    calm = finding("offcpu.lock_wait", id="o", polarity="normal", window_pct=95, total_ms=5000, count=146)
    assert leader(wait("barrier", 86.0, root_wait="running", root_by="p (9)"), calm) == "lock_wait"
    assert leader(wait("queue", 86.0, root_wait="running", root_by="p (9)"), calm) is None


def test_growing_memory_is_the_answer_only_to_a_question_about_memory() -> None:
    grows = finding("memory.growth", id="m", window_pct=100, rate=6e7, until_limit_s=900)
    calls = finding("syscall.cpu_time", id="c", window_pct=16, oncpu_s=1.6, count=300)
    assert leader(grows, calls, symptom="the job is killed after a few hours") == "memory_growth"
    assert leader(grows, calls, symptom="作业内存一直涨") == "memory_growth"
    assert leader(grows, calls, symptom="training is slow") == "kernel_cpu_in_syscall"
    assert leader(grows, symptom="training is slow") is None


def limit(device: str = "sda", polarity: str = "abnormal", **more: float) -> Finding:
    where = {"cgroup": "/job"} if polarity == "normal" else {"cgroup": "/job", "device": device}
    return finding("cgroup.io_limit", id="limit", polarity=polarity, subject=where, **more)


@pytest.mark.parametrize(("mutual", "actors"), [("yes", []), ("", [9])])
def test_the_other_end_of_a_slow_link_that_waits_too_is_not_the_one_who_did_it(mutual: str, actors: list[int]) -> None:
    words = {"function": "send (a.py:1)", "root_by": "c (9)", "root_wait": "socket", "root_mutual": mutual}
    row = wait("socket_full", **{name: text for name, text in words.items() if text}, root_pct=95.0)
    peer = {"type": "thread", "pid": 9, "tid": 9, "comm": "c"}
    words = {"wait": "socket", "via": "send (a.py:1)", "waiter": f"python ({victim().tid})"}
    other = finding("path.waker", id="o", words=words, subject=peer, window_pct=38)
    found = [row, other, finding("net.bandwidth", id="n", limited_pct=90)]
    causes, who = considered_for(load_causes(), ""), victim()
    concluded = conclude(causes, assess(causes, found, who, _RAN), found, who, [])
    blamed = culprit(concluded, found, causes, who)
    assert concluded.cause == "bandwidth_limit"
    assert blamed is not None
    assert [actor.pid for actor in blamed.actors] == actors


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(wait("file", detail="read ext4", device="sda"), id="long waits"),
        pytest.param(wait("file", detail="read ext4", device="sda", p50_ms=0.4), id="short ones"),
    ],
)
def test_an_io_limit_that_is_reached_on_the_files_disk_is_confirmed(row: Finding) -> None:
    reached = limit(window_pct=42, used_pct=100)
    causes, who = considered_for(load_causes(), ""), victim()
    assessed = assess(causes, [row, reached], who, _RAN)
    found = conclude(causes, assessed, [row, reached], who, [])
    assert (found.cause, found.verdict.value, found.chain) == ("io_limit", "confirmed", ["w", "limit"])
    blamed = culprit(found, [row, reached], causes, who)
    assert blamed is not None
    assert (blamed.device, blamed.cgroup) == ("sda", "/job")


def test_an_io_limit_of_another_disk_or_one_that_is_not_reached_is_not_blamed() -> None:
    row = wait("file", detail="read ext4", device="sda")
    fast = finding("block.slow_io", id="disk", polarity="normal", subject={"type": "device", "device": "sda"}, count=90)
    assert leader(row, limit("sdb", window_pct=42)) == "slow_file_read"
    assert leader(row, fast) == "io_limit"
    assert leader(row, fast, limit(polarity="normal", used_pct=0)) == "slow_file_read"
    fast_other = fast.model_copy(update={"subject": fast.subject.model_copy(update={"device": "sdb"})})
    assert leader(row, fast_other) == "slow_file_read"


def test_another_disk_that_is_slow_does_not_excuse_an_io_limit() -> None:
    row = wait("file", detail="read ext4", device="sda")
    slow = [
        finding("block.slow_io", id=name, subject={"type": "device", "device": name}, count=90)
        for name in ("sda", "sdb")
    ]
    assert leader(row, limit(window_pct=42), slow[1]) == "io_limit"
    assert leader(row, limit(window_pct=42), slow[0]) == "slow_file_read"


def test_syncs_are_blamed_on_an_io_limit_only_if_it_is_reached() -> None:
    row = wait("file", detail="fsync ext4", device="sda")
    fast = finding("block.slow_io", id="disk", polarity="normal", subject={"type": "device", "device": "sda"}, count=90)
    assert leader(row, fast) != "io_limit"
    assert leader(row, limit(window_pct=42)) == "io_limit"


@pytest.mark.parametrize(
    ("root", "thread"),
    [
        ({"root_by": "worker (9 of 8)", "root_wait": "running", "root_code": "decode (data.py:17)"}, (8, 9)),
        ({"root_by": "worker (9)", "root_wait": "unknown"}, None),
        ({}, None),
    ],
)
def test_the_thread_at_the_end_of_the_chain_is_part_of_the_place(
    root: dict[str, str], thread: tuple[int, int] | None
) -> None:
    row = wait("queue", role="data_loader", **root)
    who = victim()
    named = culprit(Conclusion(Verdict.LIKELY, "data_loader_slow", chain=["w"]), [row], load_causes(), who)
    assert named is not None
    awaited = named.awaited
    assert (awaited and (awaited.pid, awaited.tid)) == thread
    assert awaited is None or awaited.code == "decode (data.py:17)"


@pytest.mark.parametrize(("symptom", "cause"), [("", None), ("training became slow", "collective_wait")])
def test_a_third_of_the_time_in_collectives_answers_a_complaint_only(symptom: str, cause: str | None) -> None:
    assert leader(wait("collective", 35.0), symptom=symptom) == cause


_AWAITED: list[tuple[str, dict[str, str]]] = [
    ("pipe", {"function": "next_batch (train.py:4)"}),
    ("queue", {"role": "data_loader", "function": "next_batch (train.py:4)"}),
    ("collective", {"role": "collective"}),
    *(("socket", {}), ("lock", {})),
]


@pytest.mark.parametrize(
    ("ends", "kind", "cause"),
    [
        ({"root_wait": "quota"}, "cgroup.cpu_throttled", "cgroup_cpu_throttling"),
        ({"root_wait": "cpu", "root_detail": "others"}, "cpu.neighbour", "cpu_contention"),
        ({"root_wait": "cpu", "root_detail": "real_time"}, "sched.real_time", "real_time_hog"),
        ({"root_wait": "cpu", "root_detail": "pinned"}, "cpu.neighbour", "wrong_affinity"),
    ],
)
@pytest.mark.parametrize(("code", "words"), _AWAITED)
def test_what_keeps_an_awaited_thread_from_a_cpu_is_named_before_what_it_delays(
    code: str, words: dict[str, str], ends: dict[str, str], kind: str, cause: str
) -> None:
    row = wait(code, 80.0, root_by="p (9)", root_pct=95.0, **words, **ends)
    held = kind == "cgroup.cpu_throttled"
    numbers = {"window_pct": 70} if held else {"cpu_pct": 95}
    words_ = {"waiter": f"python ({victim().tid})"} if held else {}
    seen = finding(kind, id="k", words=words_, subject={"type": "process", "pid": 9}, **numbers)
    causes = load_causes()
    found = conclude(causes, assess(causes, [row, seen], victim(), _RAN), [row, seen], victim(), [])
    assert found.cause == cause


def test_a_disk_full_of_others_requests_is_named_before_the_calls_that_wait_for_it() -> None:
    row = wait("file", 58.0, detail="fdatasync ext4", device="sda")
    syncs = finding("file.slow_sync", id="s", window_pct=73, count=40, episode_bytes=600, runnable_pct=1)
    busy = finding("disk.contended", id="c", subject={"type": "device", "device": "sda"}, util_pct=99, others_pct=99)
    backup = finding("disk.neighbour", id="n", subject={"type": "process", "pid": 9, "comm": "backup"}, bytes_pct=98)
    elsewhere = finding("disk.contended", id="c", subject={"type": "device", "device": "sdb"}, util_pct=99)
    assert leader(row, syncs, busy, backup) == "disk_contention"
    assert leader(row, syncs, backup) == "fsync_storm"
    assert leader(row, syncs, elsewhere, backup) == "fsync_storm"


def test_a_worker_that_has_ended_answers_no_more() -> None:
    assert leader(hung("pipe", root_wait="ended", root_by="worker (9)")) == "dead_worker"
    assert leader(hung("pipe")) is None
