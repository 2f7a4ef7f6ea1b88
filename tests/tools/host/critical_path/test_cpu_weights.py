"""Processes of higher weight that keep a thread from the CPUs."""

from __future__ import annotations

import pytest
from recordings import PID, Scene

from whystall.tools.contract.findings import Finding
from whystall.tools.host.critical_path.tool import TOOL
from whystall.tools.recording.judging import judge

HEAVY, THREAD, WINDOW_NS = 77, 4101, 12_000_000_000
Levels = list[tuple[str, int, str, int]]
BATCH: Levels = [("/batch", 1024, "cpu.shares", 1024), ("", 1024, "nice", 0)]


def outweighed(own: Levels, other: Levels, by: int = HEAVY) -> list[Finding]:
    scene = Scene().thread(user=50)
    for second in range(12):
        scene.wait(second, 500, "", state="R", runnable_ns=500_000_000, ran_pid=by, ran_comm="indexer")
    for pid, levels in ((PID, own), (HEAVY, other)):
        for group, weight, setting, value in levels:
            row = {"at_ns": WINDOW_NS, "pid": pid, "comm": "p", "group": group, "weight": weight}
            scene.tables.setdefault("proc.cpu_weights", []).append(row | {"setting": setting, "value": value})
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).findings
    return [one for one in found if one.kind == "cpu.outweighed"]


def test_a_cgroup_with_few_shares_beside_one_with_many() -> None:
    job: Levels = [("", 1024, "nice", 0), ("/job/a", 4096, "cpu.shares", 4096), ("/job", 10, "cpu.shares", 10)]
    (found,) = outweighed(job, BATCH)
    assert found.subject.cgroup == "/job"
    assert found.metrics["weight_ratio"] == pytest.approx(102.4)
    assert (found.attributes["setting"], found.attributes["other_setting"]) == ("cpu.shares 10", "cpu.shares 1024")
    assert (found.attributes["neighbour"], found.attributes["other_group"]) == ("indexer (77)", "/batch")


@pytest.mark.parametrize(
    ("own", "found"),
    [
        pytest.param([("", 15, "nice", 19)], True, id="nice in the root beside a cgroup"),
        pytest.param([("/batch", 1024, "cpu.shares", 1024), ("", 3, "SCHED_IDLE", 0)], True, id="in one cgroup"),
        pytest.param([("/job", 1024, "cpu.shares", 1024), ("", 15, "nice", 19)], False, id="nice within a cgroup"),
        pytest.param([("/job", 600, "cpu.shares", 600), ("", 1024, "nice", 0)], False, id="nearly as heavy"),
        pytest.param([], False, id="unknown"),
    ],
)
def test_weights_count_between_siblings(own: Levels, found: bool) -> None:
    assert bool(outweighed(own, BATCH)) is found


def test_nobody_is_blamed_who_did_not_have_the_cpus() -> None:
    job: Levels = [("/job", 10, "cpu.shares", 10), ("", 1024, "nice", 0)]
    assert not outweighed(job, BATCH, by=HEAVY + 1)


def test_a_thread_with_a_policy_of_its_own_is_judged_by_it_also_behind_its_own_job() -> None:
    thread: Levels = [("/batch", 1024, "cpu.shares", 1024), ("", 3, "SCHED_IDLE", 0)]
    scene = Scene().process(HEAVY, "hog", ppid=PID).thread(user=90).thread(THREAD, "flusher", user=1)
    for second in range(12):
        ran = {"ran_pid": HEAVY, "ran_comm": "hog", "runnable_ns": 990_000_000}
        scene.wait(second, 990, "", tid=THREAD, state="R", **ran)
    for pid, levels in ((PID, BATCH), (HEAVY, BATCH), (THREAD, thread)):
        for group, weight, setting, value in levels:
            row = {"at_ns": WINDOW_NS, "pid": pid, "comm": "p", "group": group, "weight": weight}
            scene.tables.setdefault("proc.cpu_weights", []).append(row | {"setting": setting, "value": value})
    result = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, "tid": THREAD}))
    (found,) = [one for one in result.findings if one.kind == "cpu.outweighed"]
    assert (found.attributes["setting"], found.attributes["neighbour"]) == ("SCHED_IDLE 0", "hog (77)")
