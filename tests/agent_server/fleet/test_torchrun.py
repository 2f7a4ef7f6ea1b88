"""The hosts of a job of torchrun, from what its hosts show of their connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fleet_servers import TOKEN, RecordedHost, application, closed_port, serving, settings
from hung_hosts import FIRST_PID, hung_host

from whystall.agent_server.fleet import torchrun
from whystall.agent_server.fleet.answers import Answer, Located
from whystall.agent_server.fleet.ask import FleetParams, ask, health, limits
from whystall.agent_server.fleet.inventory import Inventory
from whystall.agent_server.fleet.torchrun import TorchrunJob, job_of
from whystall.agent_server.interfaces.mcp import jobs, resources
from whystall.agent_server.job_lookup.models import Job, Rank, Resolution, Wanted
from whystall.agent_server.job_lookup.torchrun import Endpoints
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio
ADDRESSES = {"node0": "10.0.0.1", "node1": "10.0.0.2", "node2": "fd00::3"}
REAL = socket.getaddrinfo


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of the hosts, as /etc/hosts would give them."""

    def look_up(host: Any, *rest: Any, **named: Any) -> Any:
        return REAL(ADDRESSES.get(host, host), *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)


def shown(**changed: Any) -> Endpoints:
    """What a host without connections to others shows of a job of three nodes with two ranks each."""
    given = {"store": "node0:29500", "nodes": 3, "world_size": 6, "local_size": 2, "here": [0], "names": ["node0"]}
    given |= {"own": ["127.0.0.1", "10.0.0.1"], "serves": False, "clients": [], "servers": [], "peers": []}
    return Endpoints.model_validate(given | changed)


STORE = shown(serves=True, clients=["10.0.0.2", "fd00::3"])
CLIENT = shown(here=[1], names=["node1"], own=["10.0.0.2"], servers=["10.0.0.1"], peers=["10.0.0.1", "10.0.9.9"])
KNOWN = {name: f"http://127.0.0.1:9/{name}" for name in ADDRESSES}


async def job(
    monkeypatch: pytest.MonkeyPatch, here: Endpoints, asked: Mapping[str, Endpoints | Answer] = {}, **changed: Any
) -> TorchrunJob:
    """The job of a process here, where the hosts in `asked` can be asked; others refuse."""

    async def ask_one(target: Any, *_: Any) -> Endpoints | Answer:
        return asked.get(target.host.name, Answer(target.host.name, "unreachable"))

    monkeypatch.setattr(torchrun, "endpoints", lambda _pid: here)
    monkeypatch.setattr(torchrun, "_asked", ask_one)
    known = settings(KNOWN, **changed)
    return await job_of("7", Inventory(known), limits(known, 0))


async def test_the_host_of_the_store_knows_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await job(monkeypatch, STORE)
    assert found == TorchrunJob(["node0", "node1", "node2"], "torchrun node0:29500", 3, 3, 6, 2)
    assert found.missing([]) == []


async def test_from_another_host_that_of_the_store_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await job(monkeypatch, CLIENT, {"node0": STORE})
    assert (found.hosts, found.seen) == (["node1", "node0", "node2"], 3)


@pytest.mark.parametrize("answer", [Answer("node0", "unreachable"), STORE.model_copy(update={"store": "other:1"})])
async def test_without_it_peers_are_named_and_the_rest_is_missing(
    monkeypatch: pytest.MonkeyPatch, answer: Answer | Endpoints
) -> None:
    found = await job(monkeypatch, CLIENT.model_copy(update={"peers": ["10.0.0.1"]}), {"node0": answer})
    assert (found.hosts, found.seen) == (["node1", "node0"], 2)
    (missing,) = found.missing([Answer("node0", "unreachable")])
    assert (missing.host, missing.status) == ("unknown node", "not_asked")
    assert missing.detail == "no connection of the job leads to it (2 of 3 nodes found)"


async def test_nodes_whose_ranks_no_host_reports_are_named() -> None:
    found = TorchrunJob(["a", "b"], "torchrun a:1", 2, 4, 8, 2)
    answers = [Answer("a", "answered", located=Located(1, 0, {1: 0, 2: 1})), Answer("b", "absent")]
    assert [one.host for one in found.missing(answers)] == ["unknown node", "unknown node"]
    answers[1] = Answer("b", "answered", located=Located(1, 4, {1: 4, 2: 5}))
    assert [one.host for one in found.missing(answers)] == ["node rank 1", "node rank 3"]
    assert found.missing(answers)[0].detail.endswith("; its ranks are among 2-3, 6-7")
    # two nodes on one host: all ranks are found
    whole = Answer("c", "answered", located=Located(1, 2, dict(zip(range(4), (2, 3, 6, 7), strict=True))))
    assert found.missing([*answers, whole]) == []
    unknown = TorchrunJob(["a"], "torchrun a:1", 1, None, None, None)
    assert unknown.missing(answers)[0].detail == "how many nodes the job has is unknown"


