"""The line of Python in what the tools say: offcputime and cpu_profile on one program that knows its lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from whystall.agent_server.app import App
from whystall.tools.contract.result import ToolResult

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="watching the kernel needs root")

PROGRAM = """\
import os, sys, threading, time

def save(fd):
    for _ in range(8):
        os.write(fd, bytes(65536))
        os.fsync(fd)

def waits(event):
    event.wait()

def calculates():
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        for _ in range(2000):
            pass

threading.Thread(target=waits, args=(threading.Event(),), daemon=True).start()
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
print("ready", flush=True)
while True:
    save(fd)
    os.ftruncate(fd, 0)
    calculates()
    time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))


@contextlib.contextmanager
def started(tmp_path: Path, saved: Path) -> Iterator[int]:
    script = tmp_path / "saver.py"
    script.write_text(PROGRAM)
    argv = [sys.executable, str(script), str(saved)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[int]:
    with started(tmp_path, tmp_path / "saved.bin") as pid:
        yield pid


@pytest.fixture
def busy_program(tmp_path: Path) -> Iterator[int]:
    """The same in memory: how much of the window it is busy must not hang on the machine's disk."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as saved, started(tmp_path, Path(saved.name)) as pid:
        yield pid


def run(tool: str, pid: int) -> ToolResult[Any]:
    return anyio.run(lambda: App().run_tool(tool, {"pid": pid, "duration": 1.2}))


def test_offcputime_says_the_line_of_each_wait(program: int) -> None:
    result = run("offcputime", program)
    assert "python_frames" not in {spot.code for spot in result.coverage.not_seen}
    code: dict[str, set[str]] = {}
    for finding in result.findings:
        code.setdefault(finding.attributes.get("syscall", ""), set()).add(finding.attributes.get("code", ""))
    line = PROGRAM.splitlines().index("        os.fsync(fd)") + 1
    assert "fsync" not in code or code["fsync"] == {f"save (saver.py:{line})"}  # a memory file system has no wait there
    sleep = PROGRAM.splitlines().index("    time.sleep(0.05)") + 1
    (slept,) = [found for name, found in code.items() if name in ("clock_nanosleep", "pselect6")]
    assert slept == {f"<module> (saver.py:{sleep})"}
    # blocked from before the window until behind it: below a lock of the standard library, in this program's function
    (whole,) = [row for row in result.data.rows if row.tid != program and row.state == "S"]
    waiting = PROGRAM.splitlines().index("    event.wait()") + 1
    assert f"waits (saver.py:{waiting})" in whole.user_stack
    assert any("/threading.py:" in where for where in code["futex"])


def test_cpu_profile_says_the_lines_that_are_busy(busy_program: int) -> None:
    result = run("cpu_profile", busy_program)
    first = PROGRAM.splitlines().index("def calculates():") + 1
    lines = {f"saver.py:{line}" for line in range(first, first + 5)}
    found = [row for row in result.data.frames if row.kind == "python" and row.name == "calculates"]
    assert found, (result.data.frames, result.coverage.not_seen)
    assert {row.code for row in found} <= lines
    assert sum(row.samples for row in found) >= 5
