"""Stop or starve a program: a debugger, or real-time programs on its CPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import PARTS, Case
from benchmarks.faults.injectors.cgroups import enter


def debugger(case: Case, role: str = "job") -> Generator[None, None, None]:
    """Attach to a process and leave it stopped, as a forgotten debugger session does."""
    yield
    path = case.install_program(PARTS / "inspect_process.py", "inspect.py")
    case.spawn("inspector", [sys.executable, str(path), str(case.pids[role])])


def real_time_neighbour(case: Case, program: str = "spinner.py", role: str = "other") -> Generator[None, None, None]:
    """Start a computing program with real-time priority on every CPU."""
    yield
    path = case.install_program(PARTS / program, "worker.py")
    # Cgroups below the root have no real-time budget by default.
    prefix = enter(Path("/sys/fs/cgroup/cpu")) if Path("/sys/fs/cgroup/cpu/cgroup.procs").exists() else []
    for number, cpu in enumerate(sorted(os.sched_getaffinity(case.pids["job"]))):
        name = role if number == 0 else f"{role}{number + 1}"
        command = ["chrt", "--fifo", "10", "taskset", "-c", str(cpu), sys.executable, str(path)]
        case.spawn(name, [*prefix, *command])
