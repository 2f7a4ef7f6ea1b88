"""An engine that says it can and finds out, when it starts, that it may not: a user who is not root."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from whystall.agent_server.diagnosis import observer
from whystall.agent_server.diagnosis.observer import LiveObserver
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params, parse_params
from whystall.tools.contract.registry import Tool
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
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


def test_tools_judge_in_a_thread_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def judging(tool: Tool[Any, Any], recording: Recording, params: Params) -> str:
        threads.append(threading.current_thread())
        return tool.name

    monkeypatch.setattr(observer, "judge", judging)
    live = LiveObserver(Target(everything=True), "procfs", None)
    assert anyio.run(live.observe, [registry().get("host_snapshot")], 0.1, {}) == ["host_snapshot"]
    assert threading.main_thread() not in threads


def test_a_tool_does_without_an_optional_collector_that_no_engine_serves() -> None:
    tool = registry().get("gpu_health")
    needs = [*tool.needs(parse_params(tool.params, {})), Need("profile", optional=True)]
    wanting = dataclasses.replace(tool, needs=lambda params: needs)
    looks = LiveObserver(Target(everything=True), "auto", None)
    assert anyio.run(looks.able, [wanting]) == [wanting]
    assert [one.tool for one in anyio.run(looks.observe, [wanting], 0.2, {})] == ["gpu_health"]
    required = dataclasses.replace(tool, needs=lambda params: [*needs, Need("profile")])
    assert anyio.run(looks.able, [required]) == []
