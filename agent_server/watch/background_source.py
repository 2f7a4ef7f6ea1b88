"""Read a sign of progress in a thread of its own: a file system that does not answer must not hold up the watcher."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.agent_server.watch.progress_sources import ProgressSource
    from whystall.agent_server.watch.signals import Reading

_PATIENCE_S = 0.2


class BackgroundSource:
    """Reads `source` as it is, as long as this takes at most 0.2 s. While it takes longer, the last value holds: a job
    that writes there makes no progress either."""

    def __init__(self, source: ProgressSource) -> None:
        self.name = source.name
        self._source = source
        self._value: Reading | None = None
        self._wanted, self._idle, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def read(self) -> Reading | None:
        """Return what it shows now, or showed last; None: it cannot be read."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="whystall-sign", daemon=True)
            self._thread.start()
        if self._idle.is_set() and not self._ended.is_set():
            self._idle.clear()
            self._wanted.set()
            self._idle.wait(_PATIENCE_S)
        return self._value

    def close(self) -> None:
        """End the thread when its source answers; idempotent."""
        self._ended.set()
        self._wanted.set()

    def _run(self) -> None:
        try:
            while self._wanted.wait() and not self._ended.is_set():
                self._wanted.clear()
                self._value = self._source.read()
                self._idle.set()
        finally:
            self._source.close()
