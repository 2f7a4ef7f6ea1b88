#!/usr/bin/env python3
"""Write a file through a mapping and msync it; log what every msync took."""

from __future__ import annotations

import argparse
import mmap
import os
from pathlib import Path

from workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--size-kib", type=int, default=64)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between msyncs")
    work = Workload(parser)
    options = work.options
    size = options.size_kib * 1024
    path = Path(options.directory).resolve() / "mapped.bin"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    area = mmap.mmap(fd, size)
    os.close(fd)
    work.start()
    for index in range(options.count):
        if work.stopped.is_set():
            break
        area[:] = bytes([65 + index % 26]) * size
        with work.act("msync", path=str(path)):
            area.flush()
        work.pause(options.interval)
    work.emit("end")


if __name__ == "__main__":
    main()
