"""A job in a container made by runc as Kubernetes has it made, looked at from the node and from a sidecar: names, paths
and control groups must be those that people know it by, inside and outside.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from containers import PYTHON, Box, box, named

from whystall.agent_server.app import App
from whystall.tools.contract.result import ToolResult
from whystall.tools.node.vantage import host_name

ROOT = Path(__file__).parents[2]
WORK = Path(__file__).parent / "workloads/pod_work.py"
POD = f"train-{os.getpid()}-0"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, ext4: Callable[[int], Path]) -> Iterator[tuple[Box, Path]]:
    """The job, and where the node has the directory that it knows as /data."""
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc")
    volume = ext4(96) / "volumes/pvc-1"
    volume.mkdir(parents=True)
    place = tmp_path_factory.mktemp("boxes")
    argv = [PYTHON, "/app/pod_work.py", "/data"]
    with ExitStack() as undo:
        files = [(WORK, "/app/pod_work.py")]
        made = undo.enter_context(box(place, argv, number=1, volumes=[(volume, "/data")], files=files))
        undo.enter_context(named(f"ml_{POD}", made.pod_uid))
        until = time.monotonic() + 60
        while not made.log.read_text().count("\n") and time.monotonic() < until:
            time.sleep(0.1)
        assert made.log.read_text().startswith("{"), made.log.read_text()
        yield made, volume


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))


def look(tool: str, **arguments: Any) -> ToolResult[Any]:
    async def observed() -> ToolResult[Any]:
        return await App().run_tool(tool, {"duration": 2, **arguments})

    return anyio.run(observed)


def written(made: Box) -> set[str]:
    return {line["path"] for line in map(json.loads, made.log.read_text().splitlines())}


def test_a_checkpoint_is_called_as_the_job_calls_it_and_the_node_can_follow(job: tuple[Box, Path]) -> None:
    made, volume = job
    result = look("fileslower", cgroup=made.id[:12], min_ms=0.01, top=100)
    finding = next(f for f in result.findings if f.kind == "file.slow_sync")
    assert (finding.subject.pid, finding.subject.container, finding.subject.pod) == (made.pid, made.id, f"ml/{POD}")
    assert result.coverage.target.endswith(f"pod{made.pod_uid}/{made.id}, pod ml/{POD}")
    paths = {event.path for event in result.data.events if event.operation == "fsync"}
    assert paths
    assert paths <= written(made)
    for path in paths:
        outside = volume / Path(path).name
        assert os.path.samefile(f"/proc/{made.pid}/root{path}", outside)
        assert made.run("stat", "-c", "%i", path).strip() == str(outside.stat().st_ino)


def test_what_is_mapped_is_called_so_too_and_a_line_of_code_as_the_container_has_it(job: tuple[Box, Path]) -> None:
    made, _ = job
    waits = look("offcputime", pid=made.pid, min_ms=0.01, top=100)
    assert "/data/set.bin" in {row.path for row in waits.data.rows}
    assert any("read_set (pod_work.py:" in frame for row in waits.data.rows for frame in row.user_stack)
    cache = look("page_cache", pid=made.pid, top=100)
    assert "/data/set.bin" in {row.path for row in cache.data.files if row.pid == made.pid}
    mine = [finding for finding in cache.findings if finding.subject.pid == made.pid]
    assert mine
    assert {(finding.subject.container, finding.subject.pod) for finding in mine} == {(made.id, f"ml/{POD}")}


def test_a_sidecar_with_five_capabilities_sees_the_same_job(job: tuple[Box, Path], tmp_path: Path) -> None:
    made, _ = job
    with box(tmp_path, ["sleep", "600"], number=2, sidecar=True) as sidecar:
        whystall = [Path(PYTHON).parent / "whystall", "run"]
        target = ["--cgroup", f"pod:ml/{POD}", "--duration", "2", "--json"]
        told = json.loads(sidecar.run(*whystall, "fileslower", *target, "--min-ms", "0.01", "--engine", "ebpf"))
        counted = json.loads(sidecar.run(*whystall, "host_snapshot", *target))
    finding = next(f for f in told["findings"] if f["kind"] == "file.slow_sync")
    assert finding["subject"]["path"] == "/data/chk_*.bin"
    assert (finding["subject"]["container"], finding["subject"]["pod"]) == (made.id, f"ml/{POD}")
    assert {event["path"] for event in told["data"]["events"]} <= written(made) | {"/data/set.bin"}
    assert told["coverage"]["host"] != "in-the-pod"
    # control groups by the node's names, though ours begin elsewhere, and their files are the node's
    pod = f"/kubepods/burstable/pod{made.pod_uid}"
    groups = {group["cgroup"]: group for group in counted["data"]["cgroups"]}
    assert {pod, f"{pod}/{made.id}"} <= groups.keys()
    process = next(p for p in counted["data"]["by_cpu"] if p["pid"] == made.pid)
    assert process["cgroup"] == f"{pod}/{made.id}"
    assert not [spot for spot in counted["coverage"]["not_seen"] if spot["code"] == "cgroup_absent"]


def test_outside_of_it_nothing_is_in_a_container(job: tuple[Box, Path]) -> None:
    result = look("host_snapshot", pid=os.getpid(), duration=0.5)
    assert result.coverage.host == host_name()
    mine = {finding.subject.container for finding in result.findings if finding.subject.pid == os.getpid()}
    assert mine
    assert job[0].id not in mine
    assert f"ml/{POD}" not in result.coverage.target
