"""A forked command is the installed one: it says what that says, and knows nothing of those before it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import warm_command

pytestmark = pytest.mark.thorough

INCIDENT = '{"id": "x", "title": '


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "WHYSTALL_HOME": str(tmp_path / "home"), "COLUMNS": "200"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--help",), None),
        (("config", "show"), None),
        (("tools", "--json"), None),
        (("kb", "add", "-"), INCIDENT),
        (("kb", "search", "checkpoint"), None),
        (("route", "--help"), None),
        (("run", "fileslower", "--from", "nowhere", "--json"), None),
        (("tickets", "list", "--lang", "zh"), None),
        (("no such command",), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_says_what_a_started_one_says(
    env: dict[str, str], tmp_path: Path, words: tuple[str, ...], text: str | None
) -> None:
    options = {"env": env, "cwd": tmp_path, "input": text, "timeout": 60}
    forked = warm_command.run(*words, **options)
    started = subprocess.run([warm_command.COMMAND, *words], capture_output=True, text=True, **options)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_what_a_command_is_given_is_its_own(env: dict[str, str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        mine = {**env, "WHYSTALL_HOME": name}
        assert warm_command.run("kb", "stats", env=mine, cwd=tmp_path / name).returncode == 0
        assert (tmp_path / name / name / "knowledge.db").exists()


def test_variables_that_count_at_the_start_are_left_to_a_start(env: dict[str, str]) -> None:
    warm = warm_command.forker()
    assert warm.serves(env)
    assert not warm.serves({**env, "PYTHONIOENCODING": "latin-1"})
    done = warm_command.run("--version", env={**env, "PYTHONVERBOSE": "1"})
    assert "import 'whystall" in done.stderr


def test_one_that_takes_too_long_is_ended(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "recording"
    with pytest.raises(subprocess.TimeoutExpired):
        warm_command.run("record", "--duration", "60", "--out", str(out), "--engine", "procfs", env=env, timeout=0.7)
    assert not out.exists()
