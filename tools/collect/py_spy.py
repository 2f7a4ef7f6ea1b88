"""Run py-spy for Python processes whose frames we cannot walk.

Its samples, taken at other times than ours, become a separate event. It reads a process without stopping it
(``--nonblocking``), so some of its stacks may be inconsistent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from whystall.tools.contract.commands import argv
from whystall.tools.contract.commands import program as installed_program
from whystall.tools.stacks.names import Name, named

EVENT = "py-spy"
_MOST_PROCESSES = 4
_END_S = 5.0
_MOST_BYTES = 64 << 20


class FoldedStack(NamedTuple):
    """One stack of a process, from the outermost frame inward, and its number of samples."""

    pid: int
    frames: tuple[Name, ...]
    samples: int


def installed() -> str | None:
    """Return the program: beside our own interpreter (an optional dependency), or on the path; None if missing."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if os.access(own, os.X_OK) else installed_program("py-spy")


class PySpy:
    """Samples some processes from its construction until `stop`."""

    def __init__(self, program: str, pids: Iterable[int], hz: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="whystall-")
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for pid in list(pids)[:_MOST_PROCESSES]:
            words = argv("py-spy", program, pid=pid, hz=hz, output=str(self._output(pid)))
            with contextlib.suppress(OSError):
                self._running[pid] = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )

    def _output(self, pid: int) -> Path:
        return Path(self._folder.name, str(pid))

    def stop(self) -> list[FoldedStack]:
        """End it; return its samples."""
        for process in self._running.values():
            process.send_signal(signal.SIGINT)  # it writes its samples and exits
        deadline = time.monotonic() + _END_S
        found: list[FoldedStack] = []
        for pid, process in self._running.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError), self._output(pid).open("rb") as file:
                found += parsed(pid, file.read(_MOST_BYTES).decode("utf-8", "replace"))
        self.close()
        return found

    def close(self) -> None:
        """Kill it; idempotent."""
        running, self._running = self._running, {}
        for process in running.values():
            process.kill()
            process.wait()
        self._folder.cleanup()


def parsed(pid: int, text: str) -> list[FoldedStack]:
    """Parse folded text, and ignore other lines::

    <module> (job.py:4);work (job.py:3) 70
    """
    found: list[FoldedStack] = []
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack and count.isdecimal() and len(count) < 16:
            found.append(FoldedStack(pid, tuple(named(frame) for frame in stack.split(";")), int(count)))
    return found
