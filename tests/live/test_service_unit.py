"""The unit as it is shipped, run by systemd: its sandbox breaks no tool, and it ends well."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from lesser import TREE
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from whystall.bpf.privileges import NEEDED, held

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a manager of systemd's own needs root")

WORKLOADS = Path(__file__).with_name("workloads")
DEPLOY = TREE / "deploy"
TOKEN = "of-the-test-0123456789abcdef"
USER = "whystall"
# ends what is left in our control groups, then these
GROUPS = ("manager/init.scope", "manager/app.slice", "manager")


class Service:
    """The unit, under a manager of its own, on a port of its own."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.file = folder, file
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._make()
        argv = ["unshare", "-m", "sh", str(WORKLOADS / "unit_manager.sh"), str(folder), "whystall.service"]
        self.log = (folder / "manager.log").open("w+")
        bare = {"PATH": os.environ["PATH"]}  # what it hands on to the unit
        self.manager = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=bare)

    def _make(self) -> None:
        """What unit_manager.sh wants: the unit with a port of ours, its user, its token, its program."""
        units, users, program = self.folder / "user", self.folder / "etc", self.folder / "opt/whystall/bin/whystall"
        for place in (units / "whystall.service.d", users, self.folder / "whystall", program.parent):
            place.mkdir(parents=True)
        unit = (DEPLOY / "whystall.service").read_text()
        assert unit.count(" 8377 ") == 1
        (units / "whystall.service").write_text(unit.replace(" 8377 ", f" {self.port} "))
        # A user manager keeps settings and state in one directory. The unit's private /tmp would hide a tree below it.
        lines = ["[Service]", "ConfigurationDirectory="]
        lines += [f"Standard{stream}=file:/run/test/output" for stream in ("Output", "Error")]
        lines += [f"BindReadOnlyPaths={tree}" for tree in sorted({TREE, Path(sys.prefix)}) if _hidden(tree)]
        (units / "whystall.service.d/test.conf").write_text("\n".join([*lines, ""]))
        for name in ("passwd", "group"):
            shutil.copy(f"/etc/{name}", users / name)
        made = ["systemd-sysusers", f"--root={self.folder}", str(DEPLOY / "whystall.sysusers.conf")]
        subprocess.run(made, check=True, capture_output=True)
        (self.folder / "whystall/token").write_text(TOKEN)
        (self.folder / "whystall/token").chmod(0o600)
        start = f'exec {sys.executable} -c "from whystall.agent_server.interfaces.cli.main import main; main()" "$@"'
        program.write_text(f"#!/bin/sh\n{start}\n")
        program.chmod(0o755)

    def inside(self, *argv: str) -> str:
        """What a command prints that sees what the manager sees."""
        entered = ["nsenter", "-t", str(self.manager.pid), "-m", "env", "XDG_RUNTIME_DIR=/run/test", *argv]
        return subprocess.run(entered, capture_output=True, text=True, timeout=60).stdout

    def shown(self, name: str) -> str:
        return self.inside("systemctl", "--user", "show", "--value", "-p", name, "whystall.service").strip()

    def output(self) -> str:
        """What the unit and its manager printed so far."""
        self.log.seek(0)
        return self.inside("cat", "/run/test/output") + self.log.read()

    def until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.manager.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"http://127.0.0.1:{self.port}/healthz", trust_env=False).status_code == 200:
                    return
            time.sleep(0.2)
        pytest.fail(f"it does not serve: {self.output()}")

    def close(self) -> None:
        """End it and everything it started, and the control groups made for it."""
        if self.manager.poll() is None:
            self.inside("systemctl", "--user", "stop", "whystall.service")
            self.manager.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.manager.wait(20)
            self.manager.kill()
        self.manager.wait()
        self.log.close()
        for top in _groups():
            for procs in top.rglob("cgroup.procs"):
                for pid in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        for top in _groups():
            for _ in range(50):
                for path in sorted(top.rglob("*/"), reverse=True):
                    with contextlib.suppress(OSError):
                        path.rmdir()
                with contextlib.suppress(OSError):
                    top.rmdir()
                if not top.exists():
                    break
                time.sleep(0.1)


def _hidden(path: Path) -> bool:
    """Whether a unit with ``PrivateTmp=`` does not see `path`."""
    return any(path.is_relative_to(directory) for directory in ("/tmp", "/var/tmp"))


def _groups() -> list[Path]:
    """Control groups that unit_manager.sh made."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options):
            found.append(Path(place, "whystall-test"))
    return [path for path in found if path.exists()]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="whystall-test-", dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        closed = Path(path, "closed")
        closed.mkdir(mode=0o700)
        made = Service(Path(path), closed / "checkpoint.bin")
        try:
            made.until_ready()
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def pid(service: Service) -> Iterator[int]:
    """A process of root that the service knows nothing of."""
    command = [sys.executable, str(WORKLOADS / "watched.py"), str(service.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def called(service: Service, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool says over MCP."""

    async def call() -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=120) as session:
            url = f"http://127.0.0.1:{service.port}/mcp"
            async with Client(streamable_http_client(url, http_client=session)) as client:
                result = await client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        found: dict[str, Any] = result.structured_content
        return found

    return anyio.run(call)


def test_it_runs_as_its_user_with_the_five_and_a_filter(service: Service) -> None:
    main = int(service.shown("MainPID"))
    status = dict(line.split(":", 1) for line in Path(f"/proc/{main}/status").read_text().splitlines())
    fields = {key: value.split() for key, value in status.items()}
    (uid,) = re.findall(rf"^{USER}:[^:]*:(\d+):", (service.folder / "etc/passwd").read_text(), re.MULTILINE)
    assert set(fields["Uid"]) == {uid}
    assert held(Path(f"/proc/{main}/status")) == set(NEEDED)
    assert fields["CapBnd"] == fields["CapEff"] == fields["CapAmb"]
    assert int(fields["CapEff"][0], 16).bit_count() == len(NEEDED)
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == (["1"], ["2"])


def test_nobody_comes_in_without_the_token(service: Service) -> None:
    url = f"http://127.0.0.1:{service.port}/mcp"
    for headers in ({}, {"Authorization": "Bearer somebody-elses-0123456789"}):
        assert httpx2.post(url, headers=headers, json={}, trust_env=False).status_code == 401


@pytest.mark.parametrize("tool", ["offcputime", "cpu_profile", "page_cache", "ftrace_capture", "host_snapshot"])
def test_the_sandbox_breaks_no_tool(tool: str, service: Service, pid: int) -> None:
    result = called(service, tool, pid=pid, duration=0.6)
    said, coverage = json.dumps(result), result["coverage"]
    found = {entry["name"]: entry["engine"] for entry in coverage["collectors"]}
    assert {engine for name, engine in found.items() if name not in ("proc", "residency")} <= {"ebpf"}
    hidden = {spot["code"] for spot in coverage["not_seen"]} & {"kernel_symbols", "not_permitted"}
    assert hidden <= ({"not_permitted"} if tool == "page_cache" else set())  # residency of others' files: CAP_FOWNER
    if tool == "offcputime":  # a wait's file is told only of long ones, and this disk may be fast
        assert "fsync" in said
        assert "[kernel+" not in said
    if tool == "page_cache":
        assert str(service.file) in said
    if tool == "cpu_profile":
        assert "work_in_python" in said


def test_stopped_it_has_not_failed(service: Service) -> None:
    service.inside("systemctl", "--user", "stop", "whystall.service")
    assert service.shown("Result") == "success"
    assert service.shown("ActiveState") == "inactive"
    assert service.shown("NRestarts") == "0"
