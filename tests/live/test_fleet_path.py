"""A wait that crosses hosts: two servers, each of which finds one of two processes that only a network connects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from across_hosts import JOBS
from fleet_servers import TOKEN, settings
from ranks_net import available
from running import Running

from whystall.agent_server.fleet import ask as asking
from whystall.agent_server.fleet.ask import FleetParams, ask
from whystall.agent_server.fleet.text import fleet_text

WHYSTALL = str(Path(sys.executable).with_name("whystall"))
HOSTS = ("asks", "answers")
pytestmark = [
    pytest.mark.skipif(not available() or shutil.which("unshare") is None, reason="namespaces need root and iproute2"),
    pytest.mark.anyio,
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def server(name: str, home: Path) -> Iterator[str]:
    """The address of ``whystall serve`` on a host that is called `name`."""
    serve = [WHYSTALL, "serve", "--transport", "http", "--port", "0"]
    process = subprocess.Popen(
        ["unshare", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh", name, *serve],
        env=os.environ | {"WHYSTALL_HOME": str(home), "WHYSTALL_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        shown = re.search(r"http://127\.0\.0\.1:\d+/mcp", process.stderr.readline())
        assert shown
        yield shown[0]
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


async def test_the_line_for_which_another_host_waits_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    words = [(host, f"slurm job {job}") for host, job in zip(HOSTS, JOBS, strict=True)]
    monkeypatch.setattr(asking, "hosts_of", lambda _name: words)
    with ExitStack() as stack:
        program = stack.enter_context(Running("across_hosts.py"))
        urls = {host: stack.enter_context(server(host, tmp_path / host)) for host in HOSTS}
        asked = FleetParams(tool="critical_path", arguments={"duration": 6}, job="slurm:4242")
        result = await ask(asked, settings(urls, host_deadline=120, deadline=200))
    text = fleet_text(result, "en")
    assert result.missing == [], text
    (path,) = result.paths
    first, last = path.hops
    pids = program.start["pids"]
    assert [(hop.host, hop.pid) for hop in path.hops] == list(zip(HOSTS, pids, strict=True)), text
    assert (first.what, first.line.partition(":")[0], last.what, last.line.partition(":")[0]) == (
        *("socket", "receive (across_hosts.py"),
        *("sleep", "save (across_hosts.py"),
    )
    assert first.pct > 50
    assert (path.outcome, last.when) == ("found", "meanwhile"), text
    assert result.suspect is not None
    assert (result.suspect.host, result.suspect.pid, result.suspect.line) == ("answers", pids[1], last.line)
    assert f"(pid {pids[1]}) -> {last.line}" in text
