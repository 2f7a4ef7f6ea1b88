#!/usr/bin/env python3
"""A rank that calls a library with NCCL's interface, whose functions return when the operation is enqueued.

    RANK=1 WORLD_SIZE=2 python enqueuing.py --library libnccl.so.2 --late 8

It waits for the other rank before every step, by the pipes of its standard input and output: a byte in, a byte out.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time

FLOAT32, FLOAT16 = 7, 6
SIZES = (1024, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--late", type=float, default=0.0, help="ms before a step's first operation")
    options = parser.parse_args()
    library = ctypes.CDLL(options.library)
    comm, stream = ctypes.c_void_p(0x1000 + os.getpid()), ctypes.c_void_p(1)
    os.write(1, b"r")
    while step := os.read(0, 1):
        if step == b"h":  # no device makes room in its queue any more
            library.ncclReduceScatter(None, None, ctypes.c_size_t(0), FLOAT32, 0, comm, stream)
        time.sleep(options.late / 1000)
        for size in SIZES:
            library.ncclAllReduce(None, None, ctypes.c_size_t(size), FLOAT32, 0, comm, stream)
        library.ncclAllGather(None, None, ctypes.c_size_t(32), FLOAT16, comm, stream)
        os.write(1, b"s")
    sys.exit(0)


if __name__ == "__main__":
    main()
