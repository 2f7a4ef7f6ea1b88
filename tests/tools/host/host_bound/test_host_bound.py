"""host_bound on schedules made by hand: each disturber is named with its numbers, and nobody else; health is quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recordings import PID, Scene
from sched_scenes import DISPATCH, GREEDY, PERIOD, WAKES, WORK, Cpus, bad, machine, normal, steady, times

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.findings import Severity
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import Status
from whystall.tools.host.host_bound import tool as host_bound
from whystall.tools.recording.judging import judge as envelope
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

pytestmark = pytest.mark.thorough


def run(cpus: Cpus, scene: Scene, params: dict[str, Any] | None = None, **build: Any) -> Judgement[host_bound.Data]:
    build = {"without": ["profile"]} | build
    return host_bound.judge(cpus.fill(scene).build(**build), host_bound.Params(**(params or {})))


def fixes(found: Judgement[host_bound.Data]) -> list[tuple[str, str]]:
    return [(remedy.code, remedy.command) for remedy in found.data.remedies]


SCHED = {"sched.preempted_by", "sched.wakeup_latency", "sched.migrations", "irq.steal"}


def test_a_healthy_run_is_quiet_and_says_what_is_normal() -> None:
    found = run(*_healthy())
    assert bad(found) == {}
    assert normal(found) == SCHED
    (row,) = found.data.dispatchers
    assert (row.tid, row.sure, row.cpus, row.pinned) == (DISPATCH, "likely", "0-1", False)
    assert row.running_pct == pytest.approx(15, abs=0.1)
    assert row.latency_p99_us == pytest.approx(5)
    assert row.running_pct + row.ready_pct + row.interrupt_pct + row.blocked_pct + row.unknown_pct == pytest.approx(100)
    assert found.data.remedies == []


def _healthy() -> tuple[Cpus, Scene]:
    cpus, scene = machine()
    return steady(cpus), scene


def neighbour(comm: str = "greedy", *, pid: int | None = None, mask: str = "0") -> tuple[Cpus, Scene]:
    """Keeps the CPU for 600 us after each wake, and takes it away in the middle of every fourth piece of work."""
    cpus, scene = machine(mask=mask)
    cpus.thread(GREEDY, comm, pid)
    for number, at in enumerate(times()):
        cpus.wake(DISPATCH, at, 0).run(0, GREEDY, at - 50, at + 600, "R")
        if number % 4:
            cpus.run(0, DISPATCH, at + 600, at + 600 + WORK)
        else:
            cpus.run(0, DISPATCH, at + 600, at + 700, "R").run(0, GREEDY, at + 700, at + 1100, "R")
            cpus.run(0, DISPATCH, at + 1100, at + 1300)
    return cpus, scene


def test_a_neighbour_on_the_core_is_named_with_its_time() -> None:
    cpus, scene = neighbour()
    scene.process(GREEDY, "greedy", cpu=40)
    found = run(cpus, scene)
    hurt = bad(found)
    assert hurt.keys() == {"sched.preempted_by", "sched.wakeup_latency", "sched.affinity_crowded"}
    finding = hurt["sched.preempted_by"]
    assert finding.attributes == {"neighbour": "greedy", "cpus": "0", "processes": str(GREEDY), "own": "no"}
    waited = (600 + 400 / 4) / PERIOD
    assert finding.metrics["window_pct"] == pytest.approx(100 * waited, abs=0.2)
    assert finding.metrics["max_ms"] == pytest.approx(0.6)
    assert (finding.severity, finding.subject.tid, finding.subject.pid) == (Severity.MAJOR, DISPATCH, PID)
    assert hurt["sched.wakeup_latency"].attributes == {"mostly": "no_cpu"}
    (loss,) = [row for row in found.data.losses if row.what == "no_cpu"]
    assert (loss.who, loss.who_pid) == (f"greedy ({GREEDY})", GREEDY)
    assert loss.preempted_ms == pytest.approx(WAKES / 4 * 0.4)
    assert found.data.dispatchers[0].involuntary == WAKES / 4
    assert fixes(found) == [
        ("pin_cores", f"taskset -cp 1 {DISPATCH}"),
        ("isolate_neighbour", f"taskset -acp 1 {GREEDY}"),
    ]


def test_threads_of_the_job_itself_are_told_apart_from_strangers() -> None:
    found = run(*neighbour("omp_worker", pid=PID))
    finding = bad(found)["sched.preempted_by"]
    assert (finding.attributes["neighbour"], finding.attributes["own"]) == ("omp_worker", "yes")
    assert ("fewer_threads", "") in fixes(found)
    assert "isolate_neighbour" not in dict(fixes(found))


@pytest.mark.parametrize("comm", ["kworker/0:1-events", "rcu_preempt"])
def test_the_kernels_own_threads_cannot_be_moved_by_taskset(comm: str) -> None:
    cpus, scene = neighbour(comm)
    scene.process(GREEDY, comm, cpu=40, ppid=2)
    found = run(cpus, scene)
    assert bad(found)["sched.preempted_by"].attributes["neighbour"] == comm.partition("/")[0]
    assert "kernel_threads" in dict(fixes(found))
    assert not any(command.startswith("taskset -acp") for _, command in fixes(found))


def test_many_small_neighbours_of_one_name_are_one() -> None:
    cpus, scene = machine(mask="0")
    for number, at in enumerate(times()):
        tid = GREEDY + number % 10
        cpus.thread(tid, "swarm").wake(DISPATCH, at, 0).run(0, tid, at - 50, at + 600, "R")
        cpus.run(0, DISPATCH, at + 600, at + 600 + WORK)
    finding = bad(run(cpus, scene))["sched.preempted_by"]
    assert finding.attributes["neighbour"] == "swarm"
    assert finding.metrics["window_pct"] == pytest.approx(30, abs=0.2)
    assert finding.metrics["count"] == WAKES


def test_who_recorded_is_not_accused() -> None:
    found = run(*neighbour("whystall"), observer=GREEDY)
    assert "sched.preempted_by" not in {f.kind for f in found.findings}
    assert [detail for code, detail in found.not_seen if code == "observer"] == [f"dispatch ({DISPATCH}): 35 %"]


# --- interrupts -----------------------------------------------------------------------------------------------


def test_a_softirq_that_steals_the_core_is_named_not_the_thread_it_ran_in() -> None:
    """Half of it interrupts the work, half runs in ksoftirqd while the thread waits."""
    cpus, scene = machine()
    cpus.thread(16, "ksoftirqd/0")
    for number, at in enumerate(times()):
        if number % 2:
            cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + 5, at + 605).interrupt(
                0, DISPATCH, at + 50, at + 350, "NET_RX"
            )
        else:
            cpus.run(0, 16, at - 10, at + 300).interrupt(0, 16, at - 5, at + 295, "NET_RX").wake(DISPATCH, at, 0)
            cpus.run(0, DISPATCH, at + 300, at + 600)
    hurt = bad(run(cpus, scene))
    finding = hurt["irq.steal"]
    assert finding.attributes == {"interrupt": "softirq NET_RX", "cpus": "0"}
    assert finding.metrics["window_pct"] == pytest.approx(100 * (300 + 295) / 2 / PERIOD, abs=0.2)
    assert "sched.preempted_by" not in hurt
    found = run(cpus, scene)
    assert [code for code, _ in fixes(found)] == ["pin_cores", "steer_softirqs"]
    assert [remedy.cpus for remedy in found.data.remedies] == ["1", "1"]


def test_a_hard_interrupt_gets_its_own_command() -> None:
    cpus, scene = machine([[0, 1, 2, 3]])
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + 5, at + 505)
        cpus.interrupt(0, DISPATCH, at + 50, at + 250, "mlx5_comp3", 77, soft=False)
    found = run(cpus, scene)
    assert bad(found)["irq.steal"].attributes["interrupt"] == "irq 77 mlx5_comp3"
    assert ("move_irqs", "echo 2-3 > /proc/irq/77/smp_affinity_list") in fixes(found)


# --- quotas ---------------------------------------------------------------------------------------------------


def throttled(*, busy: bool, always: bool = False) -> tuple[Cpus, Scene]:
    """It computes without end and gets 10 ms of every 100. Meanwhile the CPU is idle, or after the first time another
    one's (`busy`), or from the first time on (`always`). (Its turn comes a little late now and then: the other one is
    in the middle of something.)
    """
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, "other")
    turns = [period * 100_000 + 1000 + 500 * (period % 3) for period in range(11)]
    for period, at in enumerate(turns[:10]):
        cpus.run(0, DISPATCH, at, at + 10_000, "R")
        if always or (busy and period):
            cpus.run(0, GREEDY, at + 10_000, turns[period + 1] if always else (period + 1) * 100_000 + 900, "R")
    return cpus, scene


@pytest.mark.parametrize(("busy", "always"), [(False, False), (True, False), (True, True)])
def test_a_quota_is_to_blame_whoever_runs_meanwhile(busy: bool, always: bool) -> None:
    cpus, scene = throttled(busy=busy, always=always)
    scene.cgroup("/pod/job", throttled=90, quota=0.1)
    found = run(cpus, scene)
    hurt = bad(found)
    assert hurt.keys() == {"sched.throttled"}
    finding = hurt["sched.throttled"]
    assert finding.subject.cgroup == "/pod/job"
    assert finding.metrics["window_pct"] == pytest.approx(89, abs=2)
    assert finding.metrics["throttled_s"] == pytest.approx(0.9, abs=0.01)
    assert fixes(found) == [("raise_quota", "echo max > /sys/fs/cgroup/pod/job/cpu.max")]


def test_a_quota_that_hardly_bound_does_not_excuse_a_neighbour() -> None:
    """The waits end at one phase, but the kernel says that the cgroup was throttled for a fraction of them only."""
    cpus, scene = throttled(busy=True, always=True)
    scene.cgroup("/pod/job", throttled=9, quota=0.1)
    hurt = bad(run(cpus, scene))
    assert hurt["sched.preempted_by"].attributes["neighbour"] == "other"
    assert "sched.throttled" not in hurt


def test_an_idle_cpu_without_a_quota_accuses_nobody() -> None:
    found = run(*throttled(busy=False))
    assert {f.kind for f in bad(found).values()} <= {"sched.wakeup_latency"}
    assert {row.what for row in found.data.losses} >= {"held"}


def test_a_quota_of_others_is_not_the_targets() -> None:
    """The whole host was recorded: all its cgroups are in it."""
    cpus, scene = throttled(busy=False)
    scene.everything = True
    scene.cgroup("/elsewhere", throttled=60).process(PID, "python", cpu=20, cgroup="/pod/job")
    found = run(cpus, scene, {"pid": PID})
    assert "sched.throttled" not in {f.kind for f in found.findings}


def test_a_quota_that_never_bound_is_said_to_be_normal() -> None:
    cpus, scene = _healthy()
    scene.cgroup("/job", throttled=0)
    assert "sched.throttled" in normal(run(cpus, scene))


# --- placement ------------------------------------------------------------------------------------------------


def wandering(nodes: list[list[int]], every: int, targets: list[int]) -> tuple[Cpus, Scene]:
    """It wakes on the next of `targets` after every so many wakes."""
    cpus, scene = machine(nodes)
    place = 0
    for number, at in enumerate(times()):
        if number % every == every - 1:
            before, place = targets[place % len(targets)], place + 1
            cpus.move(DISPATCH, at, before, targets[place % len(targets)])
        cpu = targets[place % len(targets)]
        cpus.wake(DISPATCH, at + 0.5, cpu).run(cpu, DISPATCH, at + 5, at + 5 + WORK)
    return cpus, scene


def test_forced_moves_are_told_by_the_changes_of_what_the_thread_may_use() -> None:
    cpus, scene = wandering([[0, 1]], 5, [0, 1])
    for number in range(1, 20):
        cpus.mask(scene, DISPATCH, str(number % 2), at=number * 50_000)
    found = run(cpus, scene)
    finding = bad(found)["sched.migrations"]
    assert finding.metrics["count"] == finding.metrics["cross_core"] == WAKES / 5
    assert (finding.metrics["forced"], finding.metrics["cross_node"]) == (19, 0)
    assert finding.attributes == {"moves": "0 > 1"}
    assert {"one_placement"} <= {code for code, _ in fixes(found)}
    assert bad(found).keys() == {"sched.migrations"}


def test_a_scheduler_that_finds_another_cpu_is_not_accused() -> None:
    often = run(*wandering([[0, 1]], 2, [0, 1]))
    assert "sched.migrations" not in {f.kind for f in often.findings}  # neither good nor bad
    assert bad(often) == {}
    assert "sched.migrations" in normal(run(*wandering([[0, 1]], 50, [0, 1])))


def test_crossing_numa_nodes_again_and_again_is_abnormal_and_gets_its_command() -> None:
    found = run(*wandering([[0, 1], [2, 3]], 25, [0, 2]))
    finding = bad(found)["sched.migrations"]
    assert finding.metrics["cross_node"] == WAKES / 25
    assert ("stay_on_node", "numactl --cpunodebind=0 --membind=0 COMMAND") in fixes(found)
    assert bad(run(*wandering([[0, 1], [2, 3]], 25, [0, 1]))) == {}


def test_without_a_topology_nothing_is_said_of_nodes() -> None:
    cpus, scene = wandering([[0, 1], [2, 3]], 25, [0, 2])
    scene.tables.pop("proc.cpus")
    found = run(cpus, scene)
    assert bad(found) == {}
    assert found.data.dispatchers[0].cross_node is None
    assert ("no_topology", "") in found.not_seen


def test_a_cpu_that_comes_late_out_of_idle() -> None:
    cpus, scene = machine()
    found = run(steady(cpus, late=150), scene)
    hurt = bad(found)
    assert hurt.keys() == {"sched.wakeup_latency"}
    assert hurt["sched.wakeup_latency"].attributes == {"mostly": "idle_exit"}
    assert fixes(found) == [("shallow_idle", "cpupower -c 0 idle-set -D 10")]


# --- what the trace does not tell -----------------------------------------------------------------------------


def test_lost_events_accuse_nobody_and_clear_nobody() -> None:
    """The neighbour is there all the time, but most of that was lost."""
    cpus, scene = neighbour()
    cpus.hole(scene.window_ns / 1e4, scene.window_ns / 1e3)
    found = run(cpus, scene)
    assert bad(found) == {}
    assert normal(found) == set()
    assert [code for code, _ in found.not_seen if code == "trace_dark"] == ["trace_dark"]


def test_what_is_told_outside_of_a_hole_still_counts() -> None:
    cpus, scene = neighbour()
    cpus.hole(0, scene.window_ns / 2e3)
    finding = bad(run(cpus, scene))["sched.preempted_by"]
    assert finding.metrics["window_pct"] == pytest.approx(17.5, abs=0.5)
    assert finding.interval.start_ns >= 0.49 * scene.window_ns


@pytest.mark.parametrize("build", [{"lost": {"ftrace": 4}}, {"unproven": ["ftrace"]}])
def test_normal_is_said_only_when_everything_was_seen(build: dict[str, Any]) -> None:
    cpus, scene = _healthy()
    assert normal(run(cpus, scene, None, **build)) == set()


def test_an_unseen_switch_is_nobodys_fault() -> None:
    """The switch back to the dispatch thread is never told: how long it waited is not known, nor that it did not."""
    cpus, scene = neighbour()
    cpus.fill(scene)
    table = scene.tables["ftrace.switches"]
    table[:] = [row for row in table if not (row["cpu"] == 0 and row["next_tid"] == DISPATCH)]
    found = host_bound.judge(scene.build(without=["profile"]), host_bound.Params())
    assert {f.kind for f in found.findings} <= {"irq.steal"}
    assert found.data.dispatchers[0].unknown_pct > 30


def test_a_switch_untold_now_and_then_blinds_nobody() -> None:
    """Kernels lose one of a thousand: the wait beside it is not known, the others are."""
    cpus, scene = neighbour()
    cpus.fill(scene)
    table = scene.tables["ftrace.switches"]
    mine = [row for row in table if row["prev_tid"] == DISPATCH]
    for row in mine[100:300:100]:
        table.remove(row)
    found = host_bound.judge(scene.build(without=["profile"]), host_bound.Params())
    finding = bad(found)["sched.preempted_by"]
    assert finding.metrics["window_pct"] == pytest.approx(35, abs=0.5)
    assert 0 < found.data.dispatchers[0].unknown_pct < 1


def test_a_cpu_that_was_not_traced_tells_nothing() -> None:
    cpus, scene = machine()
    for at in times():
        cpus.wake(DISPATCH, at, 5).run(0, DISPATCH, at + 600, at + 600 + WORK)
    found = run(cpus, scene)
    assert "sched.preempted_by" not in bad(found)
    assert {row.what for row in found.data.losses if row.total_ms > 1} == {"unknown"}


# --- who dispatches -------------------------------------------------------------------------------------------


def test_a_regular_short_worker_is_preferred_to_a_busy_one() -> None:
    cpus, scene = machine()
    cpus.thread(PID + 2, "compute", PID)
    scene.thread(PID + 2, "compute", user=90)
    cpus.threads[DISPATCH] = (PID, "worker-3")  # its name tells nothing
    cpus.run(1, PID + 2, 10, scene.window_ns / 1e3 - 10)
    found = run(steady(cpus), scene)
    assert found.data.dispatchers[0].tid == DISPATCH
    assert found.data.dispatchers[0].chosen_by == "periodic,most_woken"


def test_only_the_thread_that_was_asked_for_is_judged() -> None:
    cpus, scene = neighbour()
    found = run(cpus, scene, {"tid": GREEDY})
    assert [(row.tid, row.chosen_by, row.sure) for row in found.data.dispatchers] == [(GREEDY, "asked", "sure")]


def test_nobody_to_judge_is_told() -> None:
    cpus, scene = _healthy()
    scene.everything = True
    found = run(cpus, scene)
    assert found.findings == []
    assert ("no_dispatch_thread", "host") in found.not_seen
    assert found.seen > 0


def test_a_thread_that_the_trace_does_not_tell_of_is_told() -> None:
    found = run(*neighbour(), {"tid": 123456})
    assert found.data.dispatchers == []
    assert found.findings == []
    assert ("no_dispatch_thread", "thread 123456") in found.not_seen


@pytest.mark.parametrize("asked", [{"pid": PID}, {"comm": "python"}])
def test_a_trace_of_the_whole_host_is_judged_for_the_process_asked_for(asked: dict[str, Any]) -> None:
    cpus, scene = neighbour()
    found = run(cpus, scene, asked, target=Target(everything=True), without=["proc", "profile"])
    assert [row.tid for row in found.data.dispatchers] == [DISPATCH]
    cpus.threads = {tid: (-1, comm) for tid, (_, comm) in cpus.threads.items()}  # a trace that knows no processes
    lost = run(cpus, Scene(window_s=1), asked, target=Target(everything=True), without=["proc", "profile"])
    assert lost.data.dispatchers == []
    assert "no_dispatch_thread" in dict(lost.not_seen)
    one = run(cpus, Scene(window_s=1), {"pid": DISPATCH}, target=Target(everything=True), without=["proc", "profile"])
    assert [row.tid for row in one.data.dispatchers] == [DISPATCH]


def test_children_are_judged_when_they_were_recorded() -> None:
    cpus, scene = neighbour()
    cpus.threads[DISPATCH] = (DISPATCH, "rank1")
    scene.tables["proc.threads"].clear()
    scene.thread(DISPATCH, "rank1", pid=DISPATCH, user=15)
    family = Target(everything=False, pid=PID, pids=[PID], follow=True)
    found = run(cpus, scene, {"pid": PID, "children": True}, target=family)
    assert [row.tid for row in found.data.dispatchers] == [DISPATCH]


def test_an_idle_process_has_no_dispatch_thread() -> None:
    cpus, scene = machine()
    found = run(cpus, scene)
    assert found.data.dispatchers == []


# --- the recording --------------------------------------------------------------------------------------------


def test_a_trace_alone_is_enough(tmp_path: Path) -> None:
    cpus, scene = neighbour()
    everything = Target(everything=True)
    found = run(cpus, scene, {"pid": PID}, without=["proc", "profile"], target=everything)
    assert bad(found)["sched.preempted_by"].attributes["neighbour"] == "greedy"
    assert found.data.dispatchers[0].pinned is None
    assert {code for code, _ in found.not_seen} >= {"no_topology", "no_profile", "calls_not_traced"}


def test_judging_a_stored_recording_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    cpus, scene = neighbour()
    recording = cpus.fill(scene).build(without=["profile"])
    recording.save(tmp_path / "rec")
    first = envelope(host_bound.TOOL, recording, host_bound.Params())
    assert envelope(host_bound.TOOL, Recording.open(tmp_path / "rec", COLLECTORS), host_bound.Params()) == first
    assert first.status is Status.OK
    assert {f.kind for f in first.findings} <= host_bound.TOOL.kinds


def test_redacted_names_change_no_number() -> None:
    cpus, scene = neighbour()
    plain = cpus.fill(scene).build(without=["profile"])
    one, two = (host_bound.judge(r, host_bound.Params()) for r in (plain, redact(plain)))
    assert [f.metrics for f in one.findings] == [f.metrics for f in two.findings]
    assert "greedy" not in str(two)


def test_a_hostile_name_stays_a_name() -> None:
    evil = "$(reboot);`x`'\""
    cpus, scene = neighbour(evil)
    scene.process(GREEDY, evil, cpu=40)
    found = run(cpus, scene)
    assert bad(found)["sched.preempted_by"].attributes["neighbour"] == evil
    assert all(evil not in command for _, command in fixes(found))


def test_a_hostile_cgroup_is_quoted_in_the_command() -> None:
    cpus, scene = throttled(busy=False)
    scene.cgroup("/a b';reboot", throttled=90, quota=0.1)
    (fix,) = fixes(run(cpus, scene))
    assert fix[1] == """echo max > '/sys/fs/cgroup/a b'"'"';reboot/cpu.max'"""
