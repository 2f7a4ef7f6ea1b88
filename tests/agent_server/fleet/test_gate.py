"""The gate that lets calls begin together."""

from __future__ import annotations

import anyio
import pytest

from whystall.agent_server.fleet import gate as module
from whystall.agent_server.fleet.gate import Gate

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


async def run(ready: int, ended: int = 0, silent: int = 0) -> list[str]:
    """What happened, of calls that become ready one after the other, end instead, or do neither."""
    seen: list[str] = []
    gate = Gate(lambda: seen.append("open"))
    for number in range(ready + ended + silent):
        gate.prepare(number)

    async def call(number: int) -> None:
        await gate.passed(number)
        seen.append("passed")
        gate.end(number)

    async with anyio.create_task_group() as group:
        for number in range(ready):
            group.start_soon(call, number)
            seen.append("ready")
            await anyio.sleep(0)
        for number in range(ready, ready + ended):
            gate.end(number)
    return seen


async def test_calls_pass_when_all_are_ready() -> None:
    assert await run(3) == ["ready"] * 3 + ["open"] + ["passed"] * 3


async def test_a_call_that_ends_is_not_awaited() -> None:
    assert await run(2, ended=4) == ["ready"] * 2 + ["open"] + ["passed"] * 2


@pytest.mark.parametrize(("ready", "silent"), [(3, 1), (1, 9)])
async def test_silent_hosts_are_not_awaited_for_ever(ready: int, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE_S", 0.05)
    monkeypatch.setattr(module, "_LONGEST_S", 0.05)
    assert await run(ready, silent=silent) == ["ready"] * ready + ["open"] + ["passed"] * ready


async def test_one_that_comes_later_passes_at_once() -> None:
    gate = Gate(lambda: None)
    gate.prepare(0)
    await gate.passed(0)
    gate.prepare(1)
    gate.prepare(2)
    await gate.passed(1)
