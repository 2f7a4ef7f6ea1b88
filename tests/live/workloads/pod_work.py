"""Runs inside a container: saves checkpoints on a volume and maps a set beside them; says what it did, by its own names
for things, a line of JSON per checkpoint.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time

VOLUME = sys.argv[1]


def save_checkpoint(number: int) -> None:
    path = f"{VOLUME}/chk_{number % 4}.bin"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    began = time.monotonic()
    try:
        os.pwrite(descriptor, os.urandom(1 << 20), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    print(json.dumps({"path": path, "pid": os.getpid(), "latency_s": time.monotonic() - began}), flush=True)


def read_set() -> int:
    """Through a mapping, from pages that were given back before: each is a fault that waits for the disk."""
    descriptor = os.open(f"{VOLUME}/set.bin", os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        os.close(descriptor)
        mapped.madvise(mmap.MADV_RANDOM)
        return sum(mapped[at] for at in range(0, len(mapped), 1 << 17))


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


with open(f"{VOLUME}/set.bin", "wb") as made:
    made.write(os.urandom(16 << 20))
    made.flush()
    os.fsync(made.fileno())
number = 0
while True:
    save_checkpoint(number)
    read_set()
    compute(0.05)
    number += 1
