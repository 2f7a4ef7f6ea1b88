"""Read lines at a fixed rate, as a log shipper with a quota does."""

import os
import sys
import time

if __name__ == "__main__":
    rate = int(sys.argv[1])
    while data := os.read(0, 4096):
        time.sleep(len(data) / rate)
