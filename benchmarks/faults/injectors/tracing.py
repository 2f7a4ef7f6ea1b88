"""A debugger that stops the program and does nothing."""

from __future__ import annotations

import sys
from collections.abc import Generator

from benchmarks.faults.case import PARTS, Case


def debugger(case: Case, role: str = "job") -> Generator[None, None, None]:
    """Attach to a process and leave it stopped, as a forgotten debugger session does."""
    yield
    path = case.install_program(PARTS / "inspect_process.py", "inspect.py")
    case.spawn("inspector", [sys.executable, str(path), str(case.pids[role])])


def real_time_neighbour(case: Case, program: str = "spinner.py", role: str = "other") -> Generator[None, None, None]:
    """Start a computing program with real-time priority on every CPU but its own housekeeping share."""
    yield
    path = case.install_program(PARTS / program, "worker.py")
    for number in range(2):
        name = role if number == 0 else f"{role}{number + 1}"
        case.spawn(name, ["chrt", "--fifo", "10", "taskset", "-c", str(number), sys.executable, str(path)])
