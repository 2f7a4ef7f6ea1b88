"""What the tests of the doors share: the installed command, a state directory of their own, a real recording."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_command

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory for the whole run: its own window lock, database and artifacts."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def env(state: Path) -> dict[str, str]:
    """The environment of the commands under test."""
    return {**os.environ, "WHYSTALL_HOME": str(state), "COLUMNS": "200"}


@pytest.fixture(scope="session")
def whystall(env: dict[str, str]) -> Run:
    """Run the installed command to its end."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return warm_command.run(*words, env={**env, **options.pop("env", {})}, **options)

    return run


@pytest.fixture(scope="session")
def recording(whystall: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of this host, made without privilege, so that it can be made anywhere."""
    directory = tmp_path_factory.mktemp("recordings") / "host"
    done = whystall("record", "--duration", "0.5", "--out", str(directory), "--engine", "procfs", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(directory)
    return directory


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What the doors run on."""
    return "asyncio"
