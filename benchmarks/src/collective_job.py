"""Train a small model with DistributedDataParallel on two ranks (gloo), so many steps at a time.

One command per line of standard input, ``train N``; one line ``STEPS CPU_NS WALL_NS`` in answer, of rank 0. The first
line that it prints holds the ranks' process ids.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS, WIDTH, LAYERS, BATCH = 2, 256, 12, 256


def train(rank: int, store: str) -> None:
    """Follow the commands; rank 0 reads them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    batch = torch.randn(BATCH, WIDTH)
    while True:
        words = sys.stdin.readline().split() if rank == 0 else []
        steps = torch.tensor([int(words[1]) if len(words) == 2 else 0])
        dist.broadcast(steps, 0)
        if not steps.item():
            return
        cpu, wall = time.process_time_ns(), time.monotonic_ns()
        for _ in range(int(steps.item())):
            model.zero_grad()
            model(batch).square().mean().backward()
        cpu, wall = time.process_time_ns() - cpu, time.monotonic_ns() - wall
        if rank == 0:
            print(int(steps.item()), cpu, wall, flush=True)


if __name__ == "__main__":
    place = tempfile.mktemp()
    other = os.fork()
    if other == 0:
        train(1, place)
        os._exit(0)
    print(os.getpid(), other, flush=True)
    train(0, place)
