"""py-spy beside us, for Python processes whose frames we cannot walk: another sampling, at instants of its own.

It is never merged with our samples: it becomes an event of its own name. It reads a process without stopping it
(``--nonblocking``), so some of its stacks may be torn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
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


class Beside(NamedTuple):
    """Samples of one stack: the process, the frames from the outermost inward, and how many."""

    pid: int
    frames: tuple[Name, ...]
    samples: int


def installed() -> str | None:
    """The program: beside our own interpreter (an extra of ours), or on the path."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if os.access(own, os.X_OK) else installed_program("py-spy")


class PySpy:
    """Runs it for some processes until `stop`."""

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

    def stop(self) -> list[Beside]:
        """End it; the samples there are."""
        for process in self._running.values():
            process.send_signal(signal.SIGINT)  # writes what it has, and ends
        found: list[Beside] = []
        for pid, process in self._running.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            found += _read(pid, self._output(pid))
        self.close()
        return found

    def close(self) -> None:
        """Kill what runs; idempotent."""
        running, self._running = self._running, {}
        for process in running.values():
            process.kill()
            process.wait()
        self._folder.cleanup()


def _read(pid: int, path: Path) -> list[Beside]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return parsed(pid, text)


def parsed(pid: int, text: str) -> list[Beside]:
    """Samples in a folded text; lines that are none are left out."""
    found: list[Beside] = []
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack and count.isdecimal() and len(count) < 16:
            found.append(Beside(pid, tuple(named(frame) for frame in stack.split(";")), int(count)))
    return found
