"""fileslower and syscall_time on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import COMM, PID, Scene, checkpoints

from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host import syscall_time
from whystall.tools.host.fileslower import tool as fileslower

WRITER = PID + 1


def slower(scene: Scene, min_ms: float = 10.0, **build: Any) -> Judgement[fileslower.Data]:
    return fileslower.judge(scene.build(**build), fileslower.Params(min_ms=min_ms))


def times(scene: Scene, **build: Any) -> list[Finding]:
    return syscall_time.judge(scene.build(**build), syscall_time.Params()).findings


def bad(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.polarity is Polarity.ABNORMAL]


def test_a_checkpoint_is_one_finding_with_its_series_cost_and_period() -> None:
    result = slower(checkpoints(Scene(window_s=12), every_s=2, ms=600))
    (finding,) = bad(result.findings)
    assert finding.kind == "file.slow_sync"
    assert (finding.subject.pid, finding.subject.tid, finding.subject.comm) == (PID, PID, COMM)
    assert finding.subject.path == "/data/run7/chk_*.bin"
    assert finding.attributes["example"].startswith("/data/run7/chk_0001")
    assert finding.attributes["operations"] == "fsync+write"
    assert "ext4_sync_file" in finding.attributes["kernel_path"]
    assert finding.severity is Severity.MAJOR
    metrics = finding.metrics
    assert metrics["episodes"] == 6
    assert metrics["episode_ms"] == metrics["episode_max_ms"] == pytest.approx(620)
    assert metrics["max_ms"] == pytest.approx(600)
    assert metrics["period_s"] == pytest.approx(2)
    assert metrics["episode_bytes"] == 50 << 20
    assert metrics["window_pct"] == pytest.approx(100 * 6 * 0.62 / 12)
    assert metrics["blocked_pct"] == pytest.approx(100 * 600 / 620)
    (row,) = {r.operations for r in result.data.files}
    assert row == "fsync+write"
    assert result.totals == {"events": 12, "files": 6}


def test_bytes_of_files_renamed_onto_one_path_are_summed() -> None:
    scene = Scene(window_s=12)
    for step in range(4):
        scene.call(1 + 3 * step, 20, "write", f"/out/ckpt{step}.tmp", size=50 << 20)
        scene.call(1.02 + 3 * step, 900, "fsync", f"/out/ckpt{step}.tmp")
    for row in scene.tables["files"]:
        row["path"] = "/out/ckpt.pt"
    (finding,) = bad(slower(scene).findings)
    assert finding.metrics["bytes"] == 200 << 20
    assert finding.metrics["episode_bytes"] == 50 << 20


def test_checkpoints_in_numbered_directories_are_one_series() -> None:
    scene = Scene()
    for step in range(4):
        scene.call(1 + 3 * step, 900, "fsync", f"/out/checkpoint-{500 * (step + 1)}/model.safetensors")
    (finding,) = bad(slower(scene).findings)
    assert finding.subject.path == "/out/checkpoint-*/model.safetensors"
    assert finding.metrics["period_s"] == pytest.approx(3)


def test_reads_without_a_pause_are_told_one_by_one() -> None:
    """A loader reads on and on: no caller waited for as long as the window."""
    scene = Scene(window_s=12)
    for number in range(144):
        scene.call(number / 12, 80, "read", "/data/set.bin")
    (finding,) = bad(slower(scene).findings)
    assert (finding.metrics["episodes"], finding.metrics["episode_ms"]) == (144, pytest.approx(80))
    assert finding.metrics["window_pct"] == pytest.approx(96)


def test_computing_between_reads_is_not_reading() -> None:
    scene = Scene(window_s=12)
    for number in range(120):
        scene.call(number / 10, 60, "read", "/data/set.bin")
    (finding,) = bad(slower(scene).findings)
    assert (finding.metrics["episodes"], finding.metrics["period_s"]) == (120, pytest.approx(0.1))
    assert finding.metrics["window_pct"] == pytest.approx(60)


def test_another_threads_slow_writes_leave_the_main_thread_normal() -> None:
    scene = checkpoints(Scene(), tid=WRITER).call(1, 0.1, "write", "/data/log", count=50, waits=0)
    findings = slower(scene).findings
    assert {f.subject.tid for f in bad(findings)} == {WRITER}
    (mine,) = [f for f in findings if f.kind == "file.slow_sync" and f.subject.tid == PID]
    assert (mine.polarity, mine.metrics["window_pct"]) == (Polarity.NORMAL, 0.0)


def test_two_threads_are_two_findings() -> None:
    findings = slower(checkpoints(checkpoints(Scene()), tid=WRITER)).findings
    assert {f.subject.tid for f in bad(findings)} == {PID, WRITER}


def test_an_operation_in_flight_is_told_and_counts_by_its_age() -> None:
    scene = Scene(window_s=12).call(11.95, 50, "read", "/d/x", in_flight=True)
    result = slower(scene)
    assert [(e.operation, e.path, e.in_flight) for e in result.data.in_flight] == [("read", "/d/x", True)]
    assert bad(result.findings) == [], "the window ended during a normal call"
    stuck = slower(Scene(window_s=12).call(2, 10_000, "read", "/d/x", in_flight=True))
    (finding,) = bad(stuck.findings)
    assert (finding.attributes["in_flight"], finding.severity) == ("yes", Severity.CRITICAL)


@pytest.mark.parametrize("call", ["openat", "newfstatat", "unlink", "rename", "ftruncate", "getdents64"])
def test_metadata(call: str) -> None:
    (finding,) = bad(slower(Scene().call(1, 700, call, "/nfs/a")).findings)
    assert (finding.kind, finding.subject.path) == ("file.slow_metadata", "/nfs/a")


@pytest.mark.parametrize(
    ("call", "ms", "count", "state", "kind"),
    [
        ("fsync", 4, 1500, "D", "file.slow_sync"),
        ("fdatasync", 4, 1500, "S", "file.slow_sync"),
        ("pread64", 2, 3000, "D", "file.slow_read"),
        ("newfstatat", 3, 2000, "S", "file.slow_metadata"),
    ],
)
def test_a_storm_of_short_calls_is_slow(call: str, ms: float, count: int, state: str, kind: str) -> None:
    findings = slower(Scene().call(0, ms, call, "/d/wal", count=count, state=state)).findings
    (finding,) = bad(findings)
    assert (finding.kind, finding.subject.path, finding.subject.tid) == (kind, "/d/wal", PID)
    assert finding.metrics["count"] == count
    assert finding.metrics["window_pct"] == pytest.approx(50)
    assert finding.metrics["max_ms"] == pytest.approx(ms)
    assert not [f for f in findings if f.kind == kind and f.polarity is Polarity.NORMAL]


def test_a_storm_of_several_threads_names_no_file_it_cannot_assign() -> None:
    scene = Scene().call(0, 4, "fsync", "/d/a", count=1000).call(0, 4, "fsync", "/d/b", tid=WRITER, count=900)
    assert [f.subject.path for f in bad(slower(scene).findings)] == [None, None]


def test_short_calls_beside_a_few_slow_ones_are_reported_apart_and_counted_once() -> None:
    scene = Scene(window_s=12).call(0, 2, "pread64", "/d/set", count=3000)
    for number in range(40):
        scene.call(number / 4, 18, "pread64", "/d/set")
    slow, short = sorted(bad(slower(scene).findings), key=lambda f: f.metrics["window_pct"])
    assert (slow.metrics["count"], slow.metrics["window_pct"]) == (40, pytest.approx(6))
    assert (short.metrics["count"], short.metrics["window_pct"]) == (3000, pytest.approx(50))
    assert short.metrics["total_ms"] == pytest.approx(6000)


@pytest.mark.parametrize(
    "scene",
    [
        Scene().call(0, 9, "read", state="S", count=1300),  # a pipe or socket: waiting for work
        Scene().call(0, 5, "read", "/d/cached", waits=0, count=2000),  # copying from memory
        Scene().call(1, 60, "fsync", "/d/log"),  # half a percent
        Scene().call(0, 0.01, "openat", "/d/x", count=10_000),
    ],
)
def test_what_is_no_slow_file_is_not_called_one(scene: Scene) -> None:
    findings = slower(scene).findings
    assert bad(findings) == []
    normal = [f for f in findings if f.subject.tid is None]
    assert {f.kind for f in normal} == {"file.slow_read", "file.slow_write", "file.slow_sync", "file.slow_metadata"}
    assert all(f.metrics["window_pct"] < fileslower.ABNORMAL_PCT for f in normal)


def test_a_whole_host_is_never_declared_normal() -> None:
    assert slower(Scene(everything=True).call(1, 0.1, "fsync", "/d/x")).findings == []


def test_the_slowest_come_first_and_the_top_is_cut() -> None:
    scene = Scene()
    for number in range(30):
        scene.call(number / 3, 20 + number, "fsync", f"/d/{chr(97 + number)}")
    data = fileslower.judge(scene.build(), fileslower.Params(top=5)).data
    assert [e.latency_ms for e in data.events] == [49, 48, 47, 46, 45]
    assert [f.max_ms for f in data.files] == [49, 48, 47, 46, 45]
    parts = [(e.oncpu_ms + e.blocked_ms + e.sleep_ms + e.runnable_ms, e.latency_ms) for e in data.events]
    assert all(a == pytest.approx(b) for a, b in parts)


def test_kernel_time_is_found_by_system_call() -> None:
    scene = Scene().call(0, 110, "getrandom", waits=0, count=40).call(5, 30, "read", "/d/x", waits=90)
    (finding,) = times(scene)
    assert (finding.kind, finding.attributes["syscall"], finding.subject.tid) == ("syscall.cpu_time", "getrandom", PID)
    assert finding.polarity is Polarity.ABNORMAL
    assert finding.metrics["oncpu_s"] == pytest.approx(4.4)
    assert finding.metrics["window_pct"] == pytest.approx(100 * 4.4 / 12)
    assert finding.metrics["mean_us"] == pytest.approx(110_000)
    assert (finding.interval.start_ns, finding.interval.end_ns) == (0, 4_400_000_000)


@pytest.mark.parametrize(
    "scene",
    [
        Scene(),
        Scene().call(0, 900, "fsync", "/d/x", count=10),  # waits, does not compute
        Scene().call(0, 400, "getrandom", waits=0),  # three percent
    ],
)
def test_little_kernel_time_is_normal(scene: Scene) -> None:
    (finding,) = times(scene)
    assert (finding.polarity, finding.severity, finding.subject.pid) == (Polarity.NORMAL, Severity.INFO, PID)


def test_spinning_is_waiting_and_clears_nobody_else() -> None:
    findings = times(Scene().call(0, 0.002, "sched_yield", waits=0, count=2_000_000))
    assert bad(findings) == []
    assert {f.attributes.get("syscall") for f in findings} == {"sched_yield", None}
