"""The server as clients start it: a child on pipes, and a listener on loopback."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
ERAS = ("auto", "legacy")
TOKEN = "a-token-of-the-tests-0123456789"
_CALL = {"name": "host_snapshot", "arguments": {"duration": 600}, "_meta": {"progressToken": 1}}


class HttpChild:
    """A server process on loopback, its address and the token it shows."""

    def __init__(self, env: dict[str, str], *words: str) -> None:
        self.process = subprocess.Popen(
            [WHYSTALL, "serve", "--transport", "http", "--port", "0", *words],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        shown = re.fullmatch(r"whystall: MCP at (http://127\.0\.0\.1:\d+/mcp)\n", self.process.stderr.readline())
        assert shown
        self.url = shown[1]
        made = re.fullmatch(r"token: ([\w-]{40,})\n", self.process.stderr.readline()) if not words else None
        self.token = made[1] if made else TOKEN

    def client(self, mode: str) -> Client:
        """An MCP client that knows the token."""
        session = httpx2.AsyncClient(headers={"Authorization": f"Bearer {self.token}"}, timeout=60)
        return Client(streamable_http_client(self.url, http_client=session), mode=mode)

    def post(self, **headers: str | bytes) -> httpx2.Response:
        """One raw request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"Accept": "application/json, text/event-stream"}
        return httpx2.post(self.url, json=body, headers={**accept, **headers}, timeout=30)


@pytest.fixture(scope="module")
def server(env: dict[str, str]) -> Iterator[HttpChild]:
    """A server whose token was made by it."""
    child = HttpChild({k: v for k, v in env.items() if k != "WHYSTALL_TOKEN"})
    yield child
    child.process.terminate()
    assert child.process.wait(20) == 143


async def _diagnosed(client: Client, recording: Path) -> Any:
    result = await client.call_tool("diagnose", {"recording": str(recording)})
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return {k: v for k, v in result.structured_content.items() if k not in ("id", "created", "artifacts")}


@pytest.mark.parametrize("mode", ERAS)
async def test_stdio_and_http_give_the_answer_of_the_command_line(
    mode: str, env: dict[str, str], server: HttpChild, recording: Path, whystall: Run
) -> None:
    parameters = StdioServerParameters(command=WHYSTALL, args=["serve"], env=env)
    async with Client(parameters, mode=mode) as client:
        over_stdio = await _diagnosed(client, recording)
    async with server.client(mode) as client:
        over_http = await _diagnosed(client, recording)
    printed = json.loads(whystall("diagnose", "--from", str(recording), "--json").stdout)
    assert over_stdio == over_http
    assert over_stdio == {k: v for k, v in printed.items() if k not in ("id", "created", "artifacts")}


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_and_cancellation_over_http(mode: str, server: HttpChild) -> None:
    async with server.client(mode) as client:
        observing = anyio.Event()

        async def on_progress(*_: Any) -> None:
            observing.set()

        async def long() -> None:
            await client.call_tool("host_snapshot", {"duration": 600}, progress_callback=on_progress)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(long)
                await observing.wait()
                tasks.cancel_scope.cancel()
            while (result := await client.call_tool("host_snapshot", {"duration": 0.1})).is_error:
                assert "busy" in result.content[0].text  # type: ignore[union-attr]
                await anyio.sleep(0.1)


def test_http_wants_the_token(server: HttpChild) -> None:
    assert server.post().status_code == 401
    assert server.post(Authorization="Bearer wrong").status_code == 401
    assert server.post(Authorization=f"Basic {server.token}").status_code == 401
    assert server.post(Authorization=f"Bearer {server.token}x").status_code == 401
    assert server.post(Authorization=b"Bearer \xfc").status_code == 401


def test_http_refuses_names_that_are_not_ours(server: HttpChild) -> None:
    bearer = f"Bearer {server.token}"
    assert server.post(Authorization=bearer, Host="evil.example").status_code == 421
    assert server.post(Authorization=bearer, Origin="http://evil.example").status_code == 403
    assert server.post(Authorization=bearer, Host="localhost:1").status_code not in (401, 403, 421)


