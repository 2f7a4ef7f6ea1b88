"""The hosts of a real job of torchrun: two agents with a gloo rank each, on loopback, and in two network namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_servers import settings

from whystall.agent_server.fleet import torchrun
from whystall.agent_server.fleet.ask import limits
from whystall.agent_server.fleet.inventory import Inventory as Hosts
from whystall.agent_server.fleet.torchrun import job_of
from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.models import Inventory, Wanted
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.agent_server.job_lookup.torchrun import Endpoints, endpoints

pytestmark = pytest.mark.anyio
PATIENCE_S = 300
TRAIN = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(4))
    print("reduced", flush=True)
    time.sleep(0.2)
"""
Start = Callable[[int, list[str], list[str]], subprocess.Popen[str]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the agent of a node: its rank, options, and words before the command."""
    (tmp_path / "train.py").write_text(TRAIN)
    with ExitStack() as stack:

        def agent(node: int, options: list[str], before: list[str]) -> subprocess.Popen[str]:
            words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
            words += [*options, "--nproc-per-node", "1", str(tmp_path / "train.py")]
            with (tmp_path / f"out{node}").open("w") as out:
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                made = subprocess.Popen([*before, *words], stdout=out, stderr=out, env=environment, text=True)
            stack.callback(made.wait)
            stack.callback(made.terminate)
            return made

        yield agent


def reduced(place: Path) -> None:
    """Wait until both ranks communicate."""
    end = time.monotonic() + PATIENCE_S
    while not all("reduced" in (place / f"out{node}").read_text() for node in (0, 1)):
        assert time.monotonic() < end, [(place / f"out{node}").read_text()[-2000:] for node in (0, 1)]
        time.sleep(0.5)


@pytest.mark.parametrize("options", ["--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{}", "--master-port={}"])
def test_two_agents_on_one_host(start: Start, tmp_path: Path, options: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    given = options.format(port).split()
    agents = [start(node, [*given, "--local-addr=127.0.0.1"], []) for node in (0, 1)]
    reduced(tmp_path)
    shown = endpoints(agents[1].pid)
    assert (shown.nodes, shown.here, shown.world_size, shown.local_size) == (2, [0, 1], 2, 1)
    assert (shown.serves, shown.clients, shown.servers, shown.peers) == (True, [], [], [])
    found = resolve(Wanted(text=shown.words), inventory.read())
    assert found.job is not None
    assert [rank.rank for rank in found.job.ranks] == [0, 1]


# --- two network namespaces, as two hosts ---------------------------------------------------------------------------

ADDRESSES = ("10.77.0.1", "10.77.0.2")


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces, connected by a pair of virtual devices."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and ip(8)")
    names = [f"whystall-{os.getpid()}-{node}" for node in (0, 1)]
    devices = [f"ws{os.getpid()}{end}" for end in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    with ExitStack() as undo:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError:
                pytest.skip("no network namespace can be made here")
            undo.callback(ip, "netns", "del", name)
        first, second = devices
        ip("link", "add", first, "netns", names[0], "type", "veth", "peer", "name", second, "netns", names[1])
        for name, device, address in zip(names, devices, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            for one in (device, "lo"):
                ip("-n", name, "link", "set", one, "up")
        yield [f"{name} env GLOO_SOCKET_IFNAME={device}" for name, device in zip(names, devices, strict=True)]


def part(seen: Inventory, pid: int, name: str) -> Inventory:
    """The processes in the network namespace of `pid`, as if they were those of a host."""

    def namespace(one: int) -> str:
        try:
            return os.readlink(f"/proc/{one}/ns/net")
        except OSError:
            return ""

    wanted = namespace(pid)
    return replace(seen, processes=[one for one in seen.processes if namespace(one.pid) == wanted], host=(name,))


async def test_each_host_leads_to_both(
    start: Start, namespaces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = []
    for node, where in enumerate(namespaces):
        options = [f"--master-addr={ADDRESSES[0]}", "--master-port=29533", f"--local-addr={ADDRESSES[node]}"]
        agents.append(start(node, options, ["ip", "netns", "exec", *where.split()]))
    reduced(tmp_path)
    seen = inventory.read()
    shown = [endpoints(one.pid, part(seen, one.pid, f"node{node}")) for node, one in enumerate(agents)]
    store, client = shown
    assert (store.store, store.nodes, store.here, client.here) == ("10.77.0.1:29533", 2, [0], [1])
    assert (store.serves, store.clients, store.servers) == (True, [ADDRESSES[1]], [])
    assert (client.serves, client.clients, client.servers, client.peers) == (False, [], [ADDRESSES[0]], [ADDRESSES[0]])

    async def asked(target: Any, *_: Any) -> Endpoints:
        return shown[int(target.host.name[-1])]

    look_up = socket.getaddrinfo
    known = {f"node{node}": address for node, address in enumerate(ADDRESSES)}
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: look_up(known.get(host, host), *more, **named)
    )
    monkeypatch.setattr(torchrun, "_asked", asked)
    of_fleet = settings(dict.fromkeys(known, "http://127.0.0.1:9/mcp"))
    for node in (0, 1):
        monkeypatch.setattr(torchrun, "endpoints", lambda _pid, node=node: shown[node])
        job = await job_of("7", Hosts(of_fleet), limits(of_fleet, 0))
        assert (sorted(job.hosts), job.seen, job.missing([])) == (["node0", "node1"], 2, [])
