#!/usr/bin/env python3
"""Create, stat, truncate, rename and unlink files with known names; log each call."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from workload import Workload

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--count", type=int, default=5, help="files")
    parser.add_argument("--size-kib", type=int, default=64)
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between files")
    work = Workload(parser)
    options = work.options
    data = os.urandom(options.size_kib * 1024)

    def call(name: str, path: Path, action: Callable[[], T]) -> T:
        with work.act(name, path=str(path)):
            return action()

    work.start()
    for index in range(options.count):
        if work.stopped.is_set():
            break
        path = Path(options.directory).resolve() / f"meta_{index}.dat"
        renamed = path.with_suffix(".new")
        fd = call("open", path, partial(os.open, path, os.O_RDWR | os.O_CREAT, 0o644))
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
        call("stat", path, partial(os.stat, path))
        call("truncate", path, partial(os.truncate, path, 4096))
        call("rename", path, partial(os.rename, path, renamed))
        call("unlink", renamed, partial(os.unlink, renamed))
        work.pause(options.interval)
    work.emit("end")


if __name__ == "__main__":
    main()
