"""Real processes that carry the environment of a job, for tests of what finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def job(**variables: str) -> Iterator[int]:
    """A process with exactly these variables, waiting until the block ends; its pid."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.communicate("")


def named(n: int = 0) -> dict[str, str]:
    """The environment of a job that no other has."""
    return {"TORCHELASTIC_RUN_ID": f"unheard-{os.getpid()}-{n}", "RANK": "0", "WORLD_SIZE": "1"}