def test_a_given_token_is_not_shown_and_a_second_server_cannot_take_the_port(
    env: dict[str, str], whystall: Run
) -> None:
    child = HttpChild({**env, "WHYSTALL_TOKEN": TOKEN}, "--host", "127.0.0.1")
    port = child.url.split(":")[2].split("/")[0]
    done = whystall("serve", "--transport", "http", "--port", port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: io_error: cannot listen on 127.0.0.1 port {port}")
    assert child.post(Authorization=f"Bearer {TOKEN}").status_code != 401
    child.process.send_signal(signal.SIGINT)
    assert child.process.wait(20) == 130
    assert child.process.stderr is not None
    printed = child.process.stderr.read()
    assert TOKEN not in printed
    *before, last = printed.splitlines()
    assert last == "error: cancelled: stopped by SIGINT; nothing is left attached"
    assert all(line.startswith("whystall: console at http://127.0.0.1:") for line in before)


async def test_a_killed_server_leaves_no_running_diagnosis(env: dict[str, str]) -> None:
    own = {**env, "WHYSTALL_TOKEN": TOKEN}
    child = HttpChild(own, "--host", "127.0.0.1")
    async with child.client("auto") as client:
        started = await client.call_tool("diagnose_start", {"duration": 600, "engine": "procfs"})
        asked = {"id": (started.structured_content or {})["id"], "wait_s": 1}
        working = await client.call_tool("diagnose_result", asked)
        assert (working.structured_content or {})["state"] == "working"
        child.process.kill()
        child.process.wait(20)
    again = HttpChild(own, "--host", "127.0.0.1")
    async with again.client("legacy") as client:
        result = await client.call_tool("diagnose_result", asked)
    again.process.terminate()
    assert again.process.wait(20) == 143
    assert result.is_error
    assert "the server stopped while it ran (call diagnose_start again)" in result.content[0].text  # type: ignore[union-attr]


def _stdio_child(env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [WHYSTALL, "serve"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _send(child: subprocess.Popen[str], method: str, params: dict[str, Any], number: int | None = None) -> None:
    assert child.stdin is not None
    message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
    child.stdin.write(json.dumps(message) + "\n")
    child.stdin.flush()


def _start_a_long_call(child: subprocess.Popen[str]) -> None:
    """Shake hands, call, and return once progress shows that the window is open."""
    assert child.stdout is not None
    who = {"name": "tests", "version": "1"}
    _send(child, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}, 0)
    assert json.loads(child.stdout.readline())["id"] == 0
    _send(child, "notifications/initialized", {})
    _send(child, "tools/call", _CALL, 1)
    assert json.loads(child.stdout.readline())["method"] == "notifications/progress"


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_stdio_server_though_its_client_keeps_the_pipe_open(
    signum: int, status: int, env: dict[str, str], whystall: Run
) -> None:
    with _stdio_child(env) as child:
        _start_a_long_call(child)
        child.send_signal(signum)
        assert child.wait(20) == status
        assert child.stdout is not None
        assert child.stderr is not None
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in child.stdout)
        name = signal.Signals(signum).name
        assert child.stderr.read() == f"error: cancelled: stopped by {name}; nothing is left attached\n"
    assert whystall("run", "host_snapshot", "--duration", "0.1").returncode == 0  # the window is closed


def test_a_client_that_leaves_ends_the_call_and_the_server(env: dict[str, str], whystall: Run) -> None:
    with _stdio_child(env) as child:
        _start_a_long_call(child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(20) == 0
    assert whystall("run", "host_snapshot", "--duration", "0.1").returncode == 0


def test_garbage_on_standard_input_does_not_end_a_stdio_server(env: dict[str, str]) -> None:
    with _stdio_child(env) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("this is no JSON\n\x00\n[]\n{}\n")
        _send(child, "ping", {}, 7)
        answers = (json.loads(line) for line in child.stdout)
        assert next(a for a in answers if a.get("id") == 7)
        child.stdin.close()
        assert child.wait(20) == 0
