"""An engine that says it can and finds out, when it starts, that it may not: a user who is not root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from whystall.agent_server.diagnosis.observer import LiveObserver
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.target import Target
from whystall.tools.toolbox import registry


@pytest.fixture(autouse=True)
def _refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: EbpfEngine, wanted: Mapping[str, Any], target: Target) -> None:
        raise ToolError(ErrorCode.NO_PRIVILEGE, "the kernel refused it", "run as root")

    monkeypatch.setattr(EbpfEngine, "unavailable", lambda self: None)
    monkeypatch.setattr(EbpfEngine, "load", load)


@pytest.mark.parametrize("engine", ["auto", "procfs"])
def test_what_can_be_seen_without_it_is(engine: str) -> None:
    tools = [registry().get(name) for name in ("page_cache", "host_snapshot", "fileslower")]
    looks = LiveObserver(Target(everything=True), engine, None)
    results = anyio.run(looks.observe, tools, 0.3, {})
    assert [result.tool for result in results] == ["host_snapshot", "fileslower"]


@pytest.mark.parametrize(("engine", "names"), [("auto", ["page_cache"]), ("ebpf", ["page_cache", "host_snapshot"])])
def test_where_nothing_is_left_or_it_was_asked_for_the_refusal_is_told(engine: str, names: list[str]) -> None:
    looks = LiveObserver(Target(everything=True), engine, None)
    with pytest.raises(ToolError) as caught:
        anyio.run(looks.observe, [registry().get(name) for name in names], 0.3, {})
    assert caught.value.code is ErrorCode.NO_PRIVILEGE
