"""One job on 32 hosts, each with its own server and token: a live one, recorded ones, a silent one, two dead ones."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from fleet_servers import RecordedHost, application, closed_port, serving, settings, silent_port
from hung_hosts import hung_host
from running import Running

from whystall.agent_server.app import App
from whystall.agent_server.fleet.ask import FleetParams, ask
from whystall.agent_server.fleet.text import fleet_text
from whystall.agent_server.interfaces.mcp import jobs
from whystall.agent_server.job_lookup.models import Resolution, Wanted

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="reading the memory of other processes needs root"),
    pytest.mark.anyio,
]
RECORDED, OF_HOST = 28, 2
SKEWS = (0, -30, 30, 7)
"""Of the clocks of recorded hosts, in seconds."""
LIVE = RECORDED * OF_HOST
WORLD = LIVE + 1 + 3 * OF_HOST
JOB = "424242"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def recorded(number: int) -> RecordedHost:
    """A host whose two ranks wait in the first all_reduce."""
    ranks = range(OF_HOST * number, OF_HOST * (number + 1))
    second = 30 + SKEWS[number % len(SKEWS)]
    started = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
    recording = hung_host(f"node{number:02d}", ranks, WORLD, started=1, window_s=1)
    recording.manifest.started = started
    return RecordedHost(recording)


@pytest.fixture
def _one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """All hosts are this machine: its processes are searched once."""
    look, lock, found = jobs.find, asyncio.Lock(), dict[str, Resolution]()

    async def find(wanted: Wanted) -> Resolution:
        async with lock:
            if wanted.text not in found:
                found[wanted.text] = await look(wanted)
        return found[wanted.text]

    monkeypatch.setattr(jobs, "find", find)


@pytest.mark.usefixtures("_one_lookup")
async def test_the_rank_that_a_live_process_is_holds_30_hosts_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    here = socket.gethostname()
    hosts: dict[str, App] = {host.recording.manifest.host: host for host in map(recorded, range(RECORDED))}
    hosts[here] = App()
    tokens = {name: f"a-token-of-{name}-0123456789" for name in (*hosts, "dead1", "dead2", "silent")}
    for name, token in tokens.items():
        monkeypatch.setenv(f"TOKEN_{name}", token)
    environment = ["env", f"SLURM_JOB_ID={JOB}", f"RANK={LIVE}", f"WORLD_SIZE={WORLD}"]
    with ExitStack() as stack:
        options = ["--directory", tmp_path, "--ranks", WORLD, "--rank", LIVE]
        program = stack.enter_context(Running("lone_rank.py", *options, wrap=lambda words: [*environment, *words]))
        urls = stack.enter_context(serving({name: application(app, tokens[name]) for name, app in hosts.items()}))
        for name in ("dead1", "dead2"):
            urls[name] = stack.enter_context(closed_port())
        urls["silent"] = stack.enter_context(silent_port())
        overrides = {name: {"url": url, "token": {"env": f"TOKEN_{name}"}} for name, url in urls.items()}
        known = settings({}, overrides=overrides, host_deadline=20, deadline=40)
        asked = FleetParams(tool="hang", arguments={"duration": 8}, job=f"slurm job {JOB}")
        result = await ask(asked, known)
        result = await ask(asked, known)
    assert (result.asked, result.answered, result.verdict) == (32, 29, "abnormal")
    assert result.suspect is not None
    found = (result.suspect.rank, result.suspect.host, result.suspect.pid)
    assert found == (LIVE, here, program.pid)
    assert (result.suspect.line or "").startswith("load (lone_rank.py:")
    assert {one.status: one.hosts for one in result.missing} == {"slow": "silent", "unreachable": "dead[1-2]"}
    assert ["not ready within 8 s of the first call"] in [one.details for one in result.missing]  # the window
    text = fleet_text(result, "en")
    assert f"ranks that wait for it: 0-{LIVE - 1}" in text
    assert f"0: {LIVE + 1}-{WORLD - 1}" in text  # unknown
    assert not any(token in caplog.text + text + result.model_dump_json() for token in tokens.values())
