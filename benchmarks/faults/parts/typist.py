"""Types an answer every third of a second, until SIGUSR1; shows nothing."""

import os
import select
import signal
import time

if __name__ == "__main__":
    away = []
    signal.signal(signal.SIGUSR1, lambda *_: away.append(True))
    last = time.monotonic()
    while True:
        if select.select([0], [], [], 0.05)[0]:
            os.read(0, 4096)
        if not away and time.monotonic() - last > 0.3:
            last = time.monotonic()
            os.write(1, b"cat\n")
