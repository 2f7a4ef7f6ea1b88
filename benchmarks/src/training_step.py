"""A training step of PyTorch on the CPU, one thread: per line "train N" of standard input, N steps and one line
"N CPU_NS WALL_NS". Each step takes a batch from a thread that prepares batches, as a data loader does."""

from __future__ import annotations

import queue
import sys
import threading
import time

import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches: queue.Queue[torch.Tensor] = queue.Queue(4)


def prepare() -> None:
    while True:
        batches.put(torch.rand(64, 512))


def step() -> None:
    loss = model(batches.get()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


threading.Thread(target=prepare, daemon=True).start()
for line in sys.stdin:
    count = int(line.split()[1])
    cpu, wall = time.process_time_ns(), time.monotonic_ns()
    for _ in range(count):
        step()
    print(count, time.process_time_ns() - cpu, time.monotonic_ns() - wall, flush=True)
