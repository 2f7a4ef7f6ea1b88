"""Whatever ends a window - a signal, a cancelled request - leaves no BPF program behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from whystall.bpf.libbpf import program_ids

WHYSTALL = str(Path(sys.executable).with_name("whystall"))
LONG = ("--duration", "300", "--engine", "ebpf")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A state directory of its own: no other window is in the way."""
    return {**os.environ, "WHYSTALL_HOME": str(tmp_path / "state")}


@pytest.fixture
def anyio_backend() -> str:
    """What the doors run on."""
    return "asyncio"


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that process `pid` holds and has linked to an event."""
    held: set[int] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "bpf" not in os.readlink(link):
                continue
            info = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
        except OSError:
            continue  # closed while we looked
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        if "link_type" in fields:
            held.add(int(fields["prog_id"]))
    return held


def attached(child: subprocess.Popen[Any]) -> set[int]:
    """The programs of `child`, once it has linked some; fails, and says why, when it ends before."""

    def look() -> set[int]:
        assert child.poll() is None, child.communicate()
        return programs_of(child.pid)

    return until(look)


def loaded(program: int) -> bool:
    """Whether the kernel still has the program `program`."""
    return program in program_ids()


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """The first true value of `condition`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value


def all_gone(programs: set[int]) -> bool:
    """The kernel frees programs a little after their last user."""
    return not any(loaded(program) for program in programs)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "fileslower"),
        ("run", "offcputime"),
        ("run", "host_bound"),
        ("diagnose",),
        ("record", "--trace", "--out", "{out}"),
    ],
)
def test_a_signal_detaches_everything(
    words: tuple[str, ...], signum: int, status: int, env: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "recording"
    command = [WHYSTALL, *(word.format(out=out) for word in words), *LONG, "--pid", str(os.getpid())]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        programs = attached(child)
        assert all(loaded(program) for program in programs)
        child.send_signal(signum)
        printed, said = child.communicate(timeout=30)
    assert child.returncode == status
    assert printed == ""
    if signum != signal.SIGKILL:
        assert said == f"error: cancelled: stopped by {signal.Signals(signum).name}; nothing is left attached\n"
    until(lambda: all_gone(programs))
    assert not out.exists()
    assert not list(tmp_path.glob(".recording*"))  # no half-written recording either


def test_a_signal_at_any_moment_ends_in_one_line(env: dict[str, str]) -> None:
    """From the first instruction of ours to the answer: the moment of the signal moves through the whole run."""
    command = [WHYSTALL, "run", "fileslower", "--duration", "0.2", "--engine", "ebpf"]
    for step in range(12):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            until(lambda: b"doors" in Path(f"/proc/{child.pid}/cmdline").read_bytes() or _ours(child.pid))
            time.sleep(0.1 * step)
            programs = programs_of(child.pid) if child.poll() is None else set()
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=30)
        assert child.returncode in (0, 130)
        assert said in ("", "error: cancelled: stopped by SIGINT; nothing is left attached\n"), (step, said)
        until(lambda held=programs: all_gone(held))


def _ours(pid: int) -> bool:
    """Whether the process has taken SIGTERM into its own hands: our code runs (Python itself leaves it alone)."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_second_window_is_refused_while_one_is_open(env: dict[str, str]) -> None:
    with subprocess.Popen([WHYSTALL, "run", "fileslower", *LONG], env=env, stdout=subprocess.DEVNULL) as first:
        attached(first)
        command = [WHYSTALL, "run", "biolatency", "--duration", "1"]
        second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        first.send_signal(signal.SIGTERM)
    assert second.returncode == 1
    assert second.stderr.startswith(f"error: busy: process {first.pid} ")
    assert len(second.stderr.splitlines()) == 1
    assert first.returncode == 143


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("tool", "at"), [("fileslower", ""), ("diagnose", "step 1: "), ("diagnose", "step 2: ")])
async def test_a_cancelled_request_detaches_and_the_next_call_works(
    tool: str, at: str, mode: str, env: dict[str, str], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}; exec {WHYSTALL} serve"
    server = StdioServerParameters(command="/bin/sh", args=["-c", script], env=env)
    async with Client(server, mode=mode) as client:
        pid = int(pid_file.read_text())
        programs: set[int] = set()
        there = anyio.Event()

        async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
            if (message or "").startswith(at):
                there.set()

        async def call() -> None:
            arguments = {"duration": 300, "pid": os.getpid(), "engine": "ebpf"}
            await client.call_tool(tool, arguments, progress_callback=on_progress)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await there.wait()
                while not programs:
                    await anyio.sleep(0.02)
                    programs = programs_of(pid)
                tasks.cancel_scope.cancel()
            while programs_of(pid) or not all_gone(programs):
                await anyio.sleep(0.02)
            result = await client.call_tool("fileslower", {"duration": 0.5, "engine": "ebpf"})
    assert not result.is_error, result.content
    assert result.structured_content is not None
    assert result.structured_content["coverage"]["collectors"][0]["engine"] == "ebpf"
