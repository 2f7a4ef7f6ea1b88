"""Victim, assessment and verdict, case by case: each degradation costs what it should, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.agent_server.diagnosis.assess import Link, assess
from whystall.agent_server.diagnosis.culprit import culprit
from whystall.agent_server.diagnosis.rules import next_tools
from whystall.agent_server.diagnosis.verdict import Conclusion, conclude
from whystall.agent_server.diagnosis.victim import choose_victim
from whystall.knowledge_base.causes import considered_for, load_causes
from whystall.knowledge_base.models import Assessment, CauseState, Pattern, Verdict, Victim
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.result import BlindSpot
from whystall.tools.toolbox import registry

PID, OTHER = 4000, 4001
CAUSES = load_causes()
TOOLS = {tool.name: tool for tool in registry().all()}
ALL = list(TOOLS)
CHECKPOINT = "/d/chk_*.bin"


def f(kind: str, id: str = "x", /, *, tid: int | None = PID, pid: int | None = PID, **more: Any) -> Finding:
    words = {k: more.pop(k) for k in list(more) if k in KINDS[kind].attributes}
    who = {k: more.pop(k) for k in ("path", "device", "cgroup", "comm") if k in more}
    polarity = more.pop("polarity", "abnormal")
    start, end = more.pop("span", (0, 10))
    return Finding(
        id=id,
        kind=kind,
        subject=Subject(type=KINDS[kind].subject, pid=pid, tid=tid, **({"comm": "train"} | who)),
        interval=Interval(start_ns=start, end_ns=end),
        metrics=more,
        attributes=words,
        severity=Severity.MAJOR,
        polarity=Polarity(polarity),
    )


def account(tid: int = PID, pid: int = PID, comm: str = "train", **shares: float) -> Finding:
    times = dict.fromkeys(("user_pct", "system_pct", "runnable_pct", "blocked_pct"), 0.0) | shares
    return f("thread.time", f"time{tid}", tid=tid, pid=pid, comm=comm, polarity="normal", **times)


def fsync(id: str = "sync", *, tid: int = PID, pct: float = 30.0, path: str = CHECKPOINT, **more: Any) -> Finding:
    base = {"episode_bytes": 50 << 20, "count": 4, "episodes": 4, "runnable_pct": 0, "blocked_pct": 95}
    base |= {"max_ms": 900, "episode_ms": 900, "window_pct": pct, "operations": "fsync", **more}
    return f("file.slow_sync", id, tid=tid, path=path, **base)


def blocked(id: str = "off", *, tid: int = PID, pct: float = 29.0, path: str = CHECKPOINT, **more: Any) -> Finding:
    base = {"count": 4, "total_ms": 3600, "max_ms": 900, "window_pct": pct, "syscall": "fsync", "state": "D"}
    return f("offcpu.blocked", id, tid=tid, path=path, **(base | more))


# --- the victim ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "tid", "why"),
    [
        ([account(user_pct=60, blocked_pct=30), account(OTHER, user_pct=5)], PID, "main_thread"),
        ([account(user_pct=90), account(OTHER, system_pct=3, blocked_pct=70), fsync(tid=OTHER)], PID, "main_thread"),
        ([account(), account(OTHER, user_pct=90)], OTHER, "loses_most"),
        # the main thread has little CPU left, because it is held up
        ([account(user_pct=4, blocked_pct=90), account(OTHER, user_pct=30)], PID, "main_thread"),
        ([account(user_pct=4, runnable_pct=90), account(OTHER, user_pct=90)], PID, "main_thread"),
        # a launcher that is held up now and then is not the job
        ([account(user_pct=1, blocked_pct=20), account(OTHER, user_pct=90)], OTHER, "loses_most"),
        # two ranks: the one that loses most
        (
            [account(10, 10, user_pct=80), account(20, 20, user_pct=40, blocked_pct=50), account(11, 10, user_pct=9)],
            20,
            "loses_most",
        ),
        # a side-car with a main thread of its own is no rank
        (
            [account(10, 10, user_pct=80), account(20, 20, "logger", user_pct=20, blocked_pct=70)],
            10,
            "loses_most",
        ),
        # workers without a main thread: not the writer beside them
        (
            [
                account(),
                account(11, user_pct=90),
                account(12, user_pct=80, runnable_pct=15),
                account(13, system_pct=30, blocked_pct=60),
            ],
            12,
            "loses_most",
        ),
        # nobody works: who is stuck in an operation
        ([account(), account(OTHER, blocked_pct=100), fsync(tid=OTHER, in_flight="yes")], OTHER, "stuck_thread"),
        (
            [account(), account(OTHER), f("offcpu.lock_wait", tid=OTHER, open="yes", polarity="normal")],
            PID,
            "main_thread",
        ),
        ([account(20, 20), account(21, 20)], 20, "main_thread"),
    ],
)
def test_the_victim_is_who_makes_progress(findings: list[Finding], tid: int, why: str) -> None:
    victim = choose_victim(findings)
    assert victim is not None
    assert (victim.tid, victim.chosen_by) == (tid, why)


def test_without_an_account_there_is_none() -> None:
    assert choose_victim([fsync()]) is None
    assert choose_victim([]) is None


@pytest.mark.parametrize(
    ("findings", "blocked_pct", "idle_pct", "lost_pct"),
    [
        ([account(user_pct=60, system_pct=3, runnable_pct=4, blocked_pct=30)], 30, 0, 37),
        # measured waits count, not how often a sample met one
        ([account(user_pct=60, blocked_pct=30), blocked(pct=22)], 22, 0, 22),
        ([account(user_pct=60, blocked_pct=10), blocked(tid=OTHER, pct=22)], 0, 0, 0),
        # idling is not loss, and does not hide it
        (
            [
                account(user_pct=20),
                blocked(pct=40),
                f("offcpu.blocked", polarity="normal", window_pct=40, state="S", syscall="epoll_wait"),
            ],
            40,
            40,
            40,
        ),
        # a file server's clients sleep: only the call tells
        ([account(user_pct=50), fsync(pct=40, blocked_pct=0, sleep_pct=100)], 40, 0, 40),
        # what was off CPU is all there was to be blocked in
        ([account(user_pct=90, blocked_pct=50)], 10, 0, 10),
        # spinning is in the system time, and no loss
        (
            [
                account(user_pct=70, system_pct=25),
                f("syscall.cpu_time", polarity="normal", syscall="sched_yield", window_pct=24),
            ],
            0,
            0,
            1,
        ),
    ],
)
def test_where_its_time_went(findings: list[Finding], blocked_pct: float, idle_pct: float, lost_pct: float) -> None:
    victim = choose_victim(findings)
    assert victim is not None
    assert (victim.blocked_pct, victim.idle_pct, victim.lost_pct) == pytest.approx((blocked_pct, idle_pct, lost_pct))


def test_an_old_kernel_that_accounts_for_less_is_enough() -> None:
    victim = choose_victim([f("thread.time", polarity="normal", user_pct=90, system_pct=2)])
    assert victim is not None
    assert (victim.runnable_pct, victim.blocked_pct) == (0, 0)


# --- the verdict --------------------------------------------------------------------------------------------

NORMAL = [f("offcpu.lock_wait", "n1", tid=None, polarity="normal", window_pct=0, count=0)]


def judge(
    findings: list[Finding],
    *,
    victim: Victim | None = None,
    ran: list[str] | None = None,
    blind: list[str] | None = None,
    links: list[Link] | None = None,
) -> Conclusion:
    sufferer = victim or choose_victim(findings)
    assessed = assess(CAUSES, findings, sufferer, ALL if ran is None else ran, links or [])
    return conclude(CAUSES, assessed, findings, sufferer, [BlindSpot(code=code) for code in blind or []])


def stalled(*more: Finding) -> list[Finding]:
    return [account(user_pct=65, blocked_pct=30), *more]


def test_two_mechanisms_that_agree_confirm() -> None:
    found = judge(stalled(fsync(), blocked(), *NORMAL))
    assert (found.verdict, found.cause, found.missing) == (Verdict.CONFIRMED, "sync_checkpoint_write", [])
    assert found.chain[:2] == ["sync", "off"]
    assert found.explained_pct == pytest.approx(100)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ([], "second_mechanism"),
        ([blocked(tid=OTHER)], "second_mechanism"),
        ([blocked(path="/d/other.log")], "second_mechanism"),
        ([blocked(span=(11, 20))], "second_mechanism"),
        ([blocked(polarity="normal")], "second_mechanism"),
        (
            [f("file.slow_write", "w", path=CHECKPOINT, window_pct=5, episode_bytes=2 << 20, runnable_pct=0)],
            "second_mechanism",
        ),
        ([blocked(pid=9)], "second_mechanism"),
    ],
)
def test_without_a_second_mechanism_that_agrees_it_is_only_likely(more: list[Finding], code: str) -> None:
    found = judge(stalled(fsync(), *more))
    assert (found.verdict, found.cause, found.missing) == (Verdict.LIKELY, "sync_checkpoint_write", [code])


def test_what_was_sampled_confirms_nothing_and_is_confirmed_by_nothing() -> None:
    """Where a thread spends its time is no evidence that it is held up, whatever a cause names as support."""
    frame = f("profile.frame", "top", window_pct=30, total_pct=60, name="save")
    for group in ("supporting", "primary"):
        patterns = [Pattern(kind="profile.frame")]
        if group == "primary":
            patterns.insert(0, CAUSES["sync_checkpoint_write"].primary[0])
        named = CAUSES["sync_checkpoint_write"].model_copy(update={group: patterns})
        evidence = stalled(fsync(), frame)
        assessed = assess({named.id: named}, evidence, choose_victim(evidence), ALL)
        assert "top" in assessed[0].for_
        found = conclude({named.id: named}, assessed, evidence, choose_victim(evidence), [])
        assert (found.verdict, found.missing) == (Verdict.LIKELY, ["second_mechanism"])


def test_the_line_of_the_program_that_waits_is_told() -> None:
    evidence = stalled(fsync(), blocked(code="save (train.py:212)"), *NORMAL)
    found = judge(evidence)
    blamed = culprit(found, evidence)
    assert found.verdict is Verdict.CONFIRMED
    assert blamed is not None
    assert blamed.code == "save (train.py:212)"


def test_a_stopped_process_that_the_victim_waits_for_is_the_actor() -> None:
    words = {"wait": "collective", "open": "yes", "root_wait": "stopped", "root_by": "rank (9)"}
    row = f("path.wait", "row", window_pct=100, total_ms=9000, max_ms=9000, count=1, **words)
    more = {"waiter": f"train ({PID})", "wait": "stopped", "window_pct": 100}
    waker = f("path.waker", "end", tid=9, pid=9, comm="rank", **more)
    shares = dict.fromkeys(("user_pct", "system_pct", "runnable_pct", "idle_pct"), 0.0)
    victim = Victim(pid=PID, tid=PID, comm="train", chosen_by="main_thread", blocked_pct=100, lost_pct=100, **shares)
    assessed = assess(CAUSES, [row, waker], victim, ALL)
    found = conclude(CAUSES, assessed, [row, waker], victim, [])
    named = culprit(found, [row, waker], CAUSES, victim)
    assert (found.cause, found.chain) == ("stopped_process", ["row", "end"])
    assert named is not None
    assert [(actor.pid, actor.comm) for actor in named.actors] == [(9, "rank")]


def test_the_process_that_the_victim_waits_for_is_named_with_its_line() -> None:
    words = {
        "wait": "socket",
        "open": "no",
        "root_wait": "running",
        "root_by": "server (9)",
        "function": "ask (a.py:1)",
    }
    row = f("path.wait", "row", window_pct=60, total_ms=6000, max_ms=90, count=90, **words)
    more = {"waiter": f"train ({PID})", "via": "ask (a.py:1)", "code": "look_up (s.py:7)", "window_pct": 58}
    waker = f("path.waker", "end", tid=9, pid=9, comm="server", **more)
    shares = dict.fromkeys(("user_pct", "system_pct", "runnable_pct", "idle_pct"), 0.0)
    victim = Victim(pid=PID, tid=PID, comm="train", chosen_by="main_thread", blocked_pct=60, lost_pct=60, **shares)
    found = conclude(CAUSES, assess(CAUSES, [row, waker], victim, ALL), [row, waker], victim, [])
    named = culprit(found, [row, waker], CAUSES, victim)
    assert found.cause == "slow_peer"
    assert named is not None
    assert [(actor.pid, actor.code) for actor in named.actors] == [(9, "look_up (s.py:7)")]


@pytest.mark.parametrize(("did", "code"), [("running", "awaited_unexplained"), ("unknown", "waits_for_thread")])
def test_a_thread_at_the_end_of_a_wait_was_observed_or_not(did: str, code: str) -> None:
    row = f("path.wait", "row", window_pct=80, total_ms=8000, wait="queue", root_by="other (9)", root_wait=did)
    shares = dict.fromkeys(("system_pct", "runnable_pct", "idle_pct"), 0.0)
    victim = Victim(
        pid=PID, tid=PID, comm="train", chosen_by="main_thread", blocked_pct=80, lost_pct=80, user_pct=20, **shares
    )
    found = conclude(CAUSES, [], [row], victim, [])
    assert (found.verdict, found.missing) == (Verdict.INCONCLUSIVE, ["unexplained_loss", code])


@pytest.mark.parametrize("code", ["sampled", "events_lost", "no_engine", "not_permitted"])
def test_what_was_not_seen_is_missing(code: str) -> None:
    found = judge(stalled(fsync(), blocked()), blind=[code, "io_uring"])
    assert (found.verdict, found.missing) == (Verdict.LIKELY, [code])


@pytest.mark.parametrize("tool", ["syscall_time", "offcputime", "fileslower"])
def test_causes_nobody_examined_are_open(tool: str) -> None:
    ran = [name for name in ALL if name != tool]
    found = judge(stalled(fsync(), blocked()), ran=ran)
    open_ = {c.id for c in CAUSES.values() if not set(c.examined_by) & set(ran)}
    assert ("rivals_open" in found.missing) is bool(open_ - {found.cause})


def test_a_rival_that_explains_as_much_is_open() -> None:
    rival = f("syscall.cpu_time", "cpu", window_pct=28, syscall="getrandom", count=9, oncpu_s=3)
    found = judge([account(user_pct=30, system_pct=30, blocked_pct=30), fsync(), blocked(), rival])
    assert (found.verdict, found.cause, found.missing) == (Verdict.LIKELY, "sync_checkpoint_write", ["rivals_open"])


def test_what_explains_another_part_of_the_time_is_no_rival() -> None:
    ready = f("sched.runqueue_delay", "run", window_pct=20, wait_s=2)
    found = judge([account(user_pct=50, runnable_pct=20, blocked_pct=30), fsync(), blocked(), ready])
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "sync_checkpoint_write")
    assert found.explained_pct == pytest.approx(60, rel=0.05)


def test_waiting_for_a_colleague_besides_is_not_passed_over() -> None:
    ready = [f("sched.runqueue_delay", "run", window_pct=27), f("offcpu.preempted", "pre", window_pct=27, state="R")]
    wait = f("offcpu.lock_wait", "wait", polarity="normal", window_pct=35, syscall="futex")
    found = judge([account(user_pct=37, runnable_pct=27), *ready, wait])
    assert (found.verdict, found.cause, found.missing) == (Verdict.LIKELY, "cpu_contention", ["waits_for_thread"])


def test_several_files_of_one_mechanism_add_up() -> None:
    def stat(id: str, path: str) -> Finding:
        return f("file.slow_metadata", id, path=path, window_pct=30, runnable_pct=0, max_ms=90, sleep_pct=100)

    sleep = f("offcpu.blocked", "off", window_pct=60, state="S", syscall="rename")
    found = judge([account(user_pct=39), stat("one", "/d/a.dat"), stat("two", "/d/a.new"), sleep])
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "metadata_stall")
    assert found.explained_pct == pytest.approx(100)


@pytest.mark.parametrize(("pct", "verdict"), [(12, Verdict.CONFIRMED), (8, Verdict.INCONCLUSIVE)])
def test_too_small_a_share_of_the_time_is_named_but_not_asserted(pct: float, verdict: Verdict) -> None:
    found = judge([account(user_pct=99 - pct), fsync(pct=pct), blocked(pct=pct)])
    assert (found.verdict, found.cause) == (verdict, "sync_checkpoint_write")
    assert ("small_share" in found.missing) is (verdict is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("pct", "verdict"), [(30, Verdict.CONFIRMED), (18, Verdict.LIKELY), (6, Verdict.INCONCLUSIVE)])
def test_a_cause_must_explain_the_loss(pct: float, verdict: Verdict) -> None:
    other = blocked("else", path="/d/x", pct=50 - pct, syscall="", state="D")
    found = judge([account(user_pct=45), fsync(pct=pct), blocked(pct=pct), other])
    assert (found.verdict, found.cause) == (verdict, "sync_checkpoint_write")
    assert ("low_explained_share" in found.missing) is (verdict is not Verdict.CONFIRMED)


def test_without_a_victim_nothing_is_blamed() -> None:
    found = judge([fsync(), blocked()])
    assert (found.verdict, found.cause, found.missing) == (Verdict.INCONCLUSIVE, None, ["no_victim"])


@pytest.mark.parametrize(
    ("findings", "verdict", "missing"),
    [
        ([account(user_pct=97)], Verdict.HEALTHY, []),
        ([account(user_pct=91, runnable_pct=4, blocked_pct=4)], Verdict.HEALTHY, []),
        ([account(user_pct=70, blocked_pct=20)], Verdict.INCONCLUSIVE, ["unexplained_loss"]),
        ([account(user_pct=20)], Verdict.INCONCLUSIVE, ["idle_unexplained"]),
        (
            [
                account(user_pct=20),
                f("offcpu.blocked", polarity="normal", window_pct=79, state="S", syscall="clock_nanosleep"),
            ],
            Verdict.HEALTHY,
            [],
        ),
        (
            [account(user_pct=60), f("offcpu.lock_wait", polarity="normal", window_pct=39, syscall="futex")],
            Verdict.INCONCLUSIVE,
            ["waits_for_thread"],
        ),
        ([account(user_pct=90, blocked_pct=3), fsync(pct=3), blocked(pct=3)], Verdict.HEALTHY, []),
    ],
)
def test_without_a_cause(findings: list[Finding], verdict: Verdict, missing: list[str]) -> None:
    found = judge(findings)
    assert (found.verdict, found.cause, found.missing) == (verdict, None, missing)
    assert culprit(found, findings) is None


def test_a_job_that_ended_under_observation_is_not_called_healthy() -> None:
    found = judge([account(user_pct=97)], blind=["target_exited"])
    assert (found.verdict, found.missing) == (Verdict.INCONCLUSIVE, ["target_exited"])


def test_a_slow_device_that_is_not_tied_to_the_victim_is_at_most_likely() -> None:
    wait = blocked(path=None, syscall="", pct=30)
    io = f("process.io_wait", "io", window_pct=30, block_io_s=3)
    disk = f("disk.saturated", "disk", tid=None, pid=None, comm=None, device="sdb", util_pct=100, await_ms=300)
    findings = stalled(wait, io, disk)
    found = judge(findings)
    assert (found.verdict, found.cause, found.missing) == (Verdict.LIKELY, "slow_device", ["not_tied"])
    named = culprit(found, findings)
    assert named is not None
    assert (named.tid, named.device) == (PID, None)


@pytest.mark.parametrize(
    ("throttled", "cause"), [(58.0, "cgroup_cpu_throttling"), (45.0, "cgroup_cpu_throttling"), (3.0, "cpu_contention")]
)
def test_a_quota_explains_no_more_than_it_throttled(throttled: float, cause: str) -> None:
    wait = f("sched.runqueue_delay", "run", window_pct=58, wait_s=5)
    away = f("offcpu.preempted", "pre", window_pct=57, state="R", count=9)
    quota = f("cgroup.cpu_throttled", "quota", tid=None, cgroup="/a", window_pct=throttled, throttled_s=1)
    found = judge([account(user_pct=40, runnable_pct=58), wait, away, quota])
    assert found.cause == cause
    assert found.explained_pct == pytest.approx(100 * min(throttled, 58) / 58 if cause.startswith("cgroup") else 100)


def test_a_quota_and_neighbours_that_both_act_are_both_named() -> None:
    wait = f("sched.runqueue_delay", "run", window_pct=58, wait_s=5)
    away = f("offcpu.preempted", "pre", window_pct=57, state="R", count=9)
    quota = f("cgroup.cpu_throttled", "quota", tid=None, cgroup="/a", window_pct=25, throttled_s=1)
    findings = [account(user_pct=40, runnable_pct=58), wait, away, quota]
    found = judge(findings)
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "cgroup_cpu_throttling")
    assert found.missing == ["low_explained_share"]
    (other,) = [a for a in assess(CAUSES, findings, choose_victim(findings), ALL) if a.cause == "cpu_contention"]
    assert (other.state, other.explained_pct) == (CauseState.SUPPORTED, pytest.approx(100 * 33 / 58))


def test_what_a_quota_explains_whole_leaves_no_contention_and_rules_none_out() -> None:
    wait = f("sched.runqueue_delay", "run", window_pct=58, wait_s=5)
    quota = f("cgroup.cpu_throttled", "quota", tid=None, cgroup="/a", window_pct=57, throttled_s=1)
    findings = [account(user_pct=40, runnable_pct=58), wait, quota]
    states = {a.cause: a.state for a in assess(CAUSES, findings, choose_victim(findings), ALL)}
    assert states["cpu_contention"] is CauseState.UNSUPPORTED


# --- chains -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "cause"), [(25.0, "sync_checkpoint_write"), (2.0, None), (0.0, None)])
def test_another_threads_stall_counts_as_far_as_the_victim_waits_behind_it(held: float, cause: str | None) -> None:
    wait = f("offcpu.lock_wait", "wait", polarity="normal", window_pct=27, syscall="futex", waker="w (4001)")
    findings = [account(user_pct=70), account(OTHER, user_pct=5, blocked_pct=60), wait]
    findings += [fsync(tid=OTHER, pct=60), blocked(tid=OTHER, pct=59)]
    found = judge(findings, links=[Link(PID, OTHER, ("wait",), held)])
    assert found.cause == cause
    if cause is not None:
        assert found.verdict is Verdict.CONFIRMED
        assert set(found.chain) == {"sync", "off", "wait"}
        assert found.explained_pct == pytest.approx(100)
        named = culprit(found, findings)
        assert named is not None
        assert named.tid == OTHER


# --- what to look at next -----------------------------------------------------------------------------------


def test_all_that_is_open_is_looked_at_and_nothing_twice() -> None:
    open_ = [Assessment(cause=c, state=CauseState.NOT_EXAMINED) for c in CAUSES]
    chosen = next_tools(CAUSES, open_, TOOLS, ["host_snapshot"])
    decides_none = {name for name in TOOLS if not any(name in cause.examined_by for cause in CAUSES.values())}
    sampled = {tool.name for tool in TOOLS.values() if tool.reads == "stacks"}  # where time goes accuses nobody
    assert decides_none >= {"ftrace_capture", "hybrid_io_advise"} | sampled
    assert set(chosen) == TOOLS.keys() - decides_none - {"host_snapshot"}
    assert next_tools(CAUSES, open_, TOOLS, ALL) == []
    closed = [Assessment(cause=c, state=CauseState.RULED_OUT, by=["fileslower"]) for c in CAUSES]
    assert next_tools(CAUSES, closed, TOOLS, ["host_snapshot", "fileslower"]) == []


def test_a_tool_is_not_run_for_what_a_cheaper_one_finds() -> None:
    """Interrupts are timed by `interrupts`; a trace of the scheduler is for symptoms of an idle accelerator."""
    open_ = [Assessment(cause="softirq_steal", state=CauseState.NOT_EXAMINED)]
    slow, idle = (considered_for(CAUSES, symptom) for symptom in ("training is slow", "GPU idle"))
    assert next_tools(slow, open_, TOOLS, ["host_snapshot"]) == ["interrupts"]
    assert set(next_tools(idle, open_, TOOLS, ["host_snapshot"])) == {"interrupts", "host_bound"}


def test_a_culprits_file_brings_its_disk_along_unless_several_could_be_meant() -> None:
    path = "/d/model.bin"
    evidence = [fsync(path=path, device="loop0", mount="/d"), blocked(path=path)]
    conclusion = Conclusion(verdict=Verdict.CONFIRMED, cause="sync_checkpoint_write", chain=["sync", "off"])
    # the attribute of a finding in the chain, or of another one about the file
    elsewhere = [blocked(path=path), fsync("row", path=path, device="loop0", mount="/d")]
    for found, chain in ((evidence, ["sync", "off"]), (elsewhere, ["off"])):
        blamed = culprit(Conclusion(**{**vars(conclusion), "chain": chain}), found)
        assert blamed is not None
        assert (blamed.path, blamed.device, blamed.mount) == (path, "loop0", "/d")
    several = [blocked(path=path), fsync("row", path=path, device="loop0"), fsync("row2", path=path, device="sda")]
    unknown = [blocked(path=path), f("block.slow_io", "io", tid=None, pid=None, device="sda")]
    for found, chain in ((several, ["off"]), (unknown, ["off", "io"])):
        blamed = culprit(Conclusion(**{**vars(conclusion), "chain": chain}), found, CAUSES)
        assert blamed is not None
        assert blamed.device is None
