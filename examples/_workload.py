"""Options, a log of JSON lines on stdout, and a clean end for programs with known behaviour.

Every program prints ``{"event": "start", "pid", "tid", "mono_ns", ...its options}`` when it is ready,
then (with ``--wait``) waits for a line on stdin, then logs one line per operation, and ends with
``{"event": "end", ...}``.  Operations have ``tid``, ``start_mono_ns``, ``end_mono_ns`` (CLOCK_MONOTONIC)
and ``latency_s``.  SIGTERM and SIGINT end it after the operation in progress.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any


class Workload:
    """One program's options, log and stop flag.  To be created in the main thread."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--wait", action="store_true", help="begin when a line arrives on stdin")
        self.options = parser.parse_args()
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: self.stopped.set())

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line with one write(2), since threads and forked children share the log."""
        line = json.dumps({"event": event, **fields}) + "\n"
        with self._lock:
            os.write(1, line.encode())

    def start(self, **facts: Any) -> None:
        """Log that everything is ready; with ``--wait``, wait for a line on stdin."""
        options = {key: value for key, value in vars(self.options).items() if key != "wait"}
        self.emit(
            "start", pid=os.getpid(), tid=threading.get_native_id(), mono_ns=time.monotonic_ns(), **options, **facts
        )
        if self.options.wait:
            sys.stdin.readline()

    @contextlib.contextmanager
    def act(self, event: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Time a block and log it, with the fields that the block adds to the yielded dictionary."""
        extra: dict[str, Any] = {}
        start = time.monotonic_ns()
        yield extra
        end = time.monotonic_ns()
        self.emit(
            event,
            tid=threading.get_native_id(),
            **fields,
            **extra,
            start_mono_ns=start,
            end_mono_ns=end,
            latency_s=(end - start) / 1e9,
        )

    def pause(self, seconds: float) -> None:
        """Wait between operations, unless stopped."""
        self.stopped.wait(seconds)
