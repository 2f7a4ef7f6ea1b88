"""Growth of memory, kills for lack of it and failing writes, against what programs logged of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest
from cgroups import Cgroup

from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.host import syscall_time
from whystall.tools.host.host_snapshot import tool as host_snapshot
from whystall.tools.host.memory_growth import tool as memory_growth
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

MIB = 1 << 20
# Appends 256 KiB at a time, so much per second, and logs (monotonic s, bytes) of each.
GROWS = """
import json, sys, time
rate, kept, begun = float(sys.argv[1]), [], time.monotonic()
while True:
    kept.append(b"x" * (1 << 18))
    size = len(kept) << 18
    print(json.dumps([time.monotonic(), size]), flush=True)
    time.sleep(max(0.0, begun + size / rate - time.monotonic()))
"""
# Saves again and again to a file system that has no room for it.
SAVES = """
import sys, time
while True:
    try:
        with open(sys.argv[1], "wb", buffering=0) as file:
            while file.write(b"x" * (1 << 16)):
                pass
    except OSError as error:
        print(error.errno, flush=True)
        time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    if os.geteuid() != 0:
        pytest.skip("needs root")


def started(
    program: str, *arguments: object, wrap: Callable[[list[str]], Sequence[str]] = list
) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(wrap(argv), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def target(process: subprocess.Popen[str]) -> Target:
    return Target(everything=False, pid=process.pid, comm="python", pids=[process.pid])


def of(findings: list[Finding], kind: str) -> Finding:
    (found,) = [f for f in findings if f.kind == kind and f.polarity is Polarity.ABNORMAL]
    return found


def test_growth_in_a_cgroup_agrees_with_the_programs_own_log() -> None:
    with Cgroup("memory") as group:
        group.limit_memory(256 * MIB)
        process = started(GROWS, 16e6, wrap=group.command)
        params = memory_growth.Params(pid=process.pid, duration=2)
        window = memory_growth.TOOL.needs(params)
        begun = time.monotonic()
        recording = anyio.run(lambda: observe(window, target(process), 2, [ProcfsEngine]))
        ended = time.monotonic()
        process.kill()
        log = [json.loads(line) for line in process.communicate()[0].splitlines()]
    inside = [(at, size) for at, size in log if begun <= at <= ended]
    own = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
    finding = of(judge(memory_growth.TOOL, recording, params).findings, "memory.growth")
    assert finding.metrics["rate"] == pytest.approx(own, rel=0.1)
    assert finding.attributes["limit_of"] == group.name
    assert finding.metrics["until_limit_s"] == pytest.approx((256 * MIB - inside[-1][1]) / own, rel=0.2)


def test_an_oom_kill_is_distinguished_from_an_exit_by_the_counters_of_the_cgroup() -> None:
    with Cgroup("memory") as group:
        group.limit_memory(48 * MIB)
        process = started(GROWS, 40e6, wrap=group.command)
        params = host_snapshot.Params(pid=process.pid, duration=5)
        needs = [*host_snapshot.TOOL.needs(params), *memory_growth.TOOL.needs(memory_growth.Params(duration=5))]
        recording = anyio.run(lambda: observe(needs, target(process), 5, [ProcfsEngine]))
        process.communicate()
    assert recording.manifest.target_exited
    assert recording.manifest.oom_killed.startswith(f"pid {process.pid} ")
    manifest = recording.manifest.model_copy(deep=True)
    del manifest.collectors["memory_use"]
    tables = {name: frame for name, frame in recording.tables().items() if name.startswith("proc.")}
    by_counter = judge(host_snapshot.TOOL, Recording.in_memory(manifest, tables), params)
    for result in (by_counter, judge(memory_growth.TOOL, recording, memory_growth.Params(pid=process.pid))):
        assert "target_oom_killed" in {spot.code for spot in result.coverage.not_seen}
        finding = of(result.findings, "memory.oom_kill")
        assert (finding.subject.pid, finding.subject.cgroup) == (process.pid, group.name)
        assert (finding.attributes["limit_of"], finding.metrics["limit_bytes"]) == (group.name, 48 * MIB)


def test_writes_that_fail_for_lack_of_room_are_named_with_file_and_error(small_disk: Callable[[str], Path]) -> None:
    path = small_disk("1m") / "chk_7.bin"
    process = started(SAVES, path)
    params = syscall_time.Params(pid=process.pid, duration=1)
    needs = [*syscall_time.TOOL.needs(params), *host_snapshot.TOOL.needs(host_snapshot.Params(duration=1))]
    recording = anyio.run(lambda: observe(needs, target(process), 1, [EbpfEngine, ProcfsEngine]))
    process.kill()
    process.communicate()
    finding = of(judge(syscall_time.TOOL, recording, params).findings, "syscall.failed")
    assert (finding.attributes["error"], finding.attributes["syscall"]) == ("ENOSPC", "write")
    assert finding.subject.path == str(path)
    assert 5 <= finding.metrics["count"] <= 12
    places = judge(host_snapshot.TOOL, recording, host_snapshot.Params(pid=process.pid)).data.filesystems
    assert (places[0].path, places[0].free_bytes) == (str(path.parent), 0)
