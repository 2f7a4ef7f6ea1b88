#!/usr/bin/env python3
"""NumPy in a loop: products of matrices (BLAS) and sines (NumPy's own code); logs the CPU time of each."""

from __future__ import annotations

import argparse
import os
import time

from workload import Workload

os.environ["OPENBLAS_NUM_THREADS"] = "1"


def main() -> None:
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of CPU time")
    work = Workload(parser)
    dice = np.random.default_rng(1)
    a, b, c = (dice.random((256, 256)) for _ in range(3))
    x, y = dice.random(200_000) * 1000, np.empty(200_000)
    products = sines = 0
    work.start()
    begin = now = time.thread_time_ns()
    while now - begin < work.options.seconds * 1e9 and not work.stopped.is_set():
        for _ in range(int(dice.integers(1, 5))):
            np.matmul(a, b, out=c)
        before, now = now, time.thread_time_ns()
        products += now - before
        for _ in range(int(dice.integers(1, 5))):
            np.sin(x, out=y)
        before, now = now, time.thread_time_ns()
        sines += now - before
    work.emit("end", products_ns=products, sines_ns=sines, all_ns=now - begin)


if __name__ == "__main__":
    main()
