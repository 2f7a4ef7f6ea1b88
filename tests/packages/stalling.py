"""A loop of short steps, each of which waits most of its time for the lock of a file that another process holds.

The wait does not depend on the speed of disk or CPU. Prints the path of the file once the first step is over. Needs
Python alone.
"""

import fcntl
import os
import sys
import time

HELD_S = 0.6


def hold(path: str, parent: int) -> None:
    """Hold the lock again and again while `parent` lives, with a pause in which the other process gets it."""
    with open(path, "w") as file:
        while os.getppid() == parent:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(HELD_S)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.02)


def step(path: str) -> None:
    """Compute a little and save the result below the lock."""
    sum(range(100_000))
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)


if __name__ == "__main__":
    path = os.path.join(sys.argv[1], "cache.lock")
    parent = os.getpid()
    if os.fork() == 0:
        hold(path, parent)
        sys.exit()
    time.sleep(0.1)
    step(path)
    print(path, flush=True)
    while True:
        step(path)
