"""Compute a tenth of the time, at low priority."""

import hashlib
import os
import time

if __name__ == "__main__":
    os.nice(15)
    data = bytes(1 << 20)
    while True:
        end = time.monotonic() + 0.01
        while time.monotonic() < end:
            hashlib.sha256(data).digest()
        time.sleep(0.09)
