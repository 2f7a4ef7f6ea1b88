"""``whystall watch`` as a process beside the server, which is started again when it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

_COMMAND = (sys.executable, "-m", "whystall.agent_server", "watch")
_FIRST_S, _MOST_S = 5.0, 300.0
_LASTED_S = 300.0
"""A watcher that ran for so long is started again without a longer pause."""
_SIGNAL_S = 1.0
"""A signal of a terminal ends the watcher first, and this process just after it."""
_PATIENCE_S = 20.0
"""Less than TimeoutStopSec of deploy/whystall.service."""


class WatcherProcess:
    """Runs from ``__enter__`` to ``__exit__``. The kernel's killer chooses the watcher before a job: when it has ended
    for whatever reason, it is started again after 5 s, and after longer pauses, up to 5 minutes, if it ends soon again.
    `note` is called with lines for people."""

    def __init__(
        self, note: Callable[[str], None], command: Sequence[str] = _COMMAND, first_s: float = _FIRST_S
    ) -> None:
        self._note, self._command, self._first_s = note, command, first_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="whystall-watcher", daemon=True)

    def __enter__(self) -> WatcherProcess:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:  # it waits for a file system; its attachments end with it
                process.kill()
        self._thread.join(_SIGNAL_S)

    def _run(self) -> None:
        pause = self._first_s
        while True:
            began = time.monotonic()
            try:
                with self._lock:
                    if self._ended.is_set():
                        return
                    self._process = subprocess.Popen(self._command)
                why = _ended_by(self._process.wait())
            except OSError as error:  # no memory, or no more processes
                why = f"cannot be started ({error.strerror})"
            if self._ended.wait(_SIGNAL_S):
                return
            pause = self._first_s if time.monotonic() - began > _LASTED_S else pause
            self._note(f"whystall: the watcher {why}; it is started again in {pause:.0f} s")
            if self._ended.wait(pause):
                return
            pause = min(2 * pause, _MOST_S)


def _ended_by(status: int) -> str:
    return f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
