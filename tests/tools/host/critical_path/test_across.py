"""What a host reports so that waits can be followed to other hosts, on recordings made by hand."""

from __future__ import annotations

import pytest
from recordings import PID, Scene

from whystall.tools.host.critical_path.across import SLICES, Across, Part
from whystall.tools.host.critical_path.tool import TOOL, Data
from whystall.tools.recording.judging import judge

RELAY, LOOP = 5000, 4101
RECEIVE = ("recv (python3.11/socket.py:1)", "fetch (train.py:41)", "main (train.py:90)")
LOCAL, REMOTE = "10.0.0.1:40000", "10.0.0.2:7000"
TCP = {"protocol": "tcp", "family": "inet", "state": "established", "fd": 5, "comm": "train"}


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))


def across(scene: Scene) -> Across:
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, "connections": True})).data
    assert isinstance(data, Data)
    assert data.across is not None
    assert Across.model_validate(data.across.model_dump()) == data.across
    return data.across


def socket(scene: Scene, inode: int, pid: int = PID, local: str = LOCAL, remote: str = REMOTE, **more: object) -> Scene:
    return scene.seen("sockets", inode=inode, pid=pid, local=local, remote=remote, **(TCP | more))


def share(part: Part) -> float:
    return sum(part.slices) / SLICES / 10


def ends(found: Across, part: Part) -> list[tuple[int, str, str]]:
    return [(one.pid, one.local, one.remote) for one in (found.connections[number] for number in part.ends)]


def receiving(tid: int = PID, pid: int = PID, seconds: range = range(12), ms: float = 700.0) -> Scene:
    scene = Scene().thread(user=30).thread(tid, pid=pid) if tid != PID else Scene().thread(user=30)
    for second in seconds:
        scene.wait(second, ms, "recvfrom", tid=tid, object="socket:[9]", user=RECEIVE, runnable_ns=0, context="network")
    return scene


def test_a_wait_for_another_host_is_listed_with_its_connection() -> None:
    found = across(socket(receiving(seconds=range(6), ms=999.0), 9))
    (part,) = [one for one in found.parts if one.ends]
    assert (part.pid, part.what, part.line) == (PID, "socket", "fetch (train.py:41)")
    assert ends(found, part) == [(PID, LOCAL, REMOTE)]
    assert share(part) == pytest.approx(50, abs=1)
    half = SLICES // 2
    assert min(part.slices[:half]) > 900
    assert set(part.slices[half:]) == {0}


@pytest.mark.parametrize(
    "of",
    [
        {"remote": "127.0.0.1:7000"},
        {"peer": 10},
        {"state": "syn_sent"},
        {"protocol": "udp"},
        {"state": "listen", "remote": ""},
    ],
)
def test_what_is_no_connection_to_another_host(of: dict[str, object]) -> None:
    found = across(socket(receiving(), 9, **of))  # type: ignore[arg-type]
    assert found.connections == []
    assert not [part for part in found.parts if part.ends]


def test_the_wait_of_a_relay_is_followed_to_its_connection() -> None:
    scene = receiving(RELAY, RELAY).process(PID, "train").process(RELAY, "relay")
    for second in range(12):
        scene.wait(second, 700, "futex", lock=64, waker=(RELAY, RELAY, "relay"), context="task", runnable_ns=0)
    found = across(socket(scene, 9, RELAY))
    (part,) = [one for one in found.parts if one.ends]
    assert (part.pid, part.what) == (RELAY, "socket")
    assert ends(found, part) == [(RELAY, LOCAL, REMOTE)]
    assert share(part) == pytest.approx(70, abs=1)


def test_a_server_that_waits_for_a_request_is_idle_and_its_client_is_listed() -> None:
    scene = socket(receiving(), 9, local="10.0.0.1:80")
    scene.seen("sockets", inode=8, pid=PID, local="0.0.0.0:80", **(TCP | {"state": "listen"}))
    found = across(scene)
    (part,) = [one for one in found.parts if one.ends]
    assert part.what == "events"
    assert [one.remote for one in found.connections] == [REMOTE]


def test_ranks_that_wait_in_a_collective_may_wait_for_any_peer() -> None:
    scene = Scene().thread(user=0).thread(LOOP, "pt_gloo_runloop")
    for second in range(12):
        woken = {"waker": (PID, LOOP, "pt_gloo_runloop"), "context": "task", "runnable_ns": 0}
        scene.wait(second, 990, "futex", lock=64, user=("wait (torch/distributed/x.py:1)", *RECEIVE[1:]), **woken)
        scene.wait(second, 980, "epoll_wait", tid=LOOP, context="network", runnable_ns=0)
    socket(scene, 9)
    socket(scene, 10, local="10.0.0.1:40001", remote="10.0.0.3:7000")
    found = across(scene)
    (part,) = [one for one in found.parts if one.ends]
    assert [end[2] for end in ends(found, part)] == [REMOTE, "10.0.0.3:7000"]


def test_what_is_listed_is_bounded() -> None:
    scene = receiving()
    for number in range(300):
        socket(scene, 1000 + number, remote=f"10.0.{number // 256}.{number % 256}:7000")
    socket(scene, 9)
    found = across(scene)
    assert (len(found.connections), found.cut) == (256, True)
    assert found.connections[0].remote == REMOTE  # waited for, and so not left out


def test_it_is_left_out_unless_it_is_asked_for() -> None:
    data = judge(TOOL, receiving().build(), TOOL.params.model_validate({"pid": PID})).data
    assert isinstance(data, Data)
    assert data.across is None
