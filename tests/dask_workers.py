"""A dask cluster of real processes on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 60.0


@contextmanager
def cluster(place: Path, workers: int = 2) -> Iterator[str]:
    """Yield the address of a scheduler with `workers`, each a process of its own; its files are in `place`."""
    contact = place / "scheduler.json"
    common = ["--scheduler-file", str(contact), "--no-dashboard"]
    commands = [
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common],
        *[
            [sys.executable, "-m", "distributed.cli.dask_worker", *common, "--nthreads", "1", "--no-nanny",
             "--local-directory", str(place)]
        ]
        * workers,
    ]  # fmt: skip
    with (place / "log").open("w") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log, cwd=place) for command in commands]
    try:
        from distributed import Client

        deadline = time.monotonic() + PATIENCE_S
        while not contact.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        address = json.loads(contact.read_text())["address"]
        with Client(address, timeout=PATIENCE_S, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=PATIENCE_S)
        yield str(address)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
