"""What the tests of the model's client share: an environment without a model, and clients of servers on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.settings.sections.llm import LlmSettings

Make = Callable[..., ChatClient]


@pytest.fixture
def anyio_backend() -> str:
    """What the doors run on."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, proxies or authorities of whoever runs the tests."""
    for name in os.environ:
        if name.startswith("WHYSTALL_LLM_") or name.lower().endswith("_proxy") or name.startswith("SSL_CERT"):
            monkeypatch.delenv(name)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a client of the server at an address; settings as they are named."""

    def make(base_url: str, api_key: str = "", **settings: Any) -> ChatClient:
        if api_key:
            monkeypatch.setenv("MODEL_KEY", api_key)
            settings["api_key"] = {"env": "MODEL_KEY"}
        return ChatClient(LlmSettings(**{"base_url": base_url, "model": "example", "timeout": 20.0, **settings}))

    return make
