"""What stands before every route of the web door, on a real socket: proof, bounds, floods, answers."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from web_servers import serving

from whystall.agent_server.integrations.messages import Refused
from whystall.agent_server.interfaces.web import http_server
from whystall.agent_server.interfaces.web import slow_clients as web_patience
from whystall.agent_server.interfaces.web.app import health_route
from whystall.agent_server.interfaces.web.gate import Denied, Gate, proven
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ErrorCode, ToolError

TOKEN = "a-token-of-the-tests-0123456789"
LIMIT, SECONDS, AT_ONCE = 1000, 0.5, 2
FAILURES: dict[str, Callable[[], Exception]] = {
    "unread": lambda: ToolError(ErrorCode.BAD_ARGUMENT, "/secret/path is no JSON", "send JSON"),
    "full": lambda: ToolError(ErrorCode.DISK_FULL, "no space to write /secret/path", "free some"),
    "unbelieved": lambda: Refused(403, "signature", "/secret/path"),
    "busy": lambda: Denied(503, "busy", wait=7, detail="/secret/path"),
    "defect": lambda: RuntimeError("/secret/path"),
}


class Door:
    """A server with one route of each kind."""

    def __init__(self, port: int, kb: Stores, token_file: Path, fails: threading.Event) -> None:
        self.port = port
        self.kb = kb
        self.token_file = token_file
        self.fails = fails
        self.held = threading.Event()
        self.held.set()
        self.entered = 0
        self.url = f"http://127.0.0.1:{port}"

    def post(self, path: str = "/echo", token: str | None = TOKEN, **how: Any) -> httpx.Response:
        headers = {**how.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token is not None else {})}
        return httpx.post(self.url + path, headers=headers, timeout=30, trust_env=False, **how)

    def raw(self, request: bytes, wait: float = 30.0) -> bytes:
        """All that the server says to `request`, until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            connection.sendall(request)
            said = b""
            while piece := connection.recv(65536):
                said += piece
        return said


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with Stores(tmp_path_factory.mktemp("web") / "knowledge.db") as opened:
        yield opened


