"""Every tool that observes, on the kernel that runs, against what the load logged of itself.

One load and three windows (`observing.take`): as root, as a user with capabilities only, and as root with kprobes
disarmed and the scheduler's events from tracefs. All tools judge each window's recording; those in the directory
WHYSTALL_WINDOWS, if that is set, which another kernel may have made.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from kernels.inside import observing, windows
from kernels.inside.observing import FSYNC_S, LIMIT_MIB, MIB, NAP_S, QUOTA_CPUS, REQUEST_KIB
from kernels.inside.windows import EDGE_NS, Load, Look

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import ToolResult

if TYPE_CHECKING:
    from kernels.conftest import Matrix

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="tracing, cgroups and mounting need root")

MANY = 45
"""Periods of 100 ms, of those in a window, in which who wants a CPU all the time is throttled; fewer where others leave
it less than its quota."""
MOST_UNRECORDED = 0.02
"""Share of the switches that a kernel may leave out (some guests' kernels do so for the idle thread of a CPU) while
times derived from the others are still exact."""
EBPF = {"syscalls", "switches", "block", "samples", "page_cache", "interrupts", "run_queue"}


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Load, dict[str, Look]]:
    """The load and the windows on it that the selected tests need: in an emulated guest each takes a minute."""
    if (made := os.environ.get("WHYSTALL_WINDOWS")) is not None:
        return windows.read(Path(made))
    items = [item for item in request.session.items if "look" in getattr(item, "fixturenames", ())]
    wanted = {item.callspec.params["look"] for item in items}
    place = tmp_path_factory.mktemp("windows")
    for parent in (place, *place.parents):  # a user without rights goes through
        if parent.stat().st_uid == os.geteuid() and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_HOME", str(place / "home"))
        return observing.take(place, wanted)


@pytest.fixture(params=["root", "capabilities", "no_kprobes"])
def look(request: pytest.FixtureRequest, seen: tuple[Load, dict[str, Look]]) -> Look:
    return seen[1][request.param]


@pytest.fixture
def working(seen: tuple[Load, dict[str, Look]]) -> Load:
    return seen[0]


def judged(look: Look, matrix: Matrix, tool: str, **arguments: Any) -> ToolResult[Any]:
    """The tool's answer; every collector must have been served by the best engine, proven, without loss."""
    result = look.judge(tool, **arguments)
    for one in result.coverage.collectors:
        wanted = {"ftrace": look.trace_engine}.get(one.name, "ebpf" if one.name in EBPF else "procfs")
        proven = (one.name, look.privilege) != ("residency", "capabilities")  # mincore tells owners of a file only
        assert (one.name, one.engine, one.proven, one.lost) == (one.name, wanted, proven, 0)
    engines = {one.name: one.engine for one in result.coverage.collectors}
    spots = [spot.code for spot in result.coverage.not_seen]
    matrix.saw(look.privilege, tool, engines, spots, kprobes=look.kprobes)
    return result


def of(result: ToolResult[Any], kind: str, polarity: Polarity = Polarity.ABNORMAL) -> list[Finding]:
    return [f for f in result.findings if f.kind == kind and f.polarity is polarity]


def exact(result: ToolResult[Any], look: Look) -> bool:
    """Whether (nearly) all switches were recorded; if not, the result must state how many were missing."""
    switches = look.recording.table("ftrace.switches").height
    missing = look.recording.table("ftrace.holes").filter(pl.col("why") == "unseen").height
    if result.tool == "ftrace_capture":
        stated = {spot.code: spot.detail for spot in result.coverage.not_seen}
        assert stated.get("untold_switches", "0") == str(missing)
    return missing <= MOST_UNRECORDED * switches


def test_fileslower_tells_every_slow_fsync(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "fileslower", min_ms=100, top=200)
    events = [e for e in result.data.events if e.operation == "fsync" and not e.in_flight]
    truth = working.acts("fsync", look)
    assert len(truth) >= 8
    assert {(e.pid, e.path) for e in events} == {(working.pids["writer"], truth[0]["path"])}
    assert len(truth) <= len(events) <= len(truth) + 2
    longest = max(line["latency_s"] for line in working.touching("fsync", look))
    assert all(e.latency_ms <= longest * 1e3 for e in events)
    # what began before counts from when its thread was first seen
    assert all(e.latency_ms >= 0.9 * FSYNC_S * 1e3 for e in events if e.at_ms > EDGE_NS / 1e6)
    assert [f.subject.path for f in of(result, "file.slow_sync")] == [truth[0]["path"]]


def test_syscall_time_sums_the_calls_of_every_thread(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "syscall_time", top=200)
    (row,) = [r for r in result.data.rows if (r.pid, r.syscall) == (working.pids["writer"], "fsync")]
    within, touching = working.acts("fsync", look), working.touching("fsync", look)
    assert len(within) <= row.count <= len(touching)
    assert FSYNC_S * 1e3 * len(within) <= row.wall_ms <= sum(line["latency_s"] for line in touching) * 1e3
    assert row.sleep_ms >= 0.8 * FSYNC_S * 1e3 * len(within)  # it waits for the file server


def test_offcputime_tells_who_waits_in_what(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "offcputime", top=200)
    napper, writer = working.pids["napper"], working.pids["writer"]
    slept = [r for r in result.data.rows if r.tid == napper and r.syscall in ("clock_nanosleep", "nanosleep")]
    within, touching = working.acts("nap", look), working.touching("nap", look)
    asleep = sum(r.total_ms for r in slept)
    assert NAP_S * 1e3 * len(within) <= asleep <= sum(line["latency_s"] for line in touching) * 1e3
    (waits,) = [o for o in result.data.open if o.tid == working.waits]
    assert (waits.syscall, waits.whole_window, waits.pid) == ("read", True, napper)
    assert any("pipe_read" in frame for frame in waits.kernel_stack)
    path = working.of("fsync")[0]["path"]
    synced = [r for r in result.data.rows if (r.tid, r.syscall, r.path) == (writer, "fsync", path)]
    assert sum(r.total_ms for r in synced) >= 0.8 * FSYNC_S * 1e3 * len(working.acts("fsync", look))
    assert any(f.subject.tid == writer and f.subject.path == path for f in of(result, "offcpu.blocked"))


def test_critical_path_accounts_for_all_of_a_threads_time(look: Look, working: Load, matrix: Matrix) -> None:
    window_ms = look.recording.manifest.window_ns / 1e6
    for role, event, wait in (("napper", "nap", "sleep"), ("writer", "fsync", "file")):
        result = judged(look, matrix, "critical_path", tid=working.pids[role])
        assert sum(row.window_pct for row in result.data.rows) == pytest.approx(100, abs=0.1)
        waited = sum(row.total_ms for row in result.data.rows if row.what == wait)
        within, touching = working.acts(event, look), working.touching(event, look)
        least = {"nap": NAP_S, "fsync": 0.8 * FSYNC_S}[event]
        assert least * 1e3 * len(within) <= waited + 0.01 * window_ms
        assert waited <= sum(line["latency_s"] for line in touching) * 1e3


def test_biolatency_counts_the_requests_of_a_disk(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "biolatency")
    rows = [r for r in result.data.rows if r.device == working.device]
    writes = [r for r in rows if "write" in r.operation]
    within, touching = working.acts("direct", look), working.touching("direct", look)
    own = 10  # requests of the file system itself
    assert len(within) <= sum(r.count for r in writes) <= len(touching) + own
    assert sum(r.bytes for r in writes) >= len(within) * REQUEST_KIB << 10
    assert max(r.max_ms for r in writes) <= max(line["latency_s"] for line in touching) * 1e3 + 1
    read = sum(r.bytes for r in rows if r.operation == "read")
    assert read >= sum(line["device_bytes"] for line in working.acts("pass", look))
    assert read <= sum(line["device_bytes"] for line in working.touching("pass", look)) + MIB  # and metadata


def test_page_cache_names_the_file_that_does_not_fit(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "page_cache", top=200)
    within, touching = working.acts("pass", look), working.touching("pass", look)
    assert len(within) >= 2
    path, pid = within[0]["path"], working.pids["reader"]
    (row,) = [r for r in result.data.files if (r.pid, r.path) == (pid, path)]
    came = [sum(line["device_bytes"] for line in lines) for lines in (within, touching)]
    assert came[0] * 0.98 <= row.added_bytes <= came[1] * 1.02
    read = [sum(line["bytes"] for line in lines) for lines in (within, touching)]
    assert read[0] * 0.98 <= row.accessed_bytes <= read[1] * 1.02
    kept = sum(line["bytes"] - line["device_bytes"] for line in within) / sum(line["bytes"] for line in within)
    assert row.hit_pct == pytest.approx(100 * kept, abs=10)
    (thrash,) = of(result, "cache.thrash")
    assert (thrash.subject.pid, thrash.subject.path) == (pid, path)
    assert thrash.attributes["reason"] == "too_large_cgroup"
    (small,) = of(result, "cache.limit_small")
    assert (small.subject.cgroup, small.metrics["limit_bytes"]) == (working.reading, LIMIT_MIB * MIB)


def test_hybrid_io_advise_sees_the_requests(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "hybrid_io_advise")
    (row,) = [r for r in result.data.rows if (r.pid, r.operation) == (working.pids["reader"], "read")]
    within, touching = working.acts("pass", look), working.touching("pass", look)
    assert row.path == within[0]["path"]
    assert row.request_bytes == 128 << 10
    assert sum(line["bytes"] for line in within) <= row.bytes <= sum(line["bytes"] for line in touching)
    assert (row.advice, row.change) == ("buffered", False)  # it is read again, and would be kept where there is room


def test_cpu_profile_finds_who_spins_and_in_which_function(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "cpu_profile", top=100)
    window_s = look.recording.manifest.window_ns / 1e9
    (spinner,) = [thread for thread in result.data.threads if thread.tid == working.pids["spinner"]]
    # an emulated machine copies slowly: the reader may take more than the spinner is let
    assert all(t.samples <= spinner.samples for t in result.data.threads if t.tid not in working.pids.values())
    scatter = 3 / math.sqrt(spinner.samples)
    assert spinner.cpu_pct == pytest.approx(100 * working.cpu_s(look) / window_s, rel=scatter)
    spins = [f for f in result.data.frames if (f.name, f.kind) == ("spin", "python")]
    assert spins
    assert max(f.samples for f in spins) >= 0.5 * spinner.samples
    assert all(f.code.startswith("load.py:") for f in spins)


def test_heat_map_lays_it_over_time(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "heat_map")
    window_s = look.recording.manifest.window_ns / 1e9
    assert result.data.span_s == pytest.approx(window_s, abs=0.1)
    assert result.data.columns * result.data.column_s == pytest.approx(window_s, abs=result.data.column_s)
    assert result.data.busy_pct * result.data.lanes >= 0.7 * 100 * working.cpu_s(look) / window_s
    assert {one.media_type for one in result.artifacts} == {"text/html", "image/svg+xml"}


def test_host_snapshot_tells_the_quota_that_throttles(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "host_snapshot")
    window_s = look.recording.manifest.window_ns / 1e9
    (time_of,) = [f for f in result.findings if f.kind == "thread.time" and f.subject.tid == working.pids["spinner"]]
    used = time_of.metrics["user_pct"] + time_of.metrics["system_pct"]
    assert used == pytest.approx(100 * working.cpu_s(look) / window_s, abs=6)
    throttled = [f for f in result.findings if f.kind == "cgroup.cpu_throttled"]
    (quota,) = [f for f in throttled if f.subject.cgroup == working.spinning]
    assert quota.metrics["quota_cpus"] == pytest.approx(QUOTA_CPUS)
    assert quota.metrics["throttled_periods"] <= look.throttled
    if quota.metrics["throttled_periods"] >= MANY:
        assert quota.polarity is Polarity.ABNORMAL


def test_ftrace_capture_follows_every_switch(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "ftrace_capture", top=200)
    threads = {t.tid: t for t in result.data.threads}
    spinner, napper = threads[working.pids["spinner"]], threads[working.pids["napper"]]
    if exact(result, look):
        assert spinner.running_ms == pytest.approx(working.cpu_s(look) * 1e3, rel=0.15)
    assert len(working.acts("nap", look)) <= napper.voluntary
    assert spinner.of_target
    assert napper.of_target
    assert len(result.data.cpus) == look.recording.manifest.cpus
    assert all(cpu.lost == 0 and cpu.switches for cpu in result.data.cpus)


def test_host_bound_tells_what_keeps_a_thread_from_its_cpu(look: Look, working: Load, matrix: Matrix) -> None:
    spinner = working.pids["spinner"]
    result = judged(look, matrix, "host_bound", tid=spinner)
    (dispatcher,) = result.data.dispatchers
    window_s = look.recording.manifest.window_ns / 1e9
    assert dispatcher.tid == spinner
    running_pct = 100 * working.cpu_s(look) / window_s
    assert dispatcher.running_pct - 6 <= running_pct <= dispatcher.running_pct + dispatcher.unknown_pct + 6
    throttled = of(result, "sched.throttled")
    assert not throttled or look.throttled
    quotas = [f for f in look.judge("host_snapshot").findings if f.kind == "cgroup.cpu_throttled"]
    periods = [f.metrics["throttled_periods"] for f in quotas if f.subject.cgroup == working.spinning]
    if exact(result, look) and max(periods, default=0) >= MANY:
        assert [f.subject.tid for f in throttled] == [spinner]
    for finding in throttled:
        assert finding.subject.cgroup == working.spinning
        assert finding.metrics["window_pct"] + dispatcher.running_pct <= 101


def test_runqlat_counts_how_often_a_thread_waited_for_a_cpu(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "runqlat", top=200)
    napper = working.pids["napper"]
    (thread,) = [t for t in result.data.threads if t.tid == napper]
    assert thread.count >= len(working.acts("nap", look))  # after each nap, once
    (row,) = [r for r in result.data.rows if r.pid == napper]
    assert sum(bucket.count for bucket in row.histogram) == row.count >= thread.count
    assert thread.total_ms <= look.recording.manifest.window_ns / 1e6


def test_interrupts_counts_what_the_kernel_counts(look: Look, working: Load, matrix: Matrix) -> None:
    result = judged(look, matrix, "interrupts", top=200)
    soft = sum(r.count for r in result.data.rows if r.kind.startswith("soft"))
    assert 0 < soft <= look.softirqs
    assert {r.name for r in result.data.rows} & {"TIMER", "SCHED", "RCU", "BLOCK"}
    assert sorted(c.cpu for c in result.data.cpus) == list(range(look.recording.manifest.cpus))
