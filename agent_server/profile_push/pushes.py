"""Start the program that sends profiles, once per span, from a thread that only waits for it.

At most one runs. What was not sent in time, or was refused, is lost and counted: nothing is queued.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from whystall.agent_server.watch.status import StatusFiles
from whystall.tools.contract.text import clean

_NS = 1_000_000_000
LAG_NS = 8 * _NS
"""A span is cut this long after its end: a slice of the log lasts 5 s, and is read within a second."""
_LONGEST_NS = 60 * _NS  # of a push, or as long as a span: at its low priority it may wait for a CPU


class ProfilePushes:
    """Sends from ``__enter__`` to ``__exit__``, every `every_s` seconds, what the watcher keeps in `directory`."""

    def __init__(self, every_s: float, directory: Path) -> None:
        self._every_ns, self._directory = int(every_s * _NS), directory
        self._limit_s = max(self._every_ns, _LONGEST_NS) / _NS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profiles", daemon=True)
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"spans_sent": 0, "spans_lost": 0, "profiles": 0, "cpu_s": 0.0, "error": ""}

    def __enter__(self) -> ProfilePushes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        with self._lock:
            if self._child is not None:
                self._child.kill()
        self._thread.join()

    def state(self) -> dict[str, Any]:
        """Return ``spans_sent``; ``spans_lost``: at least one job of it was not stored; ``profiles``: jobs stored;
        ``cpu_s``: of all; ``error``: why the last one failed, empty if it did not."""
        return self._state

    def _run(self) -> None:
        start = time.monotonic_ns()
        while not self._stop.wait(max(0, start + self._every_ns + LAG_NS - time.monotonic_ns()) / _NS):
            late = max(0, (time.monotonic_ns() - start - self._every_ns - LAG_NS) // self._every_ns)
            if late:
                self._count(lost=late, error=self._state["error"] or "the spans before were not sent in time")
                start += late * self._every_ns
            self._push(start, start + self._every_ns)
            start += self._every_ns

    def _push(self, start_ns: int, end_ns: int) -> None:
        command = [sys.executable, "-m", "whystall.agent_server.profile_push.push"]
        asked = json.dumps({"directory": str(self._directory), "start_ns": start_ns, "end_ns": end_ns})
        errors = StatusFiles(self._directory).errors()
        try:
            with self._lock:
                if self._stop.is_set():
                    return
                self._child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
                )
            output, _ = self._child.communicate(asked, timeout=self._limit_s)
            answer = json.loads(output.splitlines()[-1])
            failed, error = int(answer["failed"]), clean(str(answer["error"]), 500)
            self._count(
                sent=not failed, lost=bool(failed), profiles=int(answer["sent"]), cpu_s=answer["cpu_s"], error=error
            )
        except subprocess.TimeoutExpired:
            self._count(lost=1, error=f"it took longer than {self._limit_s:g} s")
        except (OSError, ValueError, TypeError, LookupError):
            self._count(lost=1, error="the program that sends them failed; see errors.log")
        finally:
            self._end()
            if not isinstance(errors, int):
                errors.close()

    def _end(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None and child.poll() is None:
            child.kill()
            child.communicate()

    def _count(self, *, sent: int = 0, lost: int = 0, profiles: int = 0, cpu_s: float = 0.0, error: str = "") -> None:
        before = self._state
        self._state = {
            "spans_sent": before["spans_sent"] + sent,
            "spans_lost": before["spans_lost"] + lost,
            "profiles": before["profiles"] + profiles,
            "cpu_s": round(before["cpu_s"] + cpu_s, 3),
            "error": error,
        }
