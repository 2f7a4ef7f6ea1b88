"""``diagnose`` over both transports and in both eras: it tells each step, and can be cancelled at any of them."""

from __future__ import annotations

import json
import re
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
from mcp.shared.exceptions import MCPError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
TOKEN = "a-token-of-the-tests-0123456789"
ERAS = ("auto", "legacy")
TRANSPORTS = ("stdio", "http")
Connect = Callable[[str, str], Client]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory of this module's own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def connect(env: dict[str, str], home: Path) -> Iterator[Connect]:
    """Makes a client of a server over a transport, in an era."""
    mine = {**env, "WHYSTALL_HOME": str(home), "WHYSTALL_TOKEN": TOKEN}
    words = [WHYSTALL, "serve", "--transport", "http", "--port", "0"]
    with subprocess.Popen(words, env=mine, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = server.stderr.readline().split()[-1]

        def client(transport: str, mode: str) -> Client:
            if transport == "stdio":
                return Client(StdioServerParameters(command=WHYSTALL, args=["serve"], env=mine), mode=mode)
            session = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
            return Client(streamable_http_client(url, http_client=session), mode=mode)

        yield client
        server.terminate()
        assert server.wait(20) == 143


@pytest.fixture(scope="module")
def victim() -> Iterator[int]:
    """A process that computes and sleeps in turn."""
    program = "import time\nwhile True:\n    sum(range(200000))\n    time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        yield child.pid
        child.kill()


def asked(pid: int, duration: float) -> dict[str, Any]:
    """Arguments of a diagnosis that needs no privilege."""
    return {"pid": pid, "duration": duration, "engine": "procfs", "symptom": "slow steps"}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_step_is_told_with_its_tools(transport: str, mode: str, connect: Connect, victim: int) -> None:
    told: list[tuple[float, float | None, str]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message or ""))

    async with connect(transport, mode) as client:
        result = await client.call_tool("diagnose", asked(victim, 1.5), progress_callback=on_progress)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    steps = result.structured_content["steps"]
    assert len(steps) >= 2
    for number, step in enumerate(steps, 1):
        of_step = [message for _, _, message in told if message.startswith(f"step {number}: ")]
        assert of_step, told
        assert step["tools"][-1] in of_step[0]
    done = [progress for progress, _, _ in told]
    assert done == sorted(set(done))
    assert all(total is not None and progress <= total for progress, total, _ in told)


@pytest.mark.parametrize(
    ("transport", "mode", "step"),
    [("stdio", "auto", 2), ("stdio", "legacy", 1), ("http", "auto", 1), ("http", "legacy", 2)],
)
async def test_it_can_be_cancelled_at_each_step(
    transport: str, mode: str, step: int, connect: Connect, victim: int, home: Path
) -> None:
    before = set((home / "transcripts").glob("*")) if (home / "transcripts").exists() else set()
    there = anyio.Event()

    async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
        if re.match(rf"step {step}: ", message or ""):
            there.set()

    async with connect(transport, mode) as client:

        async def long() -> None:
            arguments = asked(victim, 600.0) | {"ticket": True}
            await client.call_tool("diagnose", arguments, progress_callback=on_progress)
            pytest.fail("it was not cancelled")

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(long)
                await there.wait()
                tasks.cancel_scope.cancel()
            while (result := await client.call_tool("host_snapshot", {"duration": 0.1})).is_error:
                assert "busy" in result.content[0].text  # type: ignore[union-attr]
                await anyio.sleep(0.05)
        listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert not [uri for uri in listed if "/tickets/" in uri], "what was cancelled drafts no ticket"
        (left,) = set((home / "transcripts").glob("*")) - before
        page = await client.call_tool("artifact_read", {"uri": f"whystall://transcripts/{left.stem}", "limit": 20_000})
        assert not page.is_error
    records = [json.loads(line)["type"] for line in left.read_text().splitlines()]
    assert records == ["header", "case", *["look"] * (step - 1)], "it leaves what it had done"


@pytest.mark.parametrize(("transport", "mode"), [("http", "auto"), ("stdio", "legacy")])
async def test_it_may_last_longer_than_its_client_waits(
    transport: str, mode: str, connect: Connect, victim: int
) -> None:
    patience = 6.0
    async with connect(transport, mode) as client:
        await client.list_tools()
        await client.call_tool("kb_search", {"query": "slow steps"})  # makes the database
        with pytest.raises(MCPError, match=r"(?i)timed out"):
            await client.call_tool("diagnose", asked(victim, 18.0), read_timeout_seconds=patience)
        started = await client.call_tool("diagnose_start", asked(victim, 18.0), read_timeout_seconds=patience)
        assert started.structured_content is not None
        wanted = {"id": started.structured_content["id"], "wait_s": 2}
        told: list[dict[str, Any]] = []
        while not told or told[-1]["state"] == "working":
            result = await client.call_tool("diagnose_result", wanted, read_timeout_seconds=patience)
            assert not result.is_error, result.content
            assert result.structured_content is not None
            told.append(result.structured_content)
    assert len(told) > 3
    assert any(one["step"].startswith("step 1: ") for one in told)
    assert str(victim) in told[-1]["result"]["target"]
    assert told[-1]["result"]["symptom"] == "slow steps"
