"""Idle gaps of an accelerator: whose fault each is, from schedules and profiles made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from recordings import PID, Scene
from sched_scenes import DISPATCH, GREEDY, PERIOD, WAKES, WORK, Cpus, bad, machine, normal, steady, times

from whystall.tools.contract.findings import Severity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host.host_bound import tool as host_bound

pytestmark = pytest.mark.thorough

Work = tuple[Cpus, Scene]


class Profile:
    """What the profiler saw, in microseconds."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.count = 0

    def add(self, kind: str, start: float, end: float, name: str = "", **more: Any) -> None:
        row = {"pid": PID, "tid": DISPATCH, "device": -1, "stream": -1, "correlation": -1, "step": -1} | more
        span = {"start_ns": round(start * 1000), "end_ns": round(end * 1000)}
        self.scene._add("profile.activities", **span, kind=kind, name=name or kind, **row)

    def kernel(
        self, launched: float, start: float, end: float, *, tid: int = DISPATCH, device: int = 0, **more: Any
    ) -> None:
        """A launch that returns at that time, and its kernel."""
        self.count += 1
        step = int(launched // (50 * PERIOD))
        self.add("launch", launched - 10, launched, "cudaLaunchKernel", tid=tid, correlation=self.count, step=step)
        self.add("kernel", start, end, "gemm", device=device, stream=7, correlation=self.count, step=step, **more)

    def step(self, number: int, start: float, end: float) -> None:
        row = {"start_ns": round(start * 1000), "end_ns": round(end * 1000), "step": number}
        self.scene._add("profile.steps", **row, pid=PID, tid=DISPATCH)


def run(cpus: Cpus, scene: Scene, params: dict[str, Any] | None = None, **build: Any) -> Judgement[host_bound.Data]:
    return host_bound.judge(cpus.fill(scene).build(**build), host_bound.Params(**(params or {})))


def fed(cpus: Cpus, scene: Scene, launched: Callable[[int, float], float], busy: float = PERIOD - 100) -> Work:
    """One kernel per wake, `busy` us long unless the next one is late, launched so long after the wake."""
    profile, free = Profile(scene), 0.0
    for number, at in enumerate(times()):
        asked = at + launched(number, at)
        start = max(asked + 4, free)
        profile.kernel(asked, start, start + busy)
        free = start + busy
        if number % 50 == 0:
            profile.step(number // 50, at - 50, min(at - 50 + 50 * PERIOD, scene.window_ns / 1e3))
    return cpus, scene


def reasons(found: Judgement[host_bound.Data], least: float = 1.0) -> dict[str, float]:
    """Percent of the idle time by reason."""
    total: dict[str, float] = {}
    for row in found.data.reasons:
        total[row.reason] = total.get(row.reason, 0.0) + row.idle_pct
    assert sum(total.values()) <= 100.001
    return {reason: pct for reason, pct in total.items() if pct >= least}


def test_a_device_that_is_fed_in_time_is_healthy() -> None:
    cpus, scene = machine()
    found = run(*fed(steady(cpus), scene, lambda number, at: 50))
    assert bad(found) == {}
    assert {"accel.idle", "accel.host_bound"} <= normal(found)
    (device,) = found.data.devices
    assert device.idle_pct == pytest.approx(5, abs=0.1)
    assert found.data.dispatchers[0].chosen_by == "launches"
    assert found.data.dispatchers[0].sure == "sure"
    assert found.data.gaps == []


def test_a_gap_behind_a_neighbour_is_his() -> None:
    """Between two kernels: the rest of the sleep, the wait behind the neighbour, and the work up to the launch."""
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, "greedy")
    scene.process(GREEDY, "greedy", cpu=40)
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, GREEDY, at - 50, at + 600, "R").run(0, DISPATCH, at + 600, at + 600 + WORK)
    found = run(*fed(cpus, scene, lambda number, at: 650, busy=1200))
    finding, rest = (f for f in found.findings if f.kind == "accel.host_bound")
    assert finding.attributes == {"reason": "no_cpu", "by": "greedy", "accelerator": "0"}
    assert rest.attributes["reason"] == "sleep"
    assert finding.metrics["window_pct"] == pytest.approx(100 * 600 / PERIOD, abs=0.2)
    assert (finding.subject.tid, finding.severity) == (DISPATCH, Severity.MAJOR)
    (idle,) = (f for f in found.findings if f.kind == "accel.idle")
    assert idle.metrics["idle_pct"] == pytest.approx(40, abs=0.2)
    assert idle.metrics["host_pct"] == pytest.approx(99.5, abs=0.1)
    assert reasons(found) == {
        "no_cpu": pytest.approx(75, abs=0.3),
        "sleep": pytest.approx(146 / 8, abs=0.3),
        "running": pytest.approx(50 / 8, abs=0.3),
    }
    assert len(found.data.gaps) == 10
    gap = found.data.gaps[0]
    assert (gap.reason, gap.who, gap.tid, gap.next_work) == ("no_cpu", f"greedy ({GREEDY})", DISPATCH, "gemm")
    assert gap.idle_us == pytest.approx(800)
    assert found.totals["gaps"] == WAKES - 1


