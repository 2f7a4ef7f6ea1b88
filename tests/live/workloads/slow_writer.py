#!/usr/bin/env python3
"""Write files of a known size and fsync each; log what every write and fsync took."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--size-kib", type=int, default=1024)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between writes")
    parser.add_argument("--one-file", action="store_true", help="append to one file instead of one file each")
    parser.add_argument("--sync", choices=("fsync", "fdatasync", "none"), default="fsync")
    work = Workload(parser)
    options = work.options
    data = os.urandom(options.size_kib * 1024)
    work.start()
    for index in range(options.count):
        if work.stopped.is_set():
            break
        path = Path(options.directory).resolve() / ("data.bin" if options.one_file else f"data_{index}.bin")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        with work.act("write", path=str(path), offset=os.fstat(fd).st_size) as facts:
            facts["bytes"] = os.write(fd, data)
        if options.sync != "none":
            with work.act(options.sync, path=str(path)):
                getattr(os, options.sync)(fd)
        os.close(fd)
        work.pause(options.interval)
    work.emit("end")


if __name__ == "__main__":
    main()
