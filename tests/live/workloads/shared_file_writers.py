#!/usr/bin/env python3
"""Several threads write one file at places of their own, as ranks do that share one checkpoint: each write holds the
file's lock, and the others wait for it.  ``--own-files``: each thread has a file of its own instead.

The main thread is one of them, and steps in between.  Lines: ``write`` (tid, bytes, latency_s), ``step`` of the main
thread.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

from workload import Workload

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--threads", type=int, default=4, help="the main thread among them")
    parser.add_argument("--request-mib", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=2, help="of the main thread, between two writes")
    parser.add_argument("--own-files", action="store_true")
    parser.add_argument("--count", type=int, default=10**6, help="writes of the main thread")
    work = Workload(parser)
    options = work.options
    size = options.request_mib * MIB
    data = os.urandom(size)
    names = [f"part_{n}.bin" if options.own_files else "checkpoint.bin" for n in range(options.threads)]
    files = [os.open(Path(options.directory) / name, os.O_WRONLY | os.O_CREAT, 0o644) for name in names]

    def write(number: int) -> None:
        with work.act("write", number=number, bytes=size):
            os.pwrite(files[number], data, 0 if options.own_files else number * size)

    def others(number: int) -> None:
        while not work.stopped.is_set():
            write(number)

    threads = [threading.Thread(target=others, args=(number,), daemon=True) for number in range(1, options.threads)]
    work.start(paths=sorted({str(Path(options.directory) / name) for name in names}))
    for thread in threads:
        thread.start()
    for _ in range(options.count):
        if work.stopped.is_set():
            break
        write(0)
        with work.act("step"):
            until = time.monotonic() + options.step_ms / 1e3
            while time.monotonic() < until:
                sum(range(500))
    work.stopped.set()
    for thread in threads:
        thread.join()
    work.emit("end")


if __name__ == "__main__":
    main()
