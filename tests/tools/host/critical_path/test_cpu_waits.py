"""Who had the CPUs that a thread waited for: recordings made by hand, on a host of two CPUs."""

from __future__ import annotations

import pytest
from recordings import PID, Scene

from whystall.tools.contract.findings import Finding
from whystall.tools.host.critical_path.tool import TOOL, Data, PathRow
from whystall.tools.recording.judging import judge

OTHER, HOG = 4101, 77
WINDOW_NS = 12_000_000_000


def judged(scene: Scene) -> tuple[PathRow, list[Finding]]:
    """The row of waits for a CPU, and the findings."""
    result = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID}))
    assert isinstance(result.data, Data)
    (row,) = [one for one in result.data.rows if one.what == "cpu"]
    return row, result.findings


def waiting(by: int, comm: str, ms: float = 500) -> Scene:
    """The main thread waits for a CPU for a part of each second, and runs for the rest."""
    scene = Scene().thread(user=100 - ms / 10).thread(OTHER, "omp", user=50)
    for second in range(12):
        scene.wait(second, ms, "", state="R", runnable_ns=int(ms * 1e6), ran_pid=by, ran_comm=comm)
    return scene


def bound(scene: Scene, cpus: str, cpuset: str = "") -> Scene:
    for tid in (PID, OTHER):
        row = {"at_ns": 0, "pid": PID, "tid": tid, "comm": "train", "cpus": cpus, "cpuset": cpuset}
        scene.tables.setdefault("proc.affinity", []).append(row)
    return scene


def hog(scene: Scene, share: float, cpus: str, tid: int = HOG) -> Scene:
    row = {"at_ns": WINDOW_NS, "pid": tid, "tid": tid, "comm": "spinner", "policy": "fifo", "priority": 50}
    scene.tables.setdefault("proc.real_time", []).append({**row, "run_ns": int(share * WINDOW_NS), "cpus": cpus})
    return scene


def busy(scene: Scene, *, allowed: int, inside: float, total: float) -> Scene:
    """Shares of one CPU for which the target's CPUs, and all of the host, were busy."""
    counts = {"target_cpu_count": (allowed, allowed), "target_cpu_busy_ns": (0.0, inside * WINDOW_NS)}
    return scene.host(cpu_user_ns=(0.0, total * WINDOW_NS), cpu_idle_ns=(0.0, (2 - total) * WINDOW_NS), **counts)


@pytest.mark.parametrize(
    ("cpuset", "total", "detail"),
    [
        ("", 1.1, "pinned"),
        ("", 2.0, "own_pinned"),
        ("0-1", 2.0, "own_pinned"),
        ("0", 2.0, "own_cpuset"),
        ("0", 1.1, "own_cpuset"),
    ],
)
def test_own_threads_on_fewer_cpus_than_the_host_has(cpuset: str, total: float, detail: str) -> None:
    scene = busy(bound(waiting(PID, "train"), "0", cpuset), allowed=1, inside=1.0, total=total)
    row, _ = judged(scene)
    assert (row.detail, row.cpus) == (detail, "0")


def test_strangers_on_the_only_allowed_cpu_while_the_other_is_busy_too() -> None:
    row, _ = judged(busy(bound(waiting(99, "stress"), "0"), allowed=1, inside=1.0, total=2.0))
    assert (row.detail, row.cpus) == ("others", "0")


def test_real_time_threads_are_found_though_another_one_ran_last() -> None:
    scene = waiting(99, "kworker/0:1", ms=900)
    scene = busy(hog(hog(scene, 0.95, "0"), 0.95, "1", HOG + 1), allowed=2, inside=2.0, total=2.0)
    scene.tables["proc.threads"] = [row for row in scene.tables["proc.threads"] if row["tid"] == PID]
    row, findings = judged(scene)
    assert (row.detail, row.by) == ("real_time", "spinner (77) +1")
    named = [f for f in findings if f.kind == "sched.real_time"]
    assert [f.subject.pid for f in named] == [HOG, HOG + 1]
    assert named[0].attributes == {"policy": "fifo", "cpus": "0"}
    assert named[0].metrics["cpu_pct"] == pytest.approx(95)


@pytest.mark.parametrize(
    ("share", "cpus", "inside", "detail"),
    [
        pytest.param(0.05, "0-1", 2.0, "others", id="it hardly ran"),
        pytest.param(0.6, "0-1", 2.0, "others", id="strangers ran more"),
        pytest.param(-1e-9, "0-1", 2.0, "others", id="how long it ran is not known"),
        pytest.param(0.9, "0", 1.6, "real_time", id="nobody else ran"),
    ],
)
def test_real_time_threads_are_blamed_only_if_they_had_the_cpus(
    share: float, cpus: str, inside: float, detail: str
) -> None:
    scene = busy(hog(waiting(99, "stress", ms=400), share, cpus), allowed=2, inside=inside, total=2.0)
    scene.tables["proc.threads"] = [row for row in scene.tables["proc.threads"] if row["tid"] == PID]
    assert judged(scene)[0].detail == detail


