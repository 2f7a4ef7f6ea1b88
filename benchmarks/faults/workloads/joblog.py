"""Settings of a job, and its log: one JSON line per phase, with times of CLOCK_MONOTONIC in seconds."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Job:
    """The settings in the file named on the command line, which SIGHUP makes the job read again, and the log."""

    def __init__(self, path: str = "", log: str = "") -> None:
        self._path = Path(path or sys.argv[1])
        self.settings: dict[str, Any] = json.loads(self._path.read_text())
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(log or self.settings["log"], flags, 0o644)
        self._reload = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, self._on_hangup)

    @property
    def revision(self) -> int:
        """Return the number of the settings in force; the first are 1."""
        return int(self.settings["revision"])

    def _on_hangup(self, *_: object) -> None:
        self._reload = True

    def reloaded(self) -> bool:
        """Read changed settings, if asked to; return whether that was so."""
        if not self._reload:
            return False
        self._reload = False
        self.settings = json.loads(self._path.read_text())
        self.emit("settings", revision=self.revision)
        return True

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line with one write(2): threads and processes share the log."""
        line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **fields}
        os.write(self._fd, (json.dumps(line) + "\n").encode())

    @contextmanager
    def phase(self, event: str, **fields: Any) -> Iterator[None]:
        """Log how long the block took: `s`, ending at `at`."""
        start = time.monotonic()
        yield
        self.emit(event, s=time.monotonic() - start, **fields)
