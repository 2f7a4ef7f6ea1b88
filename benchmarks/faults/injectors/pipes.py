"""Connections of a program's standard streams."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator

from benchmarks.faults.case import PARTS, Case


def slow_reader(case: Case, rate: int, role: str = "job", reader: str = "reader") -> Generator[None, None, None]:
    """Connect a program's output to a process that reads so many bytes per second."""
    theirs, ours = os.pipe()
    case.inputs[reader], case.outputs[role] = theirs, ours
    path = case.install_program(PARTS / "reader.py", "shipper.py")
    case.spawn(reader, [sys.executable, str(path), str(rate)])
    os.close(theirs)
    case.close_later(ours)
    yield


def person(case: Case, role: str = "job") -> Generator[None, None, None]:
    """Connect a program to a terminal at which answers are typed, and then no more."""
    screen, terminal = os.openpty()
    case.inputs[role] = case.outputs[role] = terminal
    case.inputs["person"] = case.outputs["person"] = screen
    path = case.install_program(PARTS / "typist.py", "terminal.py")
    case.spawn("person", [sys.executable, str(path)])
    case.close_later(screen)
    case.close_later(terminal)
    yield
    os.kill(case.pids["person"], signal.SIGUSR1)