def test_a_real_time_thread_that_was_seen_on_the_cpu_is_blamed_no_longer_than_it_ran() -> None:
    seen = waiting(HOG, "spinner")
    assert judged(hog(seen, 0.5, "0"))[0].detail == "real_time"
    assert judged(hog(waiting(HOG, "spinner"), 0.1, "0"))[0].detail == "others"


@pytest.mark.parametrize(("other", "detail"), [(0.01, "real_time_limit"), (0.5, "others")])
def test_ordinary_processes_do_not_keep_a_real_time_thread_waiting(other: float, detail: str) -> None:
    scene = hog(hog(waiting(99, "stress", ms=850), 0.15, "0-1", PID), other, "0")
    assert judged(scene)[0].detail == detail


def test_a_list_of_cpus_that_is_none_is_unknown() -> None:
    row, _ = judged(bound(waiting(99, "stress"), "0-99999999"))
    assert (row.detail, row.cpus) == ("others", "")


RANK = 5000
REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:3252)", "average (train.py:21)")


def awaited(*, throttled_s: float = 0.0, cgroup: str = "", cpus: str = "", by: int = HOG, ms: float = 50) -> Scene:
    """The main thread waits for a thread of another process, which waits for a CPU for parts of `ms`."""
    scene = Scene().thread(user=10).thread(RANK, "rank", pid=RANK)
    scene.tables["proc.threads"] = [row for row in scene.tables["proc.threads"] if row["pid"] == PID]
    for second in range(12):
        woken = {"context": "task", "runnable_ns": 0, "waker_syscall": "sendto"}
        scene.wait(second, 900, "futex", lock=64, waker=(RANK, RANK, "rank"), user=REDUCE, **woken)
        at = second * 1.0
        while at + ms / 1e3 <= second + 0.9:
            scene.wait(at, ms, "", tid=RANK, state="R", runnable_ns=int(ms * 1e6), ran_pid=by, ran_comm="spinner")
            at += ms / 1e3 + 0.002
    bound = {"pid": RANK, "cgroup": cgroup, "cpus": cpus, "quota_us": 20_000 if cgroup else -1, "period_us": 100_000}
    for at_ns, part in ((0, 0.0), (WINDOW_NS, 1.0)):
        counts = {"throttled_ns": int(part * throttled_s * 1e9), "periods": int(120 * part)}
        row = {"at_ns": at_ns, **bound, **counts, "throttled_periods": int(100 * part)}
        scene.tables.setdefault("proc.cpu_bounds", []).append(row)
    return scene


def ends(scene: Scene) -> tuple[PathRow, list[Finding]]:
    result = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID}))
    assert isinstance(result.data, Data)
    return max(result.data.rows, key=lambda row: row.window_pct), result.findings


def test_a_chain_ends_in_the_quota_of_another_process_if_its_cgroup_was_throttled() -> None:
    row, findings = ends(awaited(throttled_s=9.0, cgroup="/pods/b"))
    assert (row.root, row.root_what) == ("rank (5000)", "quota")
    (named,) = [f for f in findings if f.kind == "cgroup.cpu_throttled"]
    assert (named.subject.cgroup, named.subject.pid, named.metrics["quota_cpus"]) == ("/pods/b", RANK, 0.2)
    assert named.window_pct == pytest.approx(90, abs=1)


@pytest.mark.parametrize(
    ("ms", "throttled_s", "by", "cpus", "detail"),
    [(50, 0.1, HOG, "", "others"), (3, 9.0, HOG, "0", "confined"), (50, 0.0, PID, "", "")],
)
def test_a_chain_ends_in_a_process_that_others_keep_off_the_cpu(
    ms: float, throttled_s: float, by: int, cpus: str, detail: str
) -> None:
    row, findings = ends(awaited(throttled_s=throttled_s, cgroup="/pods/b", by=by, ms=ms, cpus=cpus))
    assert (row.root_what, row.root_detail) == ("cpu", detail)
    assert ("spinner (77)" in row.chain) is bool(detail)
    assert not [f for f in findings if f.kind == "cgroup.cpu_throttled"]


