"""A job whose hot file is pushed out of the page cache, cured by hybrid I/O and looked at again: the demo, whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "cache_demo.py"
JUDGED = (
    "verdict",
    "hot file",
    "who streams",
    "its files",
    "ticket",
    "waits for the hot file",
    "hot file from the disk",
    "a step",
)


def test_what_is_said_before_and_after_the_cure_is_what_the_job_logged() -> None:
    done = subprocess.run([sys.executable, str(DEMO), "--duration", "5"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told, _, table = done.stdout.rpartition("== compared with the job's own log")
    for name in JUDGED:
        assert re.search(rf"^{name}  .*right$", table, re.MULTILINE), table
    assert "Expected gain, as measured on this host:" in told
    assert "**solved**" in told
    assert "hybrid I/O for" in done.stderr
