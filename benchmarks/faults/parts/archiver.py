"""Read images of disks from beginning to end, one after the other, at a fixed rate."""

import os
import sys
import time

RATE = 400 << 20

if __name__ == "__main__":
    number = 0
    block = bytearray(1 << 20)
    while True:
        number += 1
        path = os.path.join(sys.argv[1], f"image-{number}.raw")
        with open(path, "w+b", buffering=0) as file:
            file.truncate(1 << 30)
            while file.readinto(block):
                time.sleep(len(block) / RATE)
        os.unlink(path)
