#!/usr/bin/env python3
"""Step, and write a checkpoint every so many steps: by buffered writes, which the kernel lets wait when too much is
dirty, or with O_DIRECT.  Nothing is synced.

Lines: ``step`` (latency_s), ``checkpoint`` (path, bytes, latency_s: what the loop lost).
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from pathlib import Path

from workload import Workload

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--size-mib", type=int, default=48)
    parser.add_argument("--request-kib", type=int, default=4096)
    parser.add_argument("--steps-between", type=int, default=10)
    parser.add_argument("--step-ms", type=float, default=50)
    parser.add_argument("--keep", type=int, default=2, help="checkpoints kept; older files are written over")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--steps", type=int, default=10**6)
    work = Workload(parser)
    options = work.options
    data = mmap.mmap(-1, options.request_kib * 1024)  # aligned, as O_DIRECT wants it
    data.write(os.urandom(len(data)))
    work.start()
    for number in range(options.steps):
        if work.stopped.is_set():
            break
        with work.act("step", number=number):
            until = time.monotonic() + options.step_ms / 1e3
            while time.monotonic() < until:
                sum(range(500))
        if number % options.steps_between == options.steps_between - 1:
            path = Path(options.directory) / f"ckpt_{number // options.steps_between % options.keep:03d}.bin"
            with work.act("checkpoint", path=str(path), bytes=options.size_mib * MIB):
                write(path, data, options.size_mib * MIB, direct=options.direct)
    work.emit("end")


def write(path: Path, data: mmap.mmap, size: int, *, direct: bool) -> None:
    """Write the file anew from its first byte."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0), 0o644)
    try:
        done = 0
        while done < size:
            done += os.write(fd, memoryview(data)[: min(len(data), size - done)])
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
