"""Python work on request. Per line "WHAT N" of standard input, N steps and one line "N CPU_NS WALL_NS".

numpy: a matrix product; python: a loop; handover: an item to another thread and back; sleep: 1 ms of sleep.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np

there: queue.SimpleQueue[int] = queue.SimpleQueue()
back: queue.SimpleQueue[int] = queue.SimpleQueue()
matrix = np.ones((200, 200), np.float32)


def numpy_step() -> None:
    """Multiply two matrices."""
    np.dot(matrix, matrix)


def python_step() -> None:
    """Run a loop."""
    sum(n * n for n in range(1000))


def handover_step() -> None:
    """Wait for the other thread."""
    there.put(1)
    back.get()


def sleep_step() -> None:
    """Sleep."""
    time.sleep(0.001)


def answer() -> None:
    """Return every item."""
    while True:
        back.put(there.get())


STEPS = {"numpy": numpy_step, "python": python_step, "handover": handover_step, "sleep": sleep_step}

threading.Thread(target=answer, daemon=True).start()
for line in sys.stdin:
    what, count = line.split()
    step = STEPS[what]
    wall, cpu = time.monotonic_ns(), time.process_time_ns()
    for _ in range(int(count)):
        step()
    print(count, time.process_time_ns() - cpu, time.monotonic_ns() - wall, flush=True)
