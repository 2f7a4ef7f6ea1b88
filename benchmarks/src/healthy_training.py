"""A healthy training loop of PyTorch on the CPU for long runs of the watcher: one thread, batches from a loader thread,
a log line per 20 steps, an evaluation per 500 steps, and a checkpoint per 1,000 steps.

healthy_training.py DIRECTORY: writes ``steps.log`` (time, steps, longest step in ms) and ``checkpoint.pt`` there.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path

import torch

LOG, EVALUATE, CHECKPOINT = 20, 500, 1000

torch.set_num_threads(1)
directory = Path(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
batches: queue.Queue[torch.Tensor] = queue.Queue(4)


def prepare() -> None:
    while True:
        time.sleep(0.02)  # a batch takes so long to arrive
        batches.put(torch.rand(64, 512))


def step() -> None:
    loss = model(batches.get()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def evaluate() -> None:
    for _ in range(100):
        model(batches.get())


threading.Thread(target=prepare, daemon=True).start()
with (directory / "steps.log").open("a", buffering=1) as log:
    done, longest = 0, 0.0
    while True:
        began = time.monotonic()
        step()
        done += 1
        longest = max(longest, time.monotonic() - began)
        if done % LOG == 0:
            print(f"{time.time():.1f} {done} {longest * 1e3:.1f}", file=log)
            longest = 0.0
        if done % EVALUATE == 0:
            evaluate()
        if done % CHECKPOINT == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, directory / "checkpoint.pt")
