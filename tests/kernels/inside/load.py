#!/usr/bin/env python3
"""Known work of every kind at once, each kind in a process of its own, logged by itself; until it is told to end.

Children of one parent, so that one window on the parent and its children sees them all:

* ``writer``: writes a file and fsyncs it, again and again; line ``fsync`` (path);
* ``napper``: sleeps a known length; line ``nap`` (asked_s); a second thread of it waits for a pipe all along;
* ``disk``: O_DIRECT writes of one size; line ``direct`` (path, bytes);
* ``spinner``: wants a CPU for ever, in the function `spin`; line ``used`` (cpu_s: its CPU time so far, at_mono_ns);
* ``reader``: reads a file from its beginning to its end; line ``pass`` (path, bytes, device_bytes).

The first line, ``start``, has `children`: process id by name, and `waits`: the thread that waits for the pipe.
All pause rather than compute: under emulation a second is a second, but a CPU is twenty times slower.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

from _workload import Workload

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
PIECE = 128 << 10
_libc = ctypes.CDLL(None)


def write_and_sync(work: Workload, directory: Path) -> None:
    path = directory / "checkpoint.bin"
    data = bytes(64 << 10)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    while not work.stopped.is_set():
        os.pwrite(fd, data, 0)
        with work.act("fsync", path=str(path)):
            os.fsync(fd)
        work.pause(0.1)


def nap(work: Workload, length_s: float) -> None:
    while not work.stopped.is_set():
        with work.act("nap", asked_s=length_s):
            time.sleep(length_s)


def write_direct(work: Workload, path: Path, size: int) -> None:
    buffer = mmap.mmap(-1, size)
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    while not work.stopped.is_set():
        with work.act("direct", path=str(path), bytes=size):
            os.pwrite(fd, buffer, 0)
        work.pause(0.05)


def spin(work: Workload) -> None:
    """Reads the clock as seldom as can be: what it does between is all that a profile may see."""
    while not work.stopped.is_set():
        until = time.monotonic() + 0.25
        while time.monotonic() < until:
            for _ in range(2000):
                pass
        work.emit("used", cpu_s=time.process_time(), at_mono_ns=time.monotonic_ns())


def _device_bytes() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def read_again(work: Workload, path: Path) -> None:
    buffer = bytearray(PIECE)
    while not work.stopped.is_set():
        with work.act("pass", path=str(path)) as facts:
            before, done = _device_bytes(), 0
            fd = os.open(path, os.O_RDONLY)
            while got := os.readv(fd, [buffer]):
                done += got
            os.close(fd)
            facts.update(bytes=done, device_bytes=_device_bytes() - before)
        work.pause(0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow-directory", required=True, help="where an fsync is slow")
    parser.add_argument("--direct", required=True, help="a file that is as long as one request at least")
    parser.add_argument("--request-kib", type=int, default=64)
    parser.add_argument("--read", required=True, help="a file that does not fit into the reader's memory")
    parser.add_argument("--nap-s", type=float, default=0.2)
    work = Workload(parser)
    options = work.options
    gate, opened = os.pipe()
    waits, never = os.pipe()
    told, tell = os.pipe()

    def child(name: str, act: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            return pid
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
        os.close(opened)
        if name == "napper":
            thread = threading.Thread(target=os.read, args=(waits, 1), daemon=True)
            thread.start()
            os.write(tell, str(thread.native_id).encode())
        os.read(gate, 1)  # end of file, for all at once
        with contextlib.suppress(KeyboardInterrupt):
            act()
        os._exit(0)

    children = {
        "writer": child("writer", lambda: write_and_sync(work, Path(options.slow_directory))),
        "napper": child("napper", lambda: nap(work, options.nap_s)),
        "disk": child("disk", lambda: write_direct(work, Path(options.direct), options.request_kib << 10)),
        "spinner": child("spinner", lambda: spin(work)),
        "reader": child("reader", lambda: read_again(work, Path(options.read))),
    }
    os.close(gate)
    work.start(children=children, waits=int(os.read(told, 32)))
    os.close(opened)
    while not work.stopped.is_set():
        work.pause(0.5)
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(never)
    work.emit("end")


if __name__ == "__main__":
    main()
