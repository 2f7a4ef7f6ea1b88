"""What the tests of sinks share."""

from __future__ import annotations

import pytest
from sink_scenes import environment


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
