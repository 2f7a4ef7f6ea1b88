"""Asking a fleet in the background: states, what hosts state falsely, histories."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import fleet_servers
import pytest
from console_server import HOSTILE, write_history, write_watch
from fleet_servers import TOKEN, application, closed_port, serving
from starlette.types import ASGIApp

from whystall.agent_server.app import App
from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.interfaces.mcp import resources
from whystall.agent_server.watch.fleet_jobs import FleetJobs, HostState, _state
from whystall.agent_server.watch.history import HistoryParams

DEADLINE_S = 60


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    write_watch(tmp_path, f"J {HOSTILE}")
    write_history(tmp_path)
    return tmp_path


def until(read: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := read()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_hosts_are_asked_in_the_background_and_then_known(home: Path) -> None:
    may_answer = threading.Event()

    def held(inner: ASGIApp) -> ASGIApp:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await anyio.to_thread.run_sync(may_answer.wait)
            await inner(scope, receive, send)

        return app

    with App().closing() as host, closed_port() as closed, serving({"well": held(application(host))}) as urls:
        fleet = FleetJobs(fleet_servers.settings({**urls, "gone": closed}, identity=False))
        assert [one.status for one in fleet.hosts()] == ["asking", "asking"], "the first answer comes later"
        until(lambda: fleet.hosts()[1].status == "unreachable")
        assert (fleet.hosts()[0].status, fleet.asking) == ("asking", True), "who answers is not delayed by who does not"
        may_answer.set()
        until(lambda: not fleet.asking)
        well, gone = fleet.hosts()
        assert (well.status, well.stalled, well.job("slurm:4242").stalled) == ("answered", True, 1)  # type: ignore[union-attr]
        assert well.watch is not None
        assert well.watch.waiting[4102].call == "fsync"
        assert "\u202e" not in well.jobs[0].name
        assert (gone.detail, gone.seen) == ("nothing listens there (connection refused)", "")
        params = HistoryParams(job="slurm:4242", parts=60)
        answer = until(lambda: fleet.history("well", params))
        assert len(answer.reply["data"]["rows"][0]["parts_s"]) == 60


def test_a_host_of_an_older_version_is_too_old(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "WATCH", "of another version")
    with App().closing() as host, serving({"old": application(host)}) as urls:
        fleet = FleetJobs(fleet_servers.settings(urls, identity=False))
        fleet.hosts()
        until(lambda: not fleet.asking)
        assert fleet.hosts()[0].status == "too_old"


GOOD = {"host": "node1", "state": "running", "jobs": [{"id": "a", "name": "b", "processes": [{"pid": 1}]}]}


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (GOOD, "answered"),
        ({**GOOD, "later": [1]}, "answered"),
        ({**GOOD, "host": HOSTILE}, "wrong_host"),
        ({**GOOD, "state": "other"}, "invalid"),
        ({**GOOD, "jobs": [GOOD["jobs"][0]] * 2001}, "invalid"),
        ({**GOOD, "jobs": [{"id": "a", "name": "b", "processes": [{"pid": 1 << 40}]}]}, "invalid"),
        ({}, "invalid"),
        (json.loads('{"host": "node1", "state": "none", "waiting": {"1": 3}}'), "invalid"),
    ],
)
def test_what_a_host_states_is_checked(reply: dict[str, Any], status: str) -> None:
    before = HostState("node1", "answered", "", "2026-11-30T00:00:00Z", None, 1.0)
    found = _state(Answer("node1", "answered", reply=reply), before, True)
    assert found.status == status
    assert "\u202e" not in found.detail
    assert (found.seen == before.seen) is (status != "answered"), "when it answered last stays"
