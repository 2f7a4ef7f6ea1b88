"""Faults inside a program of the case, and processes beside it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from typing import Any

from benchmarks.faults.case import PARTS, Case


def change(case: Case, role: str = "job", **settings: Any) -> Generator[None, None, None]:
    """Make a program load its changed settings, which change what its part does."""
    yield
    case.change(role, case.draw(settings))


def stop(case: Case, role: str = "job") -> Generator[None, None, None]:
    """Stop a process (SIGSTOP)."""
    yield
    os.kill(case.pids[role], signal.SIGSTOP)


def end(case: Case, role: str) -> Generator[None, None, None]:
    """Kill a process of the case."""
    yield
    os.kill(case.pids[role], signal.SIGKILL)


def neighbour(case: Case, program: str, count: int = 1, role: str = "other") -> Generator[None, None, None]:
    """Start programs of `parts/` that are not part of the job; their argument is the case's data directory."""
    yield
    for number in range(count):
        path = case.install_program(PARTS / program, "worker.py")
        name = role if number == 0 else f"{role}{number + 1}"
        case.spawn(name, [sys.executable, str(path), case.facts["directory"]])


def open_file_limit(case: Case, files: int, role: str = "job") -> Generator[None, None, None]:
    """Limit the open files of a process (RLIMIT_NOFILE) from its start."""
    case.wrap(role, ["prlimit", f"--nofile={files}"])
    yield
