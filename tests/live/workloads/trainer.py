#!/usr/bin/env python3
"""A loop that computes steps on one core and meets one fault of a chosen sort after each.

Lines ``step`` (latency_s: computing alone) and ``fault`` (latency_s: what the fault cost the loop, which is the
truth a diagnosis is compared with).  Faults:

``read``          read ``--size-kib`` of ``--path`` that is not in the page cache
``loader``        take the next piece from a queue that a helper thread fills by ``read``
``sync``          append ``--size-kib`` to a file in ``--directory`` and fsync it
``stat``          look at one name in ``--directory``
``lock-sync``     take a lock that a helper thread holds while it does ``sync``
``lock-compute``  take a lock that a helper thread holds while it computes
``pipe``          read from a pipe that nobody writes to
``server``        wait for input that comes every now and then, and answer it
``awaited``       take a lock that is a file in ``--directory``, which nobody removes
``messages``      send head and body of a request in two small writes, and wait for the answer of another process
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workload import Workload

CHUNK = bytes(1 << 20)
_PART = 100


class Faults:
    """What the loop meets; each method is one fault."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._options = work.options
        self._lock = threading.Lock()
        self._data = os.urandom(work.options.size_kib * 1024)
        self._turn = 0
        self._pipe = os.pipe()
        self._queue: queue.Queue[bool] = queue.Queue(2)
        if work.options.fault == "messages":
            self._connection = self._connect()

    def prepare(self) -> None:
        """Start the helper that a fault needs."""
        helpers = {
            "lock-sync": self.sync,
            "lock-compute": self._compute_long,
            "loader": self._load,
            "server": self._send,
        }
        if helper := helpers.get(self._options.fault):
            threading.Thread(target=self._help, args=(helper,), daemon=True).start()

    def read(self) -> None:
        """Read the next piece of the file from storage."""
        fd = os.open(self._options.path, os.O_RDONLY)
        size = len(self._data)
        offset = self._turn * size % max(os.fstat(fd).st_size - size, 1)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(fd, size, offset)
        os.close(fd)
        self._turn += 1

    def sync(self) -> None:
        """Append and make durable."""
        fd = os.open(self._options.directory / "journal.bin", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, self._data)
        os.fsync(fd)
        os.close(fd)

    def stat(self) -> None:
        """Look at a name."""
        os.stat(self._options.directory / "sample.bin")

    def lock(self) -> None:
        """Take the helper's lock."""
        with self._lock:
            pass

    def pipe(self) -> None:
        """Wait for what never comes."""
        os.read(self._pipe[0], 1)

    def server(self) -> None:
        """Wait for a request."""
        select.select([self._pipe[0]], [], [])
        os.read(self._pipe[0], 1)

    def loader(self) -> None:
        """Wait for input."""
        self._queue.get()

    def awaited(self) -> None:
        """Wait for the end of a lock file."""
        while not self._work.stopped.is_set():
            try:
                os.close(os.open(self._options.directory / "build.lock", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                time.sleep(0.05)

    def messages(self) -> None:
        """Ask for an answer."""
        self._connection.send(b"h" * _PART)
        self._connection.send(b"b" * _PART)
        self._connection.recv(1)

    def by_name(self, name: str) -> Callable[[], None] | None:
        """The method for ``--fault``."""
        if name == "none":
            return None
        method: Callable[[], None] = getattr(self, name.partition("-")[0])
        return method

    def _help(self, action: Callable[[], None]) -> None:
        while not self._work.stopped.is_set():
            if self._options.fault in ("server", "loader"):
                action()
                continue
            with self._lock, self._work.act("hold"):
                action()
            time.sleep(self._options.rest_s)

    def _compute_long(self) -> None:
        compute(self._options.hold_ms)

    def _connect(self) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", 0))
        multiprocessing.Process(target=_answer, args=(listening,), daemon=True).start()
        return socket.create_connection(listening.getsockname())

    def _load(self) -> None:
        self.read()
        self._queue.put(True)

    def _send(self) -> None:
        time.sleep(0.5)
        os.write(self._pipe[1], b"x")


def _answer(listening: socket.socket) -> None:
    """Answer each request of two parts, of one client."""
    connection, _ = listening.accept()
    received = 0
    while data := connection.recv(4096):
        received += len(data)
        if received == 2 * _PART:
            received = 0
            connection.send(b"a")


def compute(milliseconds: float) -> None:
    """Use the CPU for so long, mostly without the interpreter's lock."""
    end = time.monotonic() + milliseconds / 1000
    while time.monotonic() < end:
        hashlib.sha256(CHUNK)


def loop(work: Workload, fault: str) -> None:
    """Steps and faults until told to stop."""
    faults = Faults(work)
    faults.prepare()
    action = faults.by_name(fault)
    while not work.stopped.is_set():
        with work.act("step"):
            compute(work.options.step_ms)
        if action is not None:
            with work.act("fault", pid=os.getpid(), fault=fault):
                action()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    faults = (
        "none",
        "read",
        "loader",
        "sync",
        "stat",
        "lock-sync",
        "lock-compute",
        "pipe",
        "server",
        "awaited",
        "messages",
    )
    parser.add_argument("--fault", choices=faults, default="none")
    parser.add_argument("--step-ms", type=float, default=40.0, help="computing per step")
    parser.add_argument("--hold-ms", type=float, default=60.0, help="computing of a helper that holds the lock")
    parser.add_argument("--rest-s", type=float, default=0.02, help="what a helper rests between two holds")
    parser.add_argument("--size-kib", type=int, default=1024)
    parser.add_argument("--directory", type=Path, default=Path("."))
    parser.add_argument("--path", type=Path, help="the file that is read")
    parser.add_argument("--pool", type=int, default=0, help="threads that wait for work all along")
    parser.add_argument("--busy", type=int, default=0, help="threads that compute as well")
    parser.add_argument("--children", type=int, default=0, help="processes that run the loop, the last with the fault")
    work = Workload(parser)
    options = work.options
    never = threading.Event()
    threads = [threading.Thread(target=never.wait, daemon=True) for _ in range(options.pool)]
    threads += [threading.Thread(target=compute, args=(1e9,), daemon=True) for _ in range(options.busy)]
    for thread in threads:
        thread.start()
    options.directory, options.path = str(options.directory), options.path and str(options.path)
    children = []
    for number in range(options.children):
        child = os.fork()
        if child == 0:
            options.directory = Path(options.directory)
            loop(work, options.fault if number == options.children - 1 else "none")
            os._exit(0)
        children.append(child)
    work.start(pids=children, tids=[t.native_id for t in threads])
    options.directory = Path(options.directory)
    if children:
        work.stopped.wait()
        for child in children:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
    else:
        loop(work, options.fault)
    work.emit("end")
    os._exit(0)


if __name__ == "__main__":
    main()
