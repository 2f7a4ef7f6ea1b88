"""Stored calls of MCP clients: bounded, each client's own, deleted after their time and not before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.agent_server.journal import client_tasks
from whystall.agent_server.journal.client_tasks import RUNNING, TTL_S
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ErrorCode, ToolError


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as base:
        yield base


def test_a_task_is_its_clients_until_it_expires(kb: Stores) -> None:
    tasks = kb.client_tasks
    made = tasks.add("ann", "s1", "diagnose", 1000.0)
    assert tasks.get(made.id, "ann", 1000.0) == made
    assert tasks.get(made.id, "bob", 1000.0) is None
    ended = made.model_copy(update={"state": "completed", "updated": 1010.0, "outcome": {"text": "\ud800 磁盘"}})
    tasks.end(ended)
    assert tasks.get(made.id, "ann", 1000.0 + TTL_S - 1) == ended
    assert tasks.get(made.id, "ann", 1000.0 + TTL_S) is None
    assert tasks.forget(1000.0 + TTL_S - 1) == 0
    assert tasks.forget(1000.0 + TTL_S) == 1


def test_tasks_are_bounded(kb: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = kb.client_tasks
    for _ in range(RUNNING):
        made = tasks.add("ann", "s1", "diagnose", 1.0)
    with pytest.raises(ToolError) as refused:
        tasks.add("ann", "s1", "diagnose", 1.0)
    assert refused.value.code is ErrorCode.BUSY
    tasks.add("bob", "s1", "diagnose", 1.0)
    tasks.add("ann", "s2", "diagnose", 1.0)
    tasks.end(made.model_copy(update={"state": "completed"}))
    tasks.add("ann", "s1", "diagnose", 1.0)
    monkeypatch.setattr(client_tasks, "STORED", RUNNING + 3)
    with pytest.raises(ToolError, match="are stored"):
        tasks.add("eve", "s1", "diagnose", 1.0)
    tasks.add("eve", "s1", "diagnose", 1.0 + TTL_S)  # the others have expired
