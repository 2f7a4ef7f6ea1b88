"""`whystall` without arguments on a terminal, and `whystall setup`."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

WHYSTALL = str(Path(sys.executable).with_name("whystall"))


def on_terminal(env: dict[str, str], words: list[str], answers: bytes) -> tuple[int, str]:
    """Run the program on a terminal where `answers` are typed; return its status and what the terminal shows."""
    terminal, ours = pty.openpty()
    with subprocess.Popen(
        [WHYSTALL, *words], env={**env, "TERM": "dumb"}, stdin=ours, stdout=ours, stderr=ours
    ) as child:
        os.close(ours)
        os.write(terminal, answers)
        seen = b""
        with contextlib.suppress(OSError):  # a terminal whose last user left reads as an error
            while chunk := os.read(terminal, 65536):
                seen += chunk
        os.close(terminal)
    return child.returncode, seen.decode()


@pytest.mark.parametrize(
    ("language", "words"), [("C", ("Diagnose which", "training")), ("zh_CN.UTF-8", ("诊断", "训练"))]
)
def test_jobs_are_offered_and_enter_chooses_none(env: dict[str, str], language: str, words: tuple[str, ...]) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        status, seen = on_terminal({**env, "LC_ALL": language}, [], b"\n")
    finally:
        sleeper.kill()
        sleeper.wait()
    assert status == 0, seen
    for word in (*words, "whystall doctor"):
        assert word in seen
    assert "Traceback" not in seen


def test_the_end_of_input_chooses_none(env: dict[str, str]) -> None:
    status, seen = on_terminal(env, [], b"\x04")
    assert status == 0, seen


def test_setup_asks_and_writes(env: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "etc" / "whystall.toml"
    given = {**env, "WHYSTALL_CONFIG": str(config)}
    status, seen = on_terminal(given, ["setup", "--no-unit"], b"\nn\ny\n")
    assert status == 0, seen
    assert "on = false" in config.read_text()
    assert config.with_name("token").exists()
    assert "serve --transport http" in seen


def test_setup_needs_somebody_to_ask(env: dict[str, str], tmp_path: Path) -> None:
    given = {**env, "WHYSTALL_CONFIG": str(tmp_path / "whystall.toml")}
    done = subprocess.run([WHYSTALL, "setup"], env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: bad_argument: there is nobody to ask; give --yes")
    assert not (tmp_path / "whystall.toml").exists()