async def test_addresses_of_no_known_host_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = STORE.model_copy(update={"clients": ["10.0.0.2", "10.0.9.9", "fd00::9"]})
    found = await job(monkeypatch, strange, allow=["fd00::/64", "node*"])
    assert found.hosts == ["node0", "node1", "10.0.9.9", "fd00::9"]
    inventory = Inventory(settings(KNOWN, allow=["fd00::/64"]))
    assert (inventory.knows("10.0.9.9"), inventory.knows("fd00::9")) == (False, True)
    assert inventory.host("fd00::9").url == "https://[fd00::9]:8377/mcp"


async def test_a_job_cannot_choose_a_host_that_only_a_pattern_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    """MASTER_ADDR is from the environment of a process: the token must not follow it."""
    here = CLIENT.model_copy(update={"store": "node-of-mallory.example:1", "servers": [], "peers": []})
    assert (await job(monkeypatch, here, allow=["node*"])).hosts == ["node1"]


async def test_a_loopback_store_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1", "::1", "[::1]", "localhost"):
        found = await job(monkeypatch, shown(store=f"{address}:29500", nodes=1))
        assert (found.hosts, found.missing([])) == (["node0"], [])


@pytest.mark.parametrize("named", ["", "x", "node1/", "node1/x", "7/", "-7", "12345678", "７", "stranger/7"])
async def test_what_is_no_process_is_refused(named: str) -> None:
    known = settings(KNOWN)
    with pytest.raises(ToolError) as caught:
        await job_of(named, Inventory(known), limits(known, 0))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


# --- over MCP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """node0 and node1, each with two ranks; pid 200 is of node1. All find the same process by words."""
    ranks = [Rank(rank=rank, pid=FIRST_PID + rank) for rank in (0, 1)]
    job = Job(
        id="run:node0:29500", kind="run", name="llama", pid=FIRST_PID, program="job.py", processes=2,
        pids=[FIRST_PID, FIRST_PID + 1], workers=[FIRST_PID], ranks=ranks,
    )  # fmt: skip

    async def find(wanted: Wanted) -> Resolution:
        assert wanted.text == "torchrun node0:29500"
        return Resolution(status="found", pid=FIRST_PID, rank=0, job=job)

    monkeypatch.setattr(jobs, "find", find)
    clients = shown(serves=True, clients=["10.0.0.2", "10.0.9.9"])
    monkeypatch.setattr(resources, "endpoints", lambda pid: {FIRST_PID: clients, 200: CLIENT}[pid])
    apps = {f"node{n}": RecordedHost(hung_host(f"node{n}", (2 * n, 2 * n + 1), 6, late=(3,))) for n in range(2)}
    with serving({name: application(app) for name, app in apps.items()}) as urls:
        yield urls


async def test_a_named_host_leads_to_all(hosts: dict[str, str]) -> None:
    asked = FleetParams(tool="hang", arguments={"duration": 2}, job="torchrun:node1/200")
    result = await ask(asked, settings(hosts))
    assert (result.asked, result.answered) == (3, 2)
    (missing,) = result.missing
    assert (missing.status, missing.hosts, missing.details) == (
        "not_asked",
        "10.0.9.9",
        ["not in [fleet] of the settings"],
    )
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host) == (3, "node1")


async def test_the_hosts_and_ranks_are_listed(hosts: dict[str, str]) -> None:
    answers = await health(None, settings(hosts), "torchrun:node1/200")
    assert [(one.host, one.status) for one in answers] == [
        ("node1", "answered"),
        ("node0", "answered"),
        ("10.0.9.9", "not_asked"),
    ]
    only = await health("node0", settings(hosts), "torchrun:node1/200")
    assert [one.host for one in only] == ["node0"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"store": "a b:1"}', b"\xff", STORE.model_dump_json().encode()]
)
async def test_a_host_that_shows_nonsense_is_an_error_of_one_line(
    hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """The last one is of another host."""

    async def fetch(*_: Any) -> resources.Stored:
        return resources.Stored("application/json", "", content)

    monkeypatch.setattr(resources, "fetch", fetch)
    with pytest.raises(ToolError) as caught:
        await health(None, settings(hosts), "torchrun:node1/200")
    assert caught.value.message.startswith("torchrun: node1 shows no connections: it ")


async def test_a_named_host_that_does_not_answer_is_an_error() -> None:
    with closed_port() as url, pytest.raises(ToolError) as caught:
        await health(None, settings({"node1": url}), "torchrun:node1/200")
    assert (caught.value.code, "nothing listens there" in caught.value.message) == (ErrorCode.IO_ERROR, True)