def busy_python(cpus: Cpus, scene: Scene) -> Work:
    """The thread works for most of each period before it launches."""
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + 5, at + 1405)
    fed(cpus, scene, lambda number, at: 1400, busy=1000)
    profile = Profile(scene)
    for at in times():
        profile.add("annotation", at, at + 1999, "my range")
        profile.add("operator", at + 5, at + 1390, "aten::linear")
        profile.add("python", at + 400, at + 1380, "tokenise")
    return cpus, scene


def test_a_host_that_works_all_the_time_is_host_bound_dispatch() -> None:
    found = run(*busy_python(*machine()))
    finding = bad(found)["accel.host_bound"]
    assert finding.attributes["reason"] == "running"
    assert [remedy.code for remedy in found.data.remedies] == ["pipeline_dispatch", "allocator"]
    assert {gap.host_work for gap in found.data.gaps} == {"tokenise"}  # the innermost that takes half of it
    assert not {"sched.preempted_by", "irq.steal"} & bad(found).keys()


def test_work_that_was_enqueued_before_is_not_the_hosts() -> None:
    """The kernels wait for an event of another stream: they were launched long before the device fell idle."""
    cpus, scene = machine()
    steady(cpus)
    profile = Profile(scene)
    for at in times()[2:]:
        profile.kernel(at - 2 * PERIOD + 50, at, at + 1000)
    found = run(cpus, scene)
    assert reasons(found) == {"ahead": pytest.approx(100)}
    (device,) = found.data.devices
    assert (device.ahead_pct, device.host_pct) == (pytest.approx(100), 0)
    assert bad(found) == {}
    assert found.data.gaps == []
    assert "accel.idle" in normal(found)  # it idles, but not because of the host


def test_work_of_unknown_launch_accuses_and_clears_nobody() -> None:
    cpus, scene = machine()
    steady(cpus)
    profile = Profile(scene)
    for at in times():
        profile.add("kernel", at, at + 1000, "gemm", device=0, stream=7)
        profile.add("launch", at + 40, at + 50, "cudaLaunchKernel")
    found = run(cpus, scene)
    assert reasons(found) == {"unlinked": pytest.approx(100)}
    assert not {f.kind for f in found.findings} & {"accel.idle", "accel.host_bound"}


def test_a_launch_on_its_way_is_neither_the_hosts_nor_ahead() -> None:
    cpus, scene = machine()
    steady(cpus)
    profile = Profile(scene)
    for at in times():
        profile.kernel(at + 50, at + 550, at + 1550)
    assert reasons(run(cpus, scene)) == {
        "launch": pytest.approx(50, abs=0.2),
        "sleep": pytest.approx(45, abs=1),
        "running": pytest.approx(4.5, abs=1),
    }


def test_waiting_for_the_device_in_a_call_is_that_call_also_while_it_spins() -> None:
    cpus, scene = machine()
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + 5, at + 1905)
    fed(cpus, scene, lambda number, at: 1000, busy=1000)
    profile = Profile(scene)
    for at in times():
        profile.add("sync", at + 5, at + 905, "cudaStreamSynchronize")
        profile.add("sync", at + 100, at + 200, "cudaEventSynchronize")
    found = reasons(run(cpus, scene))
    assert found["sync"] == pytest.approx(90, abs=0.5)
    assert found["running"] == pytest.approx(9.5, abs=0.5)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("futex", "lock"),
        ("clock_nanosleep", "sleep"),
        ("epoll_wait", "poll"),
        ("ioctl", "driver"),
        ("fsync", "io"),
        ("recvfrom", "call"),
    ],
)
def test_what_it_blocks_in_is_told_where_calls_were_traced(call: str, reason: str) -> None:
    cpus, scene = machine()
    steady(cpus)
    for at in times():
        cpus.call(DISPATCH, at + WORK, at + PERIOD, call)
    found = run(*fed(cpus, scene, lambda number, at: 50, busy=1000))
    finding = bad(found)["accel.host_bound"]
    assert finding.attributes["reason"] == reason
    assert (finding.severity is Severity.MINOR) is (reason in ("sleep", "poll", "call"))  # by its own choice
    assert found.data.waits[0].what == reason


