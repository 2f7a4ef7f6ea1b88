#!/usr/bin/env python3
"""A rank that calls a library with NCCL's interface, whose functions return when the operation is enqueued.

    RANK=1 WORLD_SIZE=2 python enqueuing.py libnccl.so.2 8

The last number: milliseconds before a step's first operation. It waits for the other rank before every step, by the
pipes of its standard input and output: a byte in, a byte out.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

FLOAT32, FLOAT16 = 7, 6
SIZES = (1024, 16)


def main() -> None:
    library, late_s = ctypes.CDLL(sys.argv[1]), float(sys.argv[2]) / 1000
    comm, stream = ctypes.c_void_p(0x1000 + os.getpid()), ctypes.c_void_p(1)
    os.write(1, b"r")
    while step := os.read(0, 1):
        if step == b"h":  # no device makes room in its queue any more
            library.ncclReduceScatter(None, None, ctypes.c_size_t(0), FLOAT32, 0, comm, stream)
        time.sleep(late_s)
        for size in SIZES:
            library.ncclAllReduce(None, None, ctypes.c_size_t(size), FLOAT32, 0, comm, stream)
        library.ncclAllGather(None, None, ctypes.c_size_t(32), FLOAT16, comm, stream)
        os.write(1, b"s")
    sys.exit(0)


if __name__ == "__main__":
    main()
