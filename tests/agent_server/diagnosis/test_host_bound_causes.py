"""An accelerator that idles: the symptom leads to host_bound, and its findings to the right cause - or to none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from recordings import PID, Scene
from sched_scenes import DISPATCH, GREEDY, PERIOD, WORK, machine, steady, times
from solving import solve

from whystall.agent_server.diagnosis import observer
from whystall.agent_server.diagnosis.assess import combined_share
from whystall.agent_server.diagnosis.observer import LiveObserver, RecordedObserver
from whystall.agent_server.diagnosis.victim import choose_victim
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.recording.target import Target
from whystall.tools.toolbox import registry

pytestmark = pytest.mark.thorough

HOST_BOUND = {"core_neighbour", "forced_migrations", "host_bound_dispatch", "late_wakeups"}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def investigate(scene: Scene, symptom: str, **build: Any) -> Diagnosis:
    return solve(RecordedObserver(scene.build(**build)), symptom, f"pid {PID}")


def accounts(scene: Scene, user: float, runnable: float) -> None:
    """What /proc says of the dispatch thread, in percent."""
    scene.tables["proc.threads"].clear()
    scene.thread(PID, "python").thread(DISPATCH, "dispatch", user=user, runnable=runnable)


def profile(scene: Scene, launched: float, busy: float) -> None:
    """One kernel per wake, launched so long after it."""
    free = 0.0
    for number, at in enumerate(times()):
        asked = at + launched
        start = max(asked + 4, free)
        free = start + busy
        row = {"pid": PID, "tid": DISPATCH, "correlation": number, "step": -1}
        for kind, begin, end, device in (("launch", asked - 9, asked, -1), ("kernel", start, free, 0)):
            span = {"start_ns": int(begin * 1000), "end_ns": int(end * 1000)}
            scene._add("profile.activities", **span, kind=kind, name=kind, device=device, stream=device, **row)


def neighbour(*, profiled: bool) -> Scene:
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, "greedy")
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, GREEDY, at - 50, at + 600, "R").run(0, DISPATCH, at + 600, at + 600 + WORK)
    accounts(scene, 15, 30)
    scene.process(GREEDY, "greedy", cpu=32)
    if profiled:
        profile(scene, 650, 1200)
    return cpus.fill(scene)


def three_neighbours() -> Scene:
    """None of them takes most of what is lost."""
    cpus, scene = machine(mask="0")
    others = [(GREEDY + n, f"greedy{n}") for n in range(3)]
    for at in times():
        cpus.wake(DISPATCH, at, 0)
        for n, (tid, name) in enumerate(others):
            cpus.thread(tid, name).run(0, tid, at - 50 + 200 * n, at + 150 + 200 * n, "R")
        cpus.run(0, DISPATCH, at + 550, at + 550 + WORK)
    accounts(scene, 15, 30)
    profile(scene, 600, 1200)
    return cpus.fill(scene)


def interrupts_before_it_runs() -> Scene:
    """For the scheduler the thread waits for a CPU while a softirq has it, and a little for a neighbour."""
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, "greedy")
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, GREEDY, at - 50, at + 900, "R").run(0, DISPATCH, at + 900, at + 900 + WORK)
        cpus.interrupt(0, GREEDY, at + 50, at + 650, "NET_RX")
    accounts(scene, 15, 45)
    profile(scene, 950, 1000)
    return cpus.fill(scene)


def interrupts() -> Scene:
    cpus, scene = machine()
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + 5, at + 1305)
        cpus.interrupt(0, DISPATCH, at + 100, at + 1100, "NET_RX")
    accounts(scene, 15, 0)
    profile(scene, 1200, 700)
    return cpus.fill(scene)


def slow_dispatch() -> Scene:
    cpus, scene = machine()
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + 5, at + 1905)
    accounts(scene, 95, 0)
    profile(scene, 1850, 500)
    return cpus.fill(scene)


def quota() -> Scene:
    cpus, scene = machine(mask="0")
    for period in range(10):
        at = period * 100_000 + 1000
        cpus.run(0, DISPATCH, at, at + 20_000, "R")
    accounts(scene, 20, 79)
    scene.cgroup("/pod", throttled=79, quota=0.2)
    return cpus.fill(scene)


def healthy() -> Scene:
    cpus, scene = machine()
    steady(cpus)
    accounts(scene, 15, 0.2)
    profile(scene, 50, PERIOD - 100)
    return cpus.fill(scene)


NEIGHBOUR = (lambda: neighbour(profiled=True), Verdict.CONFIRMED, "core_neighbour")


@pytest.mark.parametrize(
    ("scene", "verdict", "cause", "symptom"),
    [
        *((*NEIGHBOUR, symptom) for symptom in ("NPU idle", "GPU idle", "加速卡空闲", "host bound")),
        (lambda: neighbour(profiled=False), Verdict.CONFIRMED, "core_neighbour", "NPU idle"),
        (three_neighbours, Verdict.CONFIRMED, "core_neighbour", "NPU idle"),
        (interrupts, Verdict.CONFIRMED, "softirq_steal", "加速卡空闲"),
        (interrupts_before_it_runs, Verdict.LIKELY, "softirq_steal", "GPU idle"),
        (slow_dispatch, Verdict.LIKELY, "host_bound_dispatch", "host bound"),
        (quota, Verdict.CONFIRMED, "cgroup_cpu_throttling", "NPU idle"),
        (healthy, Verdict.HEALTHY, None, "GPU idle"),
    ],
)
def test_an_idle_accelerator_is_traced_to_its_host(
    scene: Callable[[], Scene], verdict: Verdict, cause: str | None, symptom: str
) -> None:
    found = investigate(scene(), symptom)
    assert (found.verdict, found.cause) == (verdict, cause), found.missing
    assert "host_bound" in found.steps[1].tools
    assert found.victim is not None
    assert found.victim.tid == DISPATCH


@pytest.mark.parametrize(
    ("scene", "cause"),
    [(three_neighbours, "core_neighbour"), (interrupts, "softirq_steal"), (healthy, None)],
)
def test_a_trace_and_a_profile_alone_name_the_cause_but_never_health(
    scene: Callable[[], Scene], cause: str | None
) -> None:
    others = ["proc", "syscalls", "switches", "block", "page_cache", "interrupts", "run_queue"]
    found = investigate(scene(), "GPU idle", without=others)
    assert [step.tools for step in found.steps] == [["host_bound"]]
    assert (found.verdict, found.cause) == (Verdict.LIKELY if cause else Verdict.INCONCLUSIVE, cause), found.missing
    assert "rivals_open" in found.missing
    assert (found.victim.tid if found.victim else None) == (DISPATCH if cause else None)


def test_the_thread_that_the_device_waits_for_is_the_victim() -> None:
    found = investigate(slow_dispatch(), "GPU idle")
    assert found.victim is not None
    assert found.victim.chosen_by == "feeds_accelerator"
    assert found.victim.lost_pct == pytest.approx(74, abs=2)
    assert found.explained_pct > 80
    assert choose_victim([f for f in found.findings if not f.kind.startswith("accel.")]) != found.victim


def test_a_server_without_requests_loses_nothing() -> None:
    cpus, scene = machine()
    steady(cpus)
    accounts(scene, 15, 0.2)
    profile(scene, 50, 400)
    found = investigate(cpus.fill(scene), "GPU idle")
    assert found.victim is not None
    assert (found.victim.chosen_by, found.victim.tid) == ("feeds_accelerator", DISPATCH)
    assert found.victim.lost_pct < 1
    assert (found.verdict, found.cause) == (Verdict.INCONCLUSIVE, None)
    assert found.missing == ["idle_unexplained"]  # why it has nothing to do is another question


def test_handlers_that_two_tools_tell_of_take_their_time_once() -> None:
    def steal(interrupt: str, pct: float, tid: int = DISPATCH) -> Finding:
        return Finding(
            kind="irq.steal",
            subject=Subject(type="thread", pid=PID, tid=tid, comm="dispatch"),
            interval=Interval(start_ns=0, end_ns=1_000_000),
            metrics={"window_pct": pct},
            attributes={"interrupt": interrupt},
            polarity=Polarity.ABNORMAL,
            severity=Severity.MAJOR,
        )

    twice = [steal("softirq NET_RX", 28.8), steal("softirq NET_RX", 28.5)]
    assert combined_share(twice) == combined_share(twice[::-1]) == pytest.approx(28.8)
    assert combined_share([*twice, steal("irq eth0", 5)]) == pytest.approx(33.8)


def test_rivals_are_ruled_out_by_what_was_measured() -> None:
    found = investigate(neighbour(profiled=True), "NPU idle")
    state = {a.cause: a.state for a in found.assessments}
    assert {state[cause] for cause in ("forced_migrations", "softirq_steal")} == {CauseState.RULED_OUT}
    assert state["late_wakeups"] is not CauseState.SUPPORTED
    assert state["cpu_contention"] is CauseState.SUPPORTED  # a less specific name for the same


@pytest.mark.parametrize("symptom", ["", "slow", "the training hangs"])
def test_other_symptoms_take_no_trace(symptom: str) -> None:
    found = investigate(neighbour(profiled=False), symptom, without=["profile"])
    assert all("host_bound" not in step.tools for step in found.steps)
    assert not HOST_BOUND & {a.cause for a in found.assessments}
    assert found.cause == "cpu_contention"


def test_a_recording_without_a_trace_says_what_was_not_examined() -> None:
    found = investigate(neighbour(profiled=False), "NPU idle", without=["ftrace", "profile"])
    unexamined = {a.cause for a in found.assessments if a.state is CauseState.NOT_EXAMINED}
    assert unexamined & HOST_BOUND == HOST_BOUND
    assert "softirq_steal" not in unexamined  # what handlers take can be timed without a trace
    assert found.verdict is not Verdict.CONFIRMED
    assert "rivals_open" in found.missing


def test_where_no_engine_can_trace_the_rest_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without privileges: /proc is all there is."""
    engines: Sequence[Any] = (ProcfsEngine,)
    monkeypatch.setattr(observer, "ENGINES", engines)
    tools = registry()
    looks = LiveObserver(Target(everything=True), "auto", None)
    asked = [tools.get("host_snapshot"), tools.get("host_bound")]
    results = anyio.run(looks.observe, asked, 0.3, {})
    assert [result.tool for result in results] == ["host_snapshot"]
