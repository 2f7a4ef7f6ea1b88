"""Settings that name a server of models on loopback, and a base with few cards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from search_servers import CARDS, ModelServer, made, search_server

from whystall.agent_server.stores import Stores


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings or proxies of whoever runs the tests."""
    for name in os.environ:
        if name.startswith("WHYSTALL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = tmp_path / "whystall.toml"
    settings.write_text("")
    monkeypatch.setenv("WHYSTALL_CONFIG", str(settings))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with search_server() as owner:
        yield owner


@pytest.fixture
def embeddings(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setenv("WHYSTALL_EMBEDDINGS__BASE_URL", server.url)
    monkeypatch.setenv("WHYSTALL_EMBEDDINGS__MODEL", "e1")
    return server


@pytest.fixture
def judge(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.url)
    monkeypatch.setenv("WHYSTALL_LLM_MODEL", "m1")
    return server


@pytest.fixture
def kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    """A base with few cards: the shipped ones would only take time."""
    monkeypatch.setattr("whystall.knowledge_base.store.seed", lambda file: None)
    with Stores(tmp_path / "k.db") as base:
        for id, texts in CARDS.items():
            base.cards.add(made(id, *texts), "t")
        yield base
