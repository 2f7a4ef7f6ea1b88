"""Call a library with functions of the CUDA driver's names: ``launching_job.py LIBRARY``.

One command per line of standard input, one line ``CALLS CPU_NS WALL_NS`` in answer. ``emulated N``, ``stepped N``:
launches in a loop in C, see `launching.c`; ``steps N``: steps of a model of PyTorch on the CPU, each with 50 launches
from Python, and a wait of 1 ms.
"""

from __future__ import annotations

import ctypes
import sys
import time

import torch

torch.set_num_threads(1)
library = ctypes.CDLL(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
batch = torch.rand(64, 512)


def launch() -> None:
    for _ in range(50):
        library.cuLaunchKernel()


def step() -> None:
    model(batch).square().mean().backward()
    launch()
    library.cuStreamSynchronize()


for line in sys.stdin:
    name, count = line.split()[0], int(line.split()[1])
    cpu, wall = time.process_time_ns(), time.monotonic_ns()
    if name != "steps":
        getattr(library, name)(count)
    else:
        for _ in range(count):
            step()
    print(count, time.process_time_ns() - cpu, time.monotonic_ns() - wall, flush=True)
