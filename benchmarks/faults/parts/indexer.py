"""Rebuild the shared index now and then, under its lock."""

import fcntl
import os
import sys
import time

if __name__ == "__main__":
    with open(os.path.join(sys.argv[1], "index.bin"), "ab") as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.4)  # mark: rebuild
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.05)
