"""host_snapshot on recordings made by hand: what it accuses, what it clears, and where it keeps silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from whystall.tools.collect.tables import PROC
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host.host_snapshot.data import Data
from whystall.tools.host.host_snapshot.tool import TOOL, Params
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

S = 1_000_000_000
SPAN = 10 * S
Row = dict[str, Any]

QUIET: dict[str, tuple[float, float]] = {
    **{f"cpu_{state}_ns": (0.0, 0.0) for state in ("nice", "iowait", "irq", "softirq", "steal")},
    **{"cpu_user_ns": (0.0, 4.0 * S), "cpu_system_ns": (0.0, 1.0 * S), "cpu_idle_ns": (0.0, 15.0 * S)},
    **{"cpu_count": (2, 2), "target_cpu_count": (2, 2), "target_cpu_busy_ns": (0.0, 5.0 * S)},
    **{"runnable": (1, 0), "blocked": (0, 0), "load1": (0.5, 0.5)},
    **{f"psi_{what}_some_us": (7.0, 7.0) for what in ("cpu", "io", "memory")},
    **{"vm_pgscan_direct": (5, 5), "vm_pgscan_kswapd": (5, 5), "vm_pswpin": (9, 9), "vm_pswpout": (9, 9)},
}
SATURATED = {"target_cpu_busy_ns": (0.0, 19.9 * S), "runnable": (6, 6), "psi_cpu_some_us": (0.0, 9e6)}
THREAD: Row = {
    **{"pid": 7, "tid": 7, "comm": "train", "state": "S", "user_ns": 0, "system_ns": 0, "run_ns": 0, "wait_ns": 0},
    **{"block_io_ns": -1, "voluntary": 0, "involuntary": 0},
}
PROCESS: Row = {
    **{"pid": 7, "ppid": 1, "comm": "train", "start_ticks": 5, "user_ns": 0, "system_ns": 0, "block_io_ns": -1},
    **{"major_faults": 0, "minor_faults": 0, "rss_bytes": 1, "read_bytes": -1, "write_bytes": -1, "threads": 1},
    "cgroup": "/",
}
DISK: Row = {
    **{"device": "sda", "dev": "8:0", "reads": 0, "read_bytes": 0, "read_ms": 0, "writes": 0, "write_bytes": 0},
    **{"write_ms": 0, "busy_ms": 0, "in_flight": 0},
}
CGROUP: Row = {
    **{"cgroup": "/pod", "version": 1, "periods": 0, "throttled_periods": 0, "throttled_ns": 0, "quota_us": -1},
    **{"period_us": 100_000, "memory_bytes": -1, "memory_limit_bytes": -1, "memory_limit_hits": -1},
}


def pair(base: Row, **after: Any) -> list[Row]:
    """Two readings of one thing: `base`, and what it has become."""
    return [{**base, "at_ns": 0}, {**base, **after, "at_ns": SPAN}]


def judge(
    host: Mapping[str, tuple[float, float]] | None = None, everything: bool = False, **tables: list[Row]
) -> Judgement[Data]:
    """Judge a quiet host changed by `host`, with the other `tables`."""
    return judge_rows({"host": readings({**QUIET, **(host or {})}), **tables}, everything)


def readings(counters: Mapping[str, tuple[float, float]]) -> list[Row]:
    """Host counters at the start and at the end."""
    return [{"at_ns": at, "name": n, "value": v[i]} for n, v in counters.items() for i, at in ((0, 0), (1, SPAN))]


def judge_rows(tables: Mapping[str, list[Row]], everything: bool = False) -> Judgement[Data]:
    """Judge exactly these tables."""
    target = Target(everything=True) if everything else Target(everything=False, pid=7, comm="train", pids=[7])
    manifest = Manifest(
        **{"id": "x", "host": "h", "kernel": "k", "machine": "x86_64", "cpus": 2, "target": target, "started": "now"},
        **{"start_ns": 1, "window_ns": SPAN, "requested_ns": SPAN},
        collectors={"proc": CollectorManifest(engine="procfs")},
    )
    frames = {f"proc.{name}": pl.DataFrame(tables.get(name, []), schema) for name, schema in PROC.items()}
    return TOOL.judge(Recording.in_memory(manifest, frames), Params(pid=None if everything else 7))


def of(result: Judgement[Data], kind: str) -> list[Finding]:
    return [f for f in result.findings if f.kind == kind]


def abnormal(result: Judgement[Data]) -> dict[str, Severity]:
    return {f.kind: f.severity for f in result.findings if f.polarity is Polarity.ABNORMAL}


def test_a_quiet_host_and_target_accuse_nobody_and_clear_what_was_measured() -> None:
    result = judge(
        threads=pair(THREAD, user_ns=2 * S, run_ns=2 * S, wait_ns=S // 100),
        processes=pair(PROCESS, user_ns=2 * S) + pair({**PROCESS, "pid": 8, "comm": "other"}, user_ns=S),
        disks=pair(DISK, reads=100, read_bytes=1 << 20, read_ms=100, busy_ms=100),
        cgroups=pair(CGROUP, periods=100),
    )
    assert abnormal(result) == {}
    assert {f.kind for f in result.findings} >= {
        *("thread.time", "sched.runqueue_delay", "process.system_time", "process.major_faults", "cpu.saturated"),
        *("cpu.neighbour", "cgroup.cpu_throttled", "memory.reclaim", "memory.swap", "disk.saturated"),
    }
    assert {f.kind for f in result.findings} <= TOOL.kinds
    assert all(f.interval.end_ns == SPAN for f in result.findings)
    assert result.seen > 0


@pytest.mark.parametrize(
    ("wait_s", "severity"), [(0.4, None), (0.6, Severity.MINOR), (2.5, Severity.MAJOR), (5.0, Severity.CRITICAL)]
)
def test_waiting_for_a_cpu_is_graded_by_share(wait_s: float, severity: Severity | None) -> None:
    result = judge(threads=pair(THREAD, user_ns=S, run_ns=S, wait_ns=int(wait_s * S)))
    (finding,) = of(result, "sched.runqueue_delay")
    assert finding.metrics["window_pct"] == pytest.approx(10 * wait_s)
    assert (finding.subject.type, finding.subject.tid) == ("thread", 7)
    assert abnormal(result).get("sched.runqueue_delay") == severity


@pytest.mark.parametrize(
    ("looks", "pct"),
    [
        ([("R", 0, 0), ("R", 0, 0), ("R", 0, 0)], 100),  # it stands still all the time
        ([("R", 0, 0), ("R", 3, 2), ("R", 3, 2)], 20 + 50),
        ([("S", 0, 0), ("R", 3, 2), ("R", 3, 2)], 20 + 50),
        ([("R", 0, 0), ("R", 3, 2), ("S", 3, 2)], 20),
        ([("S", 0, 0), ("S", 0, 0), ("R", 0, 0)], 0),
        ([("R", 0, 0), ("S", 2, 300)], 80),  # it began long before
    ],
)
def test_a_wait_that_has_not_ended_or_began_before_counts_for_the_time_watched(
    looks: list[tuple[str, int, int]], pct: float
) -> None:
    rows = [
        {**THREAD, "state": state, "run_ns": run * S, "wait_ns": wait * S, "at_ns": SPAN * i // (len(looks) - 1)}
        for i, (state, run, wait) in enumerate(looks)
    ]
    (finding,) = of(judge(threads=rows), "sched.runqueue_delay")
    assert finding.window_pct == pytest.approx(pct)
    assert finding.polarity is (Polarity.ABNORMAL if pct else Polarity.NORMAL)


def test_a_neighbour_is_to_blame_only_when_the_target_waits_on_a_full_host() -> None:
    hog = pair(PROCESS, user_ns=S) + pair({**PROCESS, "pid": 8, "comm": "hog"}, user_ns=9 * S)
    waiting = pair(THREAD, user_ns=S, run_ns=S, wait_ns=5 * S)
    both = judge(SATURATED, threads=waiting, processes=hog)
    (accused,) = of(both, "cpu.neighbour")
    assert (accused.subject.comm, accused.polarity) == ("hog", Polarity.ABNORMAL)
    assert accused.metrics["cpu_pct"] == pytest.approx(90)
    assert abnormal(both)["cpu.saturated"] is Severity.MAJOR

    idle_host = judge(threads=waiting, processes=hog)
    assert of(idle_host, "cpu.neighbour") == []
    assert "cpu.saturated" not in abnormal(idle_host)

    quota = pair({**CGROUP, "quota_us": 50_000}, periods=100, throttled_periods=99, throttled_ns=5 * S)
    assert of(judge(SATURATED, threads=waiting, processes=hog, cgroups=quota), "cpu.neighbour") == []

    not_waiting = judge(SATURATED, threads=pair(THREAD, user_ns=9 * S, run_ns=9 * S), processes=hog)
    assert [f.polarity for f in of(not_waiting, "cpu.neighbour")] == [Polarity.NORMAL]


@pytest.mark.parametrize(("state", "named"), [("D", ["database"]), ("S", [])])
def test_processes_that_use_the_disks_are_named_while_the_target_waits_for_io(state: str, named: list[str]) -> None:
    rows = [{**THREAD, "state": state, "at_ns": SPAN * i // 9} for i in range(10)]
    mib, program = 1 << 20, {**PROCESS, "read_bytes": 0, "write_bytes": 0}
    processes = [
        *pair(program, write_bytes=20 * mib),
        *pair({**program, "pid": 8, "comm": "database"}, write_bytes=60 * mib, user_ns=S),
        *pair({**program, "pid": 9, "comm": "logger"}, write_bytes=2 * mib, user_ns=S),
        *pair({**program, "pid": 10, "comm": "shell"}, write_bytes=18 * mib),  # of children that it reaped
        *pair({**PROCESS, "pid": 11, "comm": "denied"}),
        *pair({**program, "pid": 12, "ppid": 2, "comm": "kworker/u8:1"}, write_bytes=90 * mib, user_ns=S),
    ]
    found = of(judge(threads=rows, processes=processes), "disk.neighbour")
    assert [f.subject.comm for f in found] == named
    assert [f.metrics["bytes_pct"] for f in found] == [pytest.approx(60)] * len(named)


@pytest.mark.parametrize(
    ("own", "theirs", "busy", "contended"),
    [
        pytest.param(1, 300, 95, True, id="a neighbour fills it"),
        pytest.param(1, 300, 30, False, id="it has time left"),
        pytest.param(200, 300, 95, False, id="the job moves much there itself"),
        pytest.param(1, 20, 95, False, id="the neighbour cannot have moved that much"),
    ],
)
def test_a_disk_that_others_keep_busy(own: int, theirs: int, busy: int, contended: bool) -> None:
    rows = [{**THREAD, "state": "D", "at_ns": SPAN * i // 9} for i in range(10)]
    mib, program = 1 << 20, {**PROCESS, "read_bytes": 0, "write_bytes": 0}
    processes = [
        *pair(program, write_bytes=own * mib, user_ns=S),
        *pair({**program, "pid": 8, "comm": "backup"}, write_bytes=theirs * mib, user_ns=S),
    ]
    disks = pair(DISK, writes=3000, write_bytes=320 * mib, write_ms=9000, busy_ms=busy * SPAN // 10**8)
    found = of(judge(threads=rows, processes=processes, disks=disks), "disk.contended")
    assert [f.subject.device for f in found] == [DISK["device"]] * contended


def test_a_target_confined_to_one_full_cpu_is_saturated_though_the_host_is_not() -> None:
    confined = {"target_cpu_count": (1, 1), "target_cpu_busy_ns": (0.0, 9.9 * S)}
    processes = pair(PROCESS) + pair({**PROCESS, "pid": 8}, user_ns=9 * S)
    masks = [{"at_ns": 0, "pid": 7, "tid": 7, "comm": "train", "cpus": cpus} for cpus in ("0-1", "1")]
    threads = pair(THREAD, run_ns=5 * S, wait_ns=5 * S)
    result = judge(confined, threads=threads, processes=processes, affinity=masks)
    (finding,) = of(result, "cpu.saturated")
    assert finding.polarity is Polarity.ABNORMAL
    # the host's queue says nothing about one CPU
    assert finding.metrics == {"busy_pct": pytest.approx(99), "allowed_cpus": 1}
    assert finding.attributes == {"cpus": "1"}
    assert of(result, "cpu.neighbour") == []  # who ran on that CPU is not known


@pytest.mark.parametrize(("softirq_s", "bound"), [(0.1, 1.0), (0.3, 3.0), (1.0, None)])
def test_interrupts_of_all_cpus_bound_those_of_each(softirq_s: float, bound: float | None) -> None:
    """On two CPUs over 10 s: what they take together is the most that one of them spends."""
    idle = 15 - softirq_s
    result = judge({"cpu_softirq_ns": (0.0, softirq_s * S), "cpu_idle_ns": (0.0, idle * S)})
    found = [f.metrics["cpu_pct"] for f in of(result, "irq.load")]
    assert found == ([] if bound is None else [pytest.approx(bound)])
    assert all(f.polarity is Polarity.NORMAL for f in result.findings if f.kind == "irq.load")


def test_busy_cpus_without_a_queue_are_a_job_at_work() -> None:
    result = judge({**SATURATED, "runnable": (2, 2), "psi_cpu_some_us": (0.0, 1e5)})
    assert "cpu.saturated" not in abnormal(result)


@pytest.mark.parametrize(
    ("user_s", "system_s", "bad"),
    [(9.0, 0.9, True), (0.1, 0.4, False), (2.0, 1.0, True), (0.0, 9.9, True), (9.0, 0.2, False)],
)
def test_kernel_time_hurts_by_its_share_of_the_window(user_s: float, system_s: float, bad: bool) -> None:
    result = judge(threads=pair(THREAD, user_ns=int(user_s * S), system_ns=int(system_s * S)))
    (finding,) = of(result, "process.system_time")
    assert (finding.polarity is Polarity.ABNORMAL) is bad
    assert finding.metrics["system_s"] == pytest.approx(system_s)


def states(blocked: int, samples: int) -> list[Row]:
    """Readings of a thread that was seen in state D `blocked` times."""
    return [
        {**THREAD, "at_ns": SPAN * i // (samples - 1), "state": "D" if i < blocked else "S"} for i in range(samples)
    ]


@pytest.mark.parametrize(
    ("blocked", "samples", "polarity"),
    [
        (40, 100, Polarity.ABNORMAL),
        (0, 100, Polarity.NORMAL),
        (0, 20, None),  # twenty looks cannot rule out one in twenty
        (7, 100, None),
        (1, 3, None),
    ],
)
def test_io_wait_from_states_is_said_only_when_the_samples_allow(
    blocked: int, samples: int, polarity: Polarity | None
) -> None:
    found = of(judge(threads=states(blocked, samples)), "process.io_wait")
    assert [f.polarity for f in found] == ([polarity] if polarity else [])


def test_io_wait_from_delay_accounting_is_exact() -> None:
    slow = judge(threads=pair({**THREAD, "block_io_ns": S}, block_io_ns=4 * S))
    (finding,) = of(slow, "process.io_wait")
    assert finding.metrics == {"block_io_s": pytest.approx(3), "window_pct": pytest.approx(30)}
    assert (finding.subject.type, finding.polarity) == ("process", Polarity.ABNORMAL)
    fine = judge(threads=pair({**THREAD, "block_io_ns": S}, block_io_ns=S + S // 10))
    assert [f.polarity for f in of(fine, "process.io_wait")] == [Polarity.NORMAL]


def test_one_unclear_thread_forbids_clearing_its_process() -> None:
    unclear = [{**row, "tid": 9} for row in states(0, 20)]
    assert of(judge(threads=states(0, 100) + unclear), "process.io_wait") == []


def test_throttling_by_time_or_by_periods() -> None:
    limited = {**CGROUP, "quota_us": 50_000}
    hurt = judge(cgroups=pair(limited, periods=100, throttled_periods=60, throttled_ns=4 * S))
    (finding,) = of(hurt, "cgroup.cpu_throttled")
    assert (finding.polarity, finding.severity) == (Polarity.ABNORMAL, Severity.CRITICAL)
    assert (finding.subject.cgroup, finding.subject.pid, finding.subject.comm) == ("/pod", 7, "train")
    assert finding.metrics == {
        **{"throttled_s": 4.0, "window_pct": 40.0, "throttled_periods": 60, "periods": 100},
        "quota_cpus": 0.5,
    }
    fine = judge(cgroups=pair(limited, periods=100, throttled_periods=1, throttled_ns=S // 100))
    assert [f.polarity for f in of(fine, "cgroup.cpu_throttled")] == [Polarity.NORMAL]
    many_cpus = judge(cgroups=pair(limited, periods=100, throttled_periods=60, throttled_ns=40 * S))
    assert of(many_cpus, "cgroup.cpu_throttled")[0].metrics["window_pct"] == 100.0


def test_without_a_quota_the_innermost_cgroup_is_cleared_and_without_a_controller_nothing_is_said() -> None:
    free = judge(cgroups=pair({**CGROUP, "cgroup": "/"}) + pair(CGROUP))
    (finding,) = of(free, "cgroup.cpu_throttled")
    assert (finding.polarity, finding.subject.cgroup) == (Polarity.NORMAL, "/pod")
    assert "quota_cpus" not in finding.metrics
    no_controller = pair({**CGROUP, "throttled_ns": -1, "periods": -1})
    assert of(judge(cgroups=no_controller), "cgroup.cpu_throttled") == []


def test_reclaim_needs_stalls_and_a_full_cgroup_of_cache_is_not_one() -> None:
    scans = {"vm_pgscan_direct": (0.0, 50_000.0)}
    assert abnormal(judge({**scans, "psi_memory_some_us": (0.0, 3e6)}))["memory.reclaim"] is Severity.MAJOR
    assert abnormal(judge({**scans, "psi_memory_some_us": (0.0, 1e3)})) == {}
    limited = {**CGROUP, "memory_bytes": 99, "memory_limit_bytes": 100, "memory_limit_hits": 0}
    full = pair(limited, memory_limit_hits=900)
    assert "memory.cgroup_limit" in abnormal(judge({"psi_memory_some_us": (0.0, 3e6)}, cgroups=full))
    assert "memory.cgroup_limit" not in abnormal(judge(cgroups=full))
    assert [f.metrics["limit_hit_rate"] for f in of(judge(cgroups=full), "memory.cgroup_limit")] == [90.0]


@pytest.mark.parametrize(
    ("refaults", "read_mib", "pct"), [((5.0, 5.0), 400, 0), ((0.0, 51_200.0), 400, 50), ((0.0, 9.0), 0, 0)]
)
def test_what_was_evicted_and_read_again(refaults: tuple[float, float], read_mib: int, pct: float) -> None:
    limited = {**CGROUP, "memory_bytes": 99, "memory_limit_bytes": 100, "memory_limit_hits": 0}
    tables = {"cgroups": pair(limited, memory_limit_hits=900), "disks": pair(DISK, reads=9, read_bytes=read_mib << 20)}
    result = judge({"vm_workingset_refault_file": refaults, "psi_memory_some_us": (0.0, 3e6)}, **tables)
    for kind in ("memory.cgroup_limit", "memory.reclaim"):
        assert [f.metrics["refault_pct"] for f in of(result, kind)] == [pytest.approx(pct)]


def test_in_a_family_every_process_has_its_measure() -> None:
    threads = pair(THREAD, run_ns=9 * S, user_ns=9 * S) + pair({**THREAD, "pid": 8, "tid": 8}, run_ns=S, user_ns=S)
    result = judge(threads=threads)
    for kind in ("sched.runqueue_delay", "process.system_time"):
        assert [(f.subject.tid, f.polarity) for f in of(result, kind)] == [(7, Polarity.NORMAL), (8, Polarity.NORMAL)]


def test_swapping_in_hurts_and_old_swap_does_not() -> None:
    assert "memory.swap" in abnormal(judge({"vm_pswpin": (100.0, 2000.0)}))
    assert "memory.swap" not in abnormal(judge({"vm_pswpin": (1e6, 1e6)}))


@pytest.mark.parametrize(
    ("after", "severity"),
    [
        ({"writes": 100, "write_ms": 200, "busy_ms": 9900}, None),  # busy but quick: a queue depth of one
        ({"writes": 100, "write_ms": 3000, "busy_ms": 9900}, Severity.MINOR),
        ({"writes": 100, "write_ms": 30_000, "busy_ms": 9900}, Severity.MAJOR),
        ({"writes": 100, "write_ms": 30_000, "busy_ms": 2000}, None),  # slow now and then is not saturated
        ({"busy_ms": 10_000, "in_flight": 3}, Severity.CRITICAL),  # nothing comes back
    ],
)
def test_a_disk_is_saturated_when_busy_and_slow(after: Row, severity: Severity | None) -> None:
    result = judge(disks=pair(DISK, **after) + pair({**DISK, "device": "idle"}))
    assert abnormal(result).get("disk.saturated") == severity
    assert [f.subject.device for f in of(result, "disk.saturated")] == ["sda"]


def test_processes_born_died_and_reborn_in_the_window() -> None:
    result = judge(
        processes=[
            {**PROCESS, "at_ns": 0, "pid": 20, "user_ns": 9 * S},  # died: what it did since is not known
            {**PROCESS, "at_ns": SPAN, "pid": 21, "comm": "born", "user_ns": 2 * S},
            {**PROCESS, "at_ns": 0, "pid": 22, "user_ns": 500 * S},
            {**PROCESS, "at_ns": SPAN, "pid": 22, "start_ticks": 99, "comm": "reborn", "user_ns": S},
        ]
    )
    assert {(p.comm, round(p.cpu_pct)) for p in result.data.by_cpu} == {("born", 20), ("reborn", 10)}


def test_times_of_what_was_read_later_than_the_host_are_shares_of_their_own_interval() -> None:
    """On a slow host the last readings of threads and processes take longer than the first."""
    used = {"user_ns": 2.6 * S, "run_ns": 2.6 * S, "at_ns": 1.3 * SPAN}
    threads, processes = ([first, {**last, **used}] for first, last in (pair(THREAD), pair(PROCESS)))
    result = judge(threads=threads, processes=[{k: v for k, v in row.items() if k != "run_ns"} for row in processes])
    assert result.data.threads[0].user_pct == pytest.approx(20)
    assert result.data.by_cpu[0].cpu_pct == pytest.approx(20)


def test_a_thread_id_that_was_reused_counts_only_its_last_owner() -> None:
    rows = [{**THREAD, "at_ns": at, "user_ns": user} for at, user in ((0, 90 * S), (S, 0), (SPAN, S))]
    (row,) = judge(threads=rows).data.threads
    assert row.user_pct == pytest.approx(10)


@pytest.mark.parametrize(
    ("faults", "grown_bytes", "bad"),
    [(20_000, 0, True), (20_000, 30_000 * 4096, False), (20_000, 4_000 * 4096, True), (1_000, 0, False)],
)
def test_faults_for_memory_that_is_not_kept_are_abnormal(faults: int, grown_bytes: int, bad: bool) -> None:
    result = judge(processes=pair(PROCESS, minor_faults=faults, rss_bytes=grown_bytes))
    (finding,) = of(result, "process.minor_faults")
    assert (finding.polarity is Polarity.ABNORMAL, finding.metrics["rate"]) == (bad, faults / 10)


def test_memory_that_was_given_back_in_between_is_not_kept() -> None:
    """With huge pages few faults fetch much, and where in its cycle the window ends is chance."""
    sizes = [0, 250 << 20, 10 << 20, 240 << 20, 100 << 20]
    rows = [
        {**PROCESS, "at_ns": at * SPAN // 4, "minor_faults": 2_000 * at, "rss_bytes": size}
        for at, size in enumerate(sizes)
    ]
    (finding,) = of(judge(processes=rows), "process.minor_faults")
    assert finding.polarity is Polarity.ABNORMAL


def test_without_a_target_no_thread_or_neighbour_is_named() -> None:
    result = judge(everything=True, processes=pair(PROCESS, user_ns=9 * S, major_faults=600))
    kinds = {f.kind for f in result.findings}
    assert kinds == {"process.major_faults", "cpu.saturated", "irq.load", "memory.reclaim", "memory.swap"}
    assert [f.metrics["rate"] for f in of(result, "process.major_faults")] == [60.0]


def test_a_missing_psi_is_unknown_and_not_zero() -> None:
    counters = {name: value for name, value in QUIET.items() if not name.startswith("psi_")}
    result = judge_rows({"host": readings(counters)})
    assert result.data.pressure == []
    assert all("psi_some_pct" not in f.metrics for f in result.findings)


def test_a_single_reading_says_nothing() -> None:
    result = judge_rows({"host": [{"at_ns": 5, "name": "cpu_user_ns", "value": 1.0}]})
    assert (result.findings, result.seen) == ([], 0)
    assert result.not_seen == [("cut_short", "fewer than two readings")]
