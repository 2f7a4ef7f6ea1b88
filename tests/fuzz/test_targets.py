"""Each parser, fuzzed for some seconds (`make fuzz` does it for as many inputs as wanted)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.targets import TARGETS

_SECONDS = int(os.environ.get("FUZZ_SECONDS", "5"))
_RUNS = int(os.environ.get("FUZZ_RUNS", "0"))
_PATIENCE_S = 3600


@pytest.mark.thorough
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_survives_any_input(name: str, tmp_path: Path) -> None:
    bound = [f"-runs={_RUNS}"] if _RUNS else [f"-max_total_time={_SECONDS}"]
    command = [sys.executable, "-m", "fuzz.run_target", name, str(tmp_path), *bound]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S
    )
    found = [path for path in tmp_path.iterdir() if path.name.startswith(("crash-", "timeout-", "oom-", "leak-"))]
    inputs = {path.name: path.read_bytes()[:2000] for path in found}
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{inputs}"
    assert "Done " in done.stderr, done.stderr[-4000:]
