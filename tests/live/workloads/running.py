"""Start a ground-truth program, or any that logs JSON lines on stdout, and read its log."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
SIMULATOR = EXAMPLES / "slow_ai_simulator.py"
Event = dict[str, Any]


class Running:
    """A program under observation; leaving the context stops it.

    ``program`` is a file name beside this one or among the examples, or a path.  ``wrap`` turns the command line into
    another, such as ``SlowDisk.command`` or ``Cgroup.command``.  With ``wait`` it stays before its
    work until ``go``.
    """

    def __init__(
        self,
        program: str | Path,
        *arguments: object,
        wait: bool = False,
        wrap: Callable[[list[str]], Sequence[str]] = list,
    ) -> None:
        path = next(place / program for place in (HERE, EXAMPLES) if (place / program).exists())
        argv = [sys.executable, str(path), *map(str, arguments), *(["--wait"] if wait else [])]
        self.process = subprocess.Popen(wrap(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.events: list[Event] = []
        self._arrived: queue.Queue[Event | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.start = self.until("start")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def go(self) -> None:
        """Let a waiting program begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def until(self, event: str, count: int = 1, timeout_s: float = 60) -> Event:
        """Wait for the ``count``-th next line of that kind; raises TimeoutError, or EOFError if it ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"no {event!r} within {timeout_s} s") from None
            if line is None:
                self._arrived.put(None)
                raise EOFError(f"ended with status {self.process.wait()} before {event!r}")
            count -= line["event"] == event
            if count == 0:
                return line

    def of(self, event: str) -> list[Event]:
        """The lines of that kind so far."""
        return [line for line in list(self.events) if line["event"] == event]

    def wait(self, timeout_s: float = 60) -> list[Event]:
        """Wait for the end; returns all lines.  Raises if the program failed."""
        status = self.process.wait(timeout_s)
        self._reader.join()
        if status != 0:
            raise RuntimeError(f"ended with status {status}")
        return self.events

    def stop(self, timeout_s: float = 30) -> list[Event]:
        """Ask it to end after the act in progress; returns all lines."""
        self.process.terminate()
        return self.wait(timeout_s)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            self._arrived.put(event)
        self._arrived.put(None)


@contextmanager
def file_server(*delays: str, direct_io: bool = True) -> Iterator[tuple[Path, Path]]:
    """A FUSE mount that is slow where told, and the directory behind it. Files can be mapped without `direct_io`."""
    backing, mount = (Path(tempfile.mkdtemp(prefix="whystall-test-")) for _ in range(2))
    options = [word for delay in delays for word in ("--delay", delay)]
    try:
        if direct_io:
            options.append("--direct-io")
        with Running("slow_fuse.py", "--backing", backing, "--mount", mount, *options):
            yield backing, mount
    finally:
        mount.rmdir()
        shutil.rmtree(backing)
