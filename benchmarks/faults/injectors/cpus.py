"""CPU affinity."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import Case


def pin(case: Case, role: str = "job", cpus: tuple[int, ...] = (0,)) -> Generator[None, None, None]:
    """Restrict all threads of a process to some CPUs."""
    yield
    for task in Path(f"/proc/{case.pids[role]}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)
