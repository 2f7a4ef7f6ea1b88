"""Waits that cross hosts, over real MCP servers on loopback, each of which judges a recording of its own host."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_servers import TOKEN, RecordedHost, application, closed_port, serving, settings
from recordings import PID, Scene

from whystall.agent_server.fleet.ask import FleetParams, ask
from whystall.agent_server.fleet.text import fleet_text

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
CHILD = 5000
ENDS = {"node1": ("10.0.0.1:40000", "10.0.0.2:7000"), "node2": ("10.0.0.2:7000", "10.0.0.1:40000")}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def host(name: str, call: str, line: str, *, pid: int = PID, path: str = "") -> RecordedHost:
    """A host whose thread is in `call` at `line`, and whose process `pid` has an end of the connection."""
    scene = Scene().process(PID, "train").thread(user=10)
    if pid != PID:
        scene.thread(pid, "worker", pid=pid)
    for second in range(12):
        waits = {"object": "" if path else "socket:[9]", "runnable_ns": 0, "context": "" if path else "network"}
        scene.wait(second, 900, call, path, state="D" if path else "S", user=(line,), **waits)
    local, remote = ENDS[name]
    kind = {"protocol": "tcp", "family": "inet", "state": "established", "comm": "train"}
    scene.seen("sockets", inode=9, pid=pid, local=local, remote=remote, fd=5, **kind)
    return RecordedHost(scene.build(host=name))


ASKED = FleetParams(tool="critical_path", arguments={"duration": 2})


async def test_the_process_at_the_other_end_is_followed_in_one_round() -> None:
    hosts = {
        "node1": host("node1", "recvfrom", "receive (net.py:30)"),
        "node2": host("node2", "read", "load (data.py:7)", path="/data/a.bin"),
    }
    with serving({name: application(one) for name, one in hosts.items()}) as urls, closed_port() as dead:
        result = await ask(ASKED, settings({**urls, "node3": dead}))
    assert [len(one.called) for one in hosts.values()] == [1, 1]
    (path,) = result.paths
    assert [(hop.host, hop.pid, hop.what, hop.line) for hop in path.hops] == [
        ("node1", PID, "socket", "receive (net.py:30)"),
        ("node2", PID, "file", "load (data.py:7)"),
    ]
    # the servers judge recordings, which are longer than the calls took
    assert (path.outcome, path.hops[1].when) == ("found", "whole_window")
    assert [(one.hosts, one.status) for one in result.missing] == [("node3", "unreachable")]
    assert "load (data.py:7)" in fleet_text(result, "en")


async def test_another_process_is_asked_for_once_and_only_on_its_host() -> None:
    hosts = {
        "node1": host("node1", "recvfrom", "receive (net.py:30)"),
        "node2": host("node2", "read", "load (data.py:7)", pid=CHILD, path="/data/a.bin"),
    }
    with serving({name: application(one) for name, one in hosts.items()}) as urls:
        result = await ask(ASKED, settings(urls))
    assert [[given.get("pid") for given in one.called] for one in hosts.values()] == [[None], [None, CHILD]]
    (path,) = result.paths
    assert (path.outcome, path.hops[1].pid, path.hops[1].when) == ("found", CHILD, "later")


async def test_no_second_round_on_a_dead_host() -> None:
    hosts = {"node1": host("node1", "recvfrom", "receive (net.py:30)")}
    with serving({name: application(one) for name, one in hosts.items()}) as urls, closed_port() as dead:
        result = await ask(ASKED, settings({**urls, "node2": dead}))
    (path,) = result.paths
    assert (path.outcome, path.hops[0].peer, len(hosts["node1"].called)) == ("unknown_peer", "10.0.0.2:7000", 1)
    assert result.suspect is None
