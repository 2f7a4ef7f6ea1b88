#!/usr/bin/env python3
"""Train on several ranks (gloo) until one of them does something else than the others, and stays there.

    python hanging_job.py --out DIR --ranks 4 --rank 2 --step 7 FAULT

Nothing is enabled in the job. Each rank logs to ``DIR/rank*.jsonl``: ``{"step": 7}`` per step, and before its fault
``{"fault": "sleeps", "function": "sleeps", "step": 7}``. The ranks are forked from one process that has imported torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOREVER_S = 3600


class Faults:
    """What the odd rank does: a function per fault, which is the line where it must be found."""

    def __init__(self, directory: Path) -> None:
        self._fifo = directory / "samples.bin"
        self._lock = threading.Lock()

    def sleeps(self) -> None:
        time.sleep(FOREVER_S)

    def wants_lock(self) -> None:
        def holds() -> None:
            with self._lock:
                taken.set()
                time.sleep(FOREVER_S)

        taken = threading.Event()
        threading.Thread(target=holds, daemon=True).start()
        taken.wait()
        self._lock.acquire()

    def reads_file(self) -> None:
        os.mkfifo(self._fifo)
        self._fifo.read_bytes()

    def is_stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def takes_other_branch(self) -> None:
        dist.all_gather([torch.zeros(8) for _ in range(dist.get_world_size())], torch.ones(8))

    def computes(self) -> None:
        total = 0
        while total >= 0:
            total += 1


def train(rank: int, options: argparse.Namespace) -> None:
    """Train; on the odd rank, do the fault instead of a step's all_reduce."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=rank, world_size=options.ranks)
    faults: Callable[[], None] | None = getattr(Faults(options.out), options.fault, None)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    if options.ddp:
        model = DistributedDataParallel(model)
    with open(options.out / f"rank{rank}.jsonl", "w", buffering=1) as log:
        for step in range(100_000):
            log.write(json.dumps({"step": step}) + "\n")
            if options.fault == "is_slow":
                time.sleep(options.pause * (2 if rank == options.rank else 1))
            elif faults is not None and rank == options.rank and step == options.step:
                log.write(json.dumps({"fault": options.fault, "function": faults.__name__, "step": step}) + "\n")
                faults()
            model.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            if not options.ddp:
                for weight in model.parameters():
                    dist.all_reduce(weight.grad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.4, help="of `is_slow`, in s per step")
    parser.add_argument("--ddp", action="store_true")
    options = parser.parse_args()
    random.seed(options.rank)
    options.store = tempfile.mktemp(dir=options.out)
    children = []
    for rank in range(options.ranks):
        child = os.fork()
        if child == 0:
            train(rank, options)
            sys.exit()
        children.append(child)
    print(json.dumps({"pids": children}), flush=True)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
