"""CPU affinity, and packets that are received on a CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import PARTS, Case


def pin(case: Case, role: str = "job", cpus: tuple[int, ...] = (0,)) -> Generator[None, None, None]:
    """Restrict all threads of a process to some CPUs."""
    yield
    for task in Path(f"/proc/{case.pids[role]}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)


def packets(case: Case, cpu: int, role: str = "other") -> Generator[None, None, None]:
    """Run the job on one CPU; later send packets from another one, which are received on the job's (RPS)."""
    case.wrap("job", ["taskset", "-c", str(cpu)])
    yield
    path = case.install_program(PARTS / "datagrams.py", "worker.py")
    sender = next(one for one in sorted(os.sched_getaffinity(0)) if one != cpu)
    case.spawn(role, ["unshare", "-n", "-m", sys.executable, str(path), str(sender), str(cpu)])
