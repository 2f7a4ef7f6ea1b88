"""Copy data in memory at a modest rate, and write a little of it to a file."""

import os
import sys
import time

if __name__ == "__main__":
    data = os.urandom(1 << 20)
    path = os.path.join(sys.argv[1], "copy.bin")
    while True:
        with open(path, "wb") as file:
            file.write(data)
        time.sleep(0.05)
