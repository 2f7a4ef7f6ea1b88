#!/usr/bin/env python3
"""Files used in one way after another, each way logged with what it moved.

Steps, as arguments: ``read:PATH:KIB[:TIMES]`` (requests of that size), ``map:PATH[:TIMES]``, ``direct:PATH:KIB``,
``write:PATH:KIB:MIB``.  With ``--hot PATH`` a child reads that file whole, again and again, until the steps are done.

Lines: ``start`` (hot_pid), one per step named after it (path, bytes asked for, device_bytes: what came from the device
by the process's own accounting), ``hot`` by the child per turn, ``end``.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from workload import Workload

MIB = 1 << 20
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None)


def device_bytes() -> int:
    """What this process has read from devices so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def read(path: str, kib: int, times: int = 1, flags: int = 0) -> int:
    """All of the file, from its first byte; the buffer is aligned, as O_DIRECT wants it."""
    buffer = mmap.mmap(-1, kib * 1024)
    done = 0
    for _ in range(times):
        fd = os.open(path, os.O_RDONLY | flags)
        try:
            while got := os.readv(fd, [buffer]):
                done += got
        finally:
            os.close(fd)
    return done


def mapped(path: str, times: int = 1) -> int:
    """Touch every page through a mapping."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        for _ in range(times):
            sum(view[at] for at in range(0, len(view), mmap.PAGESIZE))
        return len(view) * times


def write(path: str, kib: int, mib: int) -> int:
    """A file of that size, from its first byte, and wait until it is on the disk."""
    data = os.urandom(kib * 1024)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(mib * 1024 // kib):
            os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return mib * MIB


WAYS: dict[str, Callable[..., int]] = {
    "read": read,
    "map": mapped,
    "direct": lambda path, kib: read(path, kib, 1, os.O_DIRECT),
    "write": write,
}


def reread(work: Workload, path: str, kib: int, pause_s: float) -> None:
    """What the child does; it dies with its parent."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(PR_SET_NAME, b"rereader", 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    while True:
        with work.act("hot", path=path) as facts:
            before = device_bytes()
            facts["bytes"] = read(path, kib)
            facts["device_bytes"] = device_bytes() - before
        time.sleep(pause_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*")
    parser.add_argument("--hot", help="what the child reads")
    parser.add_argument("--hot-kib", type=int, default=128)
    parser.add_argument("--hot-pause-ms", type=float, default=100)
    parser.add_argument("--linger-s", type=float, default=0, help="stay so long after the last step")
    work = Workload(parser)
    options = work.options
    child = os.fork() if options.hot else 0
    if options.hot and child == 0:
        reread(work, options.hot, options.hot_kib, options.hot_pause_ms / 1e3)
    work.start(hot_pid=child)
    for step in options.steps:
        way, path, *numbers = step.split(":")
        with work.act(way, path=path) as facts:
            before = device_bytes()
            facts["bytes"] = WAYS[way](path, *map(int, numbers))
            facts["device_bytes"] = device_bytes() - before
    work.pause(options.linger_s)
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    work.emit("end")


if __name__ == "__main__":
    main()
