"""`whystall top` on a real program that logs how long it sleeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.beside

_PROGRAM = """
import time
def pause():
    time.sleep(0.2)
while True:
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    pause()
"""


def test_the_waits_of_a_program_are_shown(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(_PROGRAM)
    program = subprocess.Popen([sys.executable, "sleeper.py"], cwd=tmp_path)
    try:
        command = [str(Path(sys.executable).with_name("whystall")), "top", "--json", f"--pid={program.pid}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    finally:
        program.kill()
        program.wait()
    (job,) = json.loads(done.stdout)["jobs"]
    (now,) = job["processes"]
    assert now["pid"] == program.pid
    first = now["waits"][0]
    assert first["call"] == "clock_nanosleep"
    assert first["line"] == "pause (sleeper.py:4)"
    assert first["share"] > 0.5
    assert now["longest_s"] >= 0.2
