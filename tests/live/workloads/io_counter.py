#!/usr/bin/env python3
"""Do a known number of O_DIRECT reads and writes, each one I/O of one size, then flushes.

A regular file is made and filled (with direct writes) before the start line, so that its reads reach
the device.  ``--path`` may be a block device: it is then overwritten from its beginning.
"""

from __future__ import annotations

import argparse
import mmap
import os
import stat

from workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--reads", type=int, default=100)
    parser.add_argument("--writes", type=int, default=100)
    parser.add_argument("--flushes", type=int, default=0, help="fdatasync calls, each after one more write")
    parser.add_argument("--size", type=int, default=4096, help="bytes of each, a multiple of 4096")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between two")
    work = Workload(parser)
    options = work.options
    buffer = mmap.mmap(-1, options.size)
    buffer[:] = os.urandom(options.size)
    fd = os.open(options.path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    count = max(options.reads, options.writes + options.flushes)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        for index in range(count):
            os.pwrite(fd, buffer, index * options.size)
        os.fsync(fd)

    def repeat(name: str, times: int) -> None:
        for index in range(times):
            offset = index * options.size
            with work.act(name, offset=offset, bytes=options.size):
                if name == "read":
                    os.preadv(fd, [buffer], offset)
                else:
                    os.pwrite(fd, buffer, offset)
                if name == "flush":
                    os.fdatasync(fd)
            work.pause(options.interval)

    work.start()
    for name, times in (("write", options.writes), ("read", options.reads), ("flush", options.flushes)):
        repeat(name, times)
    os.close(fd)
    work.emit("end", reads=options.reads, writes=options.writes + options.flushes, size=options.size)


if __name__ == "__main__":
    main()
