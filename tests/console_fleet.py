"""A fleet of real ``whystall serve`` processes on addresses of loopback, for tests of the console."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from console_server import HOSTILE, write_history, write_watch

TOKEN = "a-token-of-the-fleet-0123456789"
WELL, STOPPED, ABSENT, EVIL = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
DEADLINE_S = 90


class Fleet:
    """`settings`: the section ``[fleet]`` of its centre; `processes` by address."""

    def __init__(self, settings: str, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self.settings = settings
        self.processes = processes

    def stop(self, address: str) -> None:
        """Let a host stand still."""
        self.processes[address].send_signal(signal.SIGSTOP)

    def go_on(self, address: str) -> None:
        """Let it go on."""
        self.processes[address].send_signal(signal.SIGCONT)


@contextmanager
def fleet_of_processes(directory: Path) -> Iterator[Fleet]:
    """Three hosts: with a job that stalls and its history, with jobs and no history, with hostile names. Nothing
    listens on `ABSENT`. ``refusing`` and ``elsewhere`` are other names of `WELL`: with a wrong token, and as a host
    that must state this name."""
    with socket.create_server((WELL, 0)) as free:
        port = free.getsockname()[1]
    hosts = {WELL: "llama-7b", STOPPED: "mixtral", EVIL: f"J {HOSTILE}"}
    with ExitStack() as stack:
        processes = {}
        for address, job in hosts.items():
            home = directory / address
            home.mkdir()
            write_watch(home, job, stalled=address == WELL)
            if address == WELL:
                write_history(home)
            config = home / "whystall.toml"
            config.touch()
            variables = {"WHYSTALL_HOME": str(home), "WHYSTALL_CONFIG": str(config), "WHYSTALL_TOKEN": TOKEN}
            words = [WHYSTALL, "serve", "--transport", "http", "--host", address, "--port", str(port)]
            process = subprocess.Popen(words, env={**os.environ, **variables}, stderr=(home / "log").open("wb"))
            processes[address] = stack.enter_context(_ended(process))
        for address in hosts:
            _listens(address, port)
        url = f"http://{WELL}:{port}/mcp"
        yield Fleet(
            f"""
[fleet]
hosts = "{WELL},{STOPPED},{ABSENT},{EVIL}"
url = "http://{{host}}:{port}/mcp"
token = {{ env = "FLEET_TOKEN" }}
plain_http = true
[fleet.overrides.refusing]
url = "{url}"
token = {{ env = "WRONG_TOKEN" }}
[fleet.overrides.elsewhere]
url = "{url}"
""",
            processes,
        )


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def _listens(address: str, port: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection((address, port), 5).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"{address} does not listen"
            time.sleep(0.2)