@pytest.mark.parametrize(("by", "detail"), [(PID, "own_shared"), (99, "others")])
def test_no_neighbour_is_blamed_for_waits_behind_few_own_threads(by: int, detail: str) -> None:
    scene = Scene().thread(user=50)
    for second in range(12):
        scene.wait(second, 500, "", state="R", runnable_ns=500_000_000, ran_pid=by, ran_comm="rank")
    assert judged(scene)[0].detail == detail


WORKERS = (6001, 6002, 6003)
RESULT = ("Condition.wait (python3.11/threading.py:327)", "Pool.map (python3.11/multiprocessing/pool.py:367)")


def crowded(cpus: str, cpuset: str, busy: dict[int, float], *, runs_ms: float = 30) -> Scene:
    """The main thread waits for worker processes that take turns on the same CPUs; `busy`: shares of each CPU."""
    scene = Scene().thread(user=10)
    for at, pid in enumerate(WORKERS):
        scene.process(pid, "python", ppid=PID).thread(pid, "python", pid=pid, user=33)
        row = {"at_ns": 0, "pid": pid, "tid": pid, "comm": "python", "cpus": cpus, "cpuset": cpuset}
        scene.tables.setdefault("proc.affinity", []).append(row)
        for turn in range(120):
            ran = {"ran_pid": WORKERS[at - 1], "ran_comm": "python", "runnable_ns": int((100 - runs_ms) * 1e6)}
            scene.wait(turn / 10, 100 - runs_ms, "", tid=pid, state="R", user=("decode (job.py:3)",), **ran)
    for second in range(12):
        woken = {"context": "task", "runnable_ns": 0, "waker_syscall": "write"}
        user = (*RESULT, "epoch (job.py:9)")
        scene.wait(second, 900, "futex", lock=64, waker=(WORKERS[0], WORKERS[0], "python"), user=user, **woken)
    for cpu, share in busy.items():
        for at_ns in (0, WINDOW_NS):
            row = {"at_ns": at_ns, "cpu": cpu, "busy_ns": int(share * at_ns)}
            scene.tables.setdefault("proc.cpu_times", []).append(row)
    return scene


@pytest.mark.parametrize(
    ("cpus", "cpuset", "busy", "runs_ms", "found"),
    [
        pytest.param("0", "0-1", {0: 1.0, 1: 0.1}, 30, ("cpu", "pinned"), id="bound, and another CPU is idle"),
        pytest.param("0", "0-1", {0: 1.0, 1: 0.1}, 60, ("cpu", "pinned"), id="the awaited one runs half of the time"),
        pytest.param("0", "0-1", {0: 1.0, 1: 0.1}, 90, ("running", ""), id="the awaited one nearly always runs"),
        pytest.param("0", "0-1", {0: 1.0, 1: 1.0}, 20, ("cpu", "own_pinned"), id="all CPUs are busy"),
        pytest.param("0", "0", {0: 1.0, 1: 0.1}, 20, ("cpu", "own_cpuset"), id="all that the container has"),
        pytest.param("0-1", "0-1", {0: 1.0, 1: 1.0}, 20, ("cpu", "own"), id="free to use all CPUs"),
    ],
)
def test_workers_that_are_bound_to_the_same_cpu(
    cpus: str, cpuset: str, busy: dict[int, float], runs_ms: float, found: tuple[str, str]
) -> None:
    row, _ = ends(crowded(cpus, cpuset, busy, runs_ms=runs_ms))
    assert (row.root_what, row.root_detail) == found
    assert ("of CPU 0" in row.chain) is (found[1] in ("pinned", "own_pinned", "own_cpuset"))


@pytest.mark.parametrize(
    ("busy", "found"), [({0: 1.0, 1: 0.1}, ("cpu", "pinned")), ({0: 1.0, 1: 1.0}, ("running", ""))]
)
def test_workers_that_end_the_waits_in_turn_lack_the_cpu_together(
    busy: dict[int, float], found: tuple[str, str]
) -> None:
    scene = crowded("0", "0-1", busy)
    for table in ("switches.segments", "switches.totals"):
        scene.tables.pop(table, None)
    scene._waits.clear()
    for second in range(12):
        worker = WORKERS[second % 3]
        woken = {"context": "task", "runnable_ns": 0, "waker_syscall": "write"}
        scene.wait(
            second, 900, "futex", lock=64, waker=(worker, worker, "python"), user=(*RESULT, "epoch (job.py:9)"), **woken
        )
        ran = {"ran_pid": worker, "ran_comm": "python", "runnable_ns": 1_000_000_000}
        for other in WORKERS:
            if other != worker:
                scene.wait(second, 1000, "", tid=other, state="R", user=("decode (job.py:3)",), **ran)
    row, _ = ends(scene)
    assert (row.root_what, row.root_detail) == found
    assert row.root_pct == pytest.approx(67 if found[1] else 100, abs=1)
