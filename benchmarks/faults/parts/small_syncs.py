"""A database that commits small records all the time."""

import os
import sys
import time

if __name__ == "__main__":
    fd = os.open(os.path.join(sys.argv[1], "wal.bin"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    while True:
        os.write(fd, bytes(4096))
        os.fsync(fd)
        time.sleep(0.02)
