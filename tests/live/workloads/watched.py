"""Writes and syncs one file, works and naps, over and over: what a window with little privilege must name.

    watched.py FILE

Prints its process id once it has begun, and runs until it is killed.
"""

from __future__ import annotations

import os
import sys
import time

WORK_S, NAP_S = 0.02, 0.03


def work_in_python() -> int:
    """A CPU's time, in a function of this name."""
    end, total = time.monotonic() + WORK_S, 0
    while time.monotonic() < end:
        total += sum(range(500))
    return total


def main() -> None:
    """Until killed."""
    descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
    print(os.getpid(), flush=True)
    while True:
        os.pwrite(descriptor, b"x" * (1 << 20), 0)
        os.fsync(descriptor)
        work_in_python()
        time.sleep(NAP_S)


if __name__ == "__main__":
    main()
