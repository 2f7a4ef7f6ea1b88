"""Tools that judge hosts as one job, over real MCP servers on loopback, each of which knows only its own ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from collective_hosts import windows
from collective_windows import Job as Loop
from fleet_servers import TOKEN, HostWithTraces, RecordedHost, application, serving, settings
from hung_hosts import FIRST_PID, hung_host

from whystall.agent_server.fleet.ask import FleetParams, ask
from whystall.agent_server.fleet.text import fleet_text
from whystall.agent_server.interfaces.mcp import jobs
from whystall.agent_server.job_lookup.models import Job, Rank, Resolution
from whystall.tools.contract.errors import ToolError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
TRACES = Path(__file__).parents[2] / "recorded/ranks/compute"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What find_job finds on each host."""
    job = Job(
        id="slurm:42", kind="slurm", name="llama", pid=FIRST_PID, program="job.py", processes=1, pids=[FIRST_PID],
        workers=[FIRST_PID], ranks=[Rank(rank=0, pid=FIRST_PID)],
    )  # fmt: skip

    async def find(_wanted: Any) -> Resolution:
        return Resolution(status="found", pid=FIRST_PID, rank=0, job=job)

    monkeypatch.setattr(jobs, "find", find)


@pytest.mark.usefixtures("found")
async def test_the_hosts_of_a_hung_job_are_judged_as_one() -> None:
    hosts = {f"node{n}": RecordedHost(hung_host(f"node{n}", (2 * n, 2 * n + 1), 6, late=(3,))) for n in range(3)}
    asked = FleetParams(tool="hang", arguments={"duration": 2, "top": 1}, job="llama")
    with serving({name: application(host) for name, host in hosts.items()}) as urls:
        result = await ask(asked, settings(urls))
    assert [host.called[0]["pid"] for host in hosts.values()] == [FIRST_PID] * 3
    assert result.verdict == "abnormal"
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host, result.suspect.line) == (3, "node1", "load (job.py:6)")
    assert "ranks that wait for it: 0-2, 4-5" in fleet_text(result, "en")


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    ("tool", "arguments"), [("collective_live", {"duration": 30}), ("slow_node_check", {"duration": 30, "live": True})]
)
async def test_hosts_of_a_slow_job_are_observed_together(tool: str, arguments: dict[str, Any]) -> None:
    observed = windows(Loop(ranks=6, late_ms={3: 30}), {f"node{n}": (2 * n, 2 * n + 1) for n in range(3)})
    hosts = {name: RecordedHost(recording) for name, recording in observed.items()}
    with serving({name: application(host) for name, host in hosts.items()}) as urls:
        result = await ask(FleetParams(tool=tool, arguments=arguments, job="llama"), settings(urls))
    wanted = {"tool": tool, "pid": FIRST_PID, "duration": 30.0}
    assert [host.called for host in hosts.values()] == [[wanted]] * 3
    assert (result.verdict, result.missing) == ("abnormal", [])
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host) == (3, "node1")


async def test_traces_that_lie_on_many_hosts_are_judged_as_one_job(tmp_path: Path) -> None:
    hosts = {}
    for rank in range(4):
        directory = tmp_path / f"node{rank}/traces"
        directory.mkdir(parents=True)
        shutil.copy(TRACES / f"rank{rank}.json.gz", directory)
        hosts[f"node{rank}"] = application(HostWithTraces(tmp_path / f"node{rank}"))
    hosts["node4"] = application(HostWithTraces(tmp_path / "node4"))
    asked = FleetParams(tool="slow_node_check", arguments={"traces": "/traces"})
    with serving(hosts) as urls:
        result = await ask(asked, settings(urls))
        short = await ask(asked, settings(urls, reply_limit=10_000, host_deadline=60))
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host) == (2, "node2")
    (missing,) = result.missing
    assert (missing.hosts, missing.status) == ("node4", "refused")
    assert "No such file" in missing.details[0]
    assert {(one.status, one.count) for one in short.missing} == {("too_large", 4), ("refused", 1)}


@pytest.mark.parametrize(
    ("given", "holding"),
    [
        ({"tool": "hang"}, "needs a job"),
        ({"tool": "slow_node_check"}, "needs live, or traces"),
        ({"tool": "slow_node_check", "arguments": {"live": True}}, "needs a job"),
        ({"tool": "collective_live"}, "needs a job"),
        ({"tool": "collective_live", "arguments": {"pid": 7}, "job": "slurm:1"}, "that each host finds"),
        ({"tool": "collective_live", "arguments": {"recording": "/r"}, "job": "slurm:1"}, "observes a running job"),
        ({"tool": "hang", "arguments": {"duration": 0}, "job": "x"}, "duration"),
    ],
)
async def test_what_is_refused_before_any_host_is_asked(given: dict[str, Any], holding: str) -> None:
    with pytest.raises(ToolError) as caught:
        await ask(FleetParams.model_validate(given), settings({"node1": "http://127.0.0.1:9/mcp"}))
    assert holding in caught.value.message