@pytest.fixture
def door(tmp_path: Path, kb: Stores) -> Iterator[Door]:
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    token_file.chmod(0o600)
    fails = threading.Event()

    async def echo(request: Request, gate: Gate) -> Response:
        proven(request.headers, Secret(file=token_file), "[test] token")
        return JSONResponse({"length": len(await gate.body(request))})

    async def off(request: Request, _gate: Gate) -> Response:
        proven(request.headers, None, "[test] token")
        return JSONResponse({})

    async def fail(request: Request, _gate: Gate) -> Response:
        raise FAILURES[request.path_params["how"]]()

    async def hold(request: Request, gate: Gate) -> Response:
        await gate.body(request)
        made[0].entered += 1
        await anyio.to_thread.run_sync(made[0].held.wait, 30)
        return JSONResponse({})

    made: list[Door] = []
    refusals = Refusals(kb)
    routes = [
        route("/hold", "POST", hold, Gate(LIMIT, SECONDS, AT_ONCE), refusals),
        route("/echo", "POST", echo, Gate(LIMIT, SECONDS, AT_ONCE), refusals),
        route("/off", "POST", off, Gate(LIMIT, SECONDS, AT_ONCE), refusals),
        route("/fail/{how}", "POST", fail, Gate(LIMIT, SECONDS, AT_ONCE), refusals),
        health_route(kb, fails.is_set),
    ]
    with serving(routes) as port:
        made.append(Door(port, kb, token_file, fails))
        yield made[0]


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, which says nothing else."""
    said = answer.json()
    assert list(said) == ["error"]
    return answer.status_code, said["error"]


def test_who_knows_the_token_comes_in(door: Door) -> None:
    assert door.post(content=b"x" * 7).json() == {"length": 7}
    assert door.post(headers={"authorization": f"bearer   {TOKEN}"}, token=None).status_code == 200


@pytest.mark.parametrize("given", ["", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "\xff" * 31, " ", "null", "undefined"])
def test_who_does_not_stays_out(door: Door, given: str) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\nAuthorization: "
    said = door.raw(head + f"Bearer {given}".encode("latin-1") + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 401 ")
    assert said.endswith(b'{"error":"unauthorised"}')


@pytest.mark.parametrize("header", [{}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN}])
def test_only_a_bearer_token_is_one(door: Door, header: dict[str, str]) -> None:
    answer = door.post(token=None, headers=header)
    assert refused(answer) == (401, "unauthorised")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_missing_secret_lets_nobody_in(door: Door) -> None:
    assert refused(door.post("/off")) == (404, "not_found")
    for token in (None, "None"):
        assert door.post("/off", token=token).status_code == 404
    door.token_file.write_text("\n")  # empty: nobody knows it, also not who sends nothing
    for token in (None, TOKEN):
        answer = door.post(token=token)
        assert refused(answer) == (503, "unready")
        assert int(answer.headers["retry-after"]) > 0
    door.token_file.unlink()
    assert refused(door.post()) == (503, "unready")  # a sender repeats what is answered so: nothing is lost


def test_a_token_may_be_changed_while_we_run(door: Door) -> None:
    door.token_file.write_text("another-token-of-the-tests")
    os.chmod(door.token_file, 0o600)
    assert door.post().status_code == 401
    assert door.post(token="another-token-of-the-tests").status_code == 200


def test_what_is_too_large_is_not_read(door: Door) -> None:
    assert door.post(content=b"x" * LIMIT).status_code == 200
    assert refused(door.post(content=b"x" * (LIMIT + 1))) == (413, "too_large")
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    # Told: refused before a byte of it came. Not told: as soon as it is too long.
    assert b" 413 " in door.raw(head + b"Content-Length: 99999999999\r\n\r\n")[:20]
    assert b" 413 " in door.raw(head + b"Transfer-Encoding: chunked\r\n\r\n1000\r\n" + b"x" * 4096)[:20]


def test_packed_bodies_are_refused(door: Door) -> None:
    assert refused(door.post(content=b"x", headers={"Content-Encoding": "gzip"})) == (415, "encoded")


def test_who_sends_slowly_is_not_waited_for(door: Door) -> None:
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10\r\n\r\nxx"
    said = door.raw(head.encode())
    assert said.startswith(b"HTTP/1.1 408 ")
    assert said.endswith(b'{"error":"slow"}')


def test_a_head_that_never_ends_is_not_waited_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_patience, "HEAD_S", 0.2)
    assert door.raw(b"") == b""
    assert door.raw(b"POST /echo HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""
    # Also the head of a later request on the same connection.
    with socket.create_connection(("127.0.0.1", door.port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /healthz HT")
        while connection.recv(65536):
            pass


def test_too_many_at_once_are_told_to_come_again(door: Door) -> None:
    door.held.clear()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        inside = [pool.submit(door.post, "/hold", content=b"x") for _ in range(AT_ONCE)]
        try:
            while door.entered < AT_ONCE:
                time.sleep(0.001)
            answer = door.post("/hold", content=b"x")
            assert refused(answer) == (503, "busy")
            assert answer.headers["retry-after"] == "5"
        finally:
            door.held.set()
        assert [answer.result().status_code for answer in inside] == [200] * AT_ONCE
    assert door.post("/hold", content=b"x").status_code == 200  # there is room again


def test_slow_senders_keep_nobody_out(door: Door) -> None:
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {LIMIT}\r\n\r\n"
    slow = [socket.create_connection(("127.0.0.1", door.port), timeout=30) for _ in range(4 * AT_ONCE)]
    try:
        for connection in slow:
            connection.sendall(head.encode() + b"x")
        assert door.post(content=b"x").status_code == 200
        # What they all send together is bounded all the same: nobody's memory is full of halves.
        for connection in slow:
            connection.sendall(b"x" * (LIMIT - 2))
        statuses = {connection.recv(100)[:12] for connection in slow}
        assert statuses == {b"HTTP/1.1 503", b"HTTP/1.1 408"}
    finally:
        for connection in slow:
            connection.close()


def test_a_flood_of_nonsense_fills_no_log(
    door: Door, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server._RARELY, "_next", {})
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert door.raw(b"\xff\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert [record.name for record in caplog.records] == ["uvicorn.error"]


def test_who_only_connects_makes_room(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_patience, "UNFINISHED", 3)
    idle = []
    try:
        for _ in range(5):
            idle.append(socket.create_connection(("127.0.0.1", door.port), timeout=30))
            assert door.post(content=b"x").status_code == 200
        assert idle[0].recv(1) == b""  # the oldest
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize(
    ("how", "status", "code", "wait"),
    [
        ("unread", 400, "bad_argument", None),
        ("full", 503, "disk_full", "10"),
        ("unbelieved", 403, "signature", None),
        ("busy", 503, "busy", "7"),
        ("defect", 500, "internal", None),
    ],
)
def test_a_failure_is_told_as_a_code(
    door: Door, how: str, status: int, code: str, wait: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        answer = door.post(f"/fail/{how}")
    assert refused(answer) == (status, code)
    assert answer.headers.get("retry-after") == wait
    assert "secret" not in answer.text + str(answer.headers)


def test_other_methods_and_paths_are_told_as_codes(door: Door) -> None:
    assert refused(httpx.get(door.url + "/echo", trust_env=False)) == (405, "method")
    assert refused(door.post("/nothing")) == (404, "not_found")
    assert refused(door.post("/healthz")) == (405, "method")


def test_refusals_are_audited_by_count_and_never_by_what_was_sent(door: Door) -> None:
    for _ in range(5):
        door.post("/fail/unbelieved?x=/secret/query", content=b"/secret/body")
        door.post("/echo", token="/secret/token")
    entries = door.kb.audit.entries(what="request.refused")[-2:]
    assert [(e.target, e.outcome, e.detail) for e in entries] == [
        ("/fail/{how}", "signature", {"count": 1}),
        ("/echo", "unauthorised", {"count": 1}),
    ]
    assert "secret" not in json.dumps([e.model_dump() for e in entries])


def test_health_is_told_to_everybody_and_says_little(door: Door) -> None:
    answer = httpx.get(door.url + "/healthz", trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert not re.search("server|whystall|uvicorn", str(answer.headers), re.I)
    door.fails.set()
    assert httpx.get(door.url + "/healthz", trust_env=False).status_code == 503