def test_a_colleague_that_wakes_it_is_named() -> None:
    cpus, scene = machine()
    loader = PID + 7
    cpus.thread(loader, "loader", PID)
    for at in times():
        cpus.run(1, loader, at - 200, at + 2).wake(DISPATCH, at, 1, loader, "task")
        cpus.run(1, DISPATCH, at + 5, at + 5 + WORK)
    found = run(*fed(cpus, scene, lambda number, at: 50, busy=1000))
    finding = bad(found)["accel.host_bound"]
    assert finding.attributes == {"reason": "colleague", "by": f"loader ({loader})", "accelerator": "0"}


def test_gaps_shorter_than_the_alignment_is_good_for_have_no_reason() -> None:
    cpus, scene = busy_python(*machine())
    recording = cpus.fill(scene).build()
    recording.manifest.collectors["profile"].options["residual_ns"] = 600_000
    found = host_bound.judge(recording, host_bound.Params())
    assert reasons(found) == {"unknown": pytest.approx(99.6, abs=0.2)}
    assert "accel.host_bound" not in bad(found)
    assert bad(found)["accel.idle"].metrics["host_pct"] > 99  # that it is the host's is known all the same


def test_a_launching_thread_that_the_trace_does_not_know_has_no_story() -> None:
    """The profile counts threads within a container."""
    cpus, scene = machine()
    steady(cpus)
    profile = Profile(scene)
    for at in times():
        profile.kernel(at + 900, at + 904, at + 1904, tid=17)
    found = run(cpus, scene)
    assert reasons(found) == {"unknown": pytest.approx(99.6, abs=0.1)}
    assert ("profile_threads", "") in found.not_seen
    assert found.data.dispatchers[0].tid == DISPATCH
    assert "accel.host_bound" not in bad(found)


def test_each_device_is_judged_by_itself_and_by_its_own_thread() -> None:
    cpus, scene = machine()
    other = PID + 2
    cpus.thread(other, "second", PID)
    scene.thread(other, "second", user=70)
    profile = Profile(scene)
    steady(cpus)
    for at in times():
        cpus.wake(other, at, 1).run(1, other, at + 5, at + 1405)
        profile.kernel(at + 50, at + 54, at + 1990)
        profile.kernel(at + 1400, at + 1404, at + 2404, tid=other, device=1)
    found = run(cpus, scene)
    assert {row.tid for row in found.data.dispatchers} == {DISPATCH, other}
    idle = {row.device: row.idle_pct for row in found.data.devices}
    assert idle == {0: pytest.approx(3, abs=0.5), 1: pytest.approx(50, abs=0.5)}
    assert {f.subject.tid for f in found.findings if f.kind == "accel.host_bound"} == {DISPATCH, other}
    assert bad(found)["accel.host_bound"].subject.tid == other


def test_overlapping_streams_leave_no_gap() -> None:
    cpus, scene = machine()
    steady(cpus)
    profile = Profile(scene)
    for at in times():
        profile.kernel(at + 50, at + 54, at + 1500)
        profile.add("collective", at + 1400, at + 2054, "allreduce", device=0, stream=9)
    (device,) = run(cpus, scene).data.devices
    assert (device.gaps, device.idle_pct) == (0, 0)


def test_the_step_with_most_idle_time_comes_first() -> None:
    """A neighbour comes for the third step of ten only."""
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, "greedy")

    def hit(number: int) -> bool:
        return number // 50 == 2

    for number, at in enumerate(times()):
        late = 900 if hit(number) else 5
        if hit(number):
            cpus.run(0, GREEDY, at - 50, at + late, "R")
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + late, at + late + WORK)
    found = run(*fed(cpus, scene, lambda number, at: 945 if hit(number) else 50, busy=1050))
    step = found.data.steps[0]
    assert (step.step, step.reason, step.who) == (2, "no_cpu", f"greedy ({GREEDY})")
    assert step.duration_ms == pytest.approx(100)
    assert step.ready_pct == pytest.approx(45, abs=1)
    assert found.totals["steps"] == 10
    assert all(row.ready_pct is not None and row.ready_pct < 1 for row in found.data.steps[1:])


def test_a_profile_without_device_work_is_no_profile() -> None:
    cpus, scene = machine()
    profile = Profile(scene)
    profile.add("operator", 100, 200, "aten::add")
    found = run(steady(cpus), scene)
    assert found.data.devices == []
    assert ("no_device_work", "") in found.not_seen
