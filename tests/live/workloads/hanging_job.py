#!/usr/bin/env python3
"""Train on several ranks (gloo) until one of them does something else than the others, and stays there.

    python hanging_job.py --directory DIR --ranks 4 --rank 2 --step 7 FAULT

Nothing is enabled in the job. The odd rank logs ``fault`` (with its function) before it, and ``step`` if it is slow
only. The ranks are forked from one process that has imported torch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import Workload

FOREVER_S = 3600
SLOW = "is_slow"
_PR_SET_PDEATHSIG = 1


class Faults:
    """What the odd rank does: a function per fault, which is the line where it must be found. `alive`: a pipe whose
    other end is closed when the launcher ends."""

    def __init__(self, directory: str, alive: int) -> None:
        self._fifo = Path(directory, "samples.bin")
        self._alive = alive
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

    def exits(self) -> None:
        self._hold_connections()
        os._exit(3)

    def raises(self) -> None:
        self._hold_connections()
        raise ValueError("no label in sample 17")

    def raises_and_stays(self) -> None:
        threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
        raise ValueError("no label in sample 17")

    def is_killed(self) -> None:
        self._hold_connections()
        os.kill(os.getpid(), signal.SIGKILL)

    def _hold_connections(self) -> None:
        """Leave a process behind which inherits the sockets of gloo, as any helper forked by a rank does: otherwise
        gloo's other ranks see them closed and fail instead of waiting. NCCL's would wait."""
        if os.fork() == 0:
            os.read(self._alive, 1)
            os._exit(0)

    def computes(self) -> None:
        total = 0
        while total >= 0:
            total += 1


def train(rank: int, work: Workload, alive: int) -> None:
    """Train; on the odd rank, do the fault before a step's all_reduce."""
    options = work.options
    torch.set_num_threads(1)
    store = f"file://{options.directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.ranks)
    fault: Callable[[], None] | None = getattr(Faults(options.directory, alive), options.fault, None)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    if options.ddp:
        model = DistributedDataParallel(model)
    step = 0
    while True:
        if options.fault == SLOW:
            time.sleep(options.pause * (2 if rank == options.rank else 1))
            if rank == options.rank:
                work.emit("step", step=step)
        elif fault is not None and rank == options.rank and step == options.step:
            work.emit("fault", rank=rank, rank_pid=os.getpid(), function=fault.__name__, step=step)
            fault()
        model.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        if not options.ddp:
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
        step += 1


def main() -> None:
    faults = [name for name in vars(Faults) if not name.startswith("_")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", choices=[*faults, SLOW])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, default=1, help="the odd one")
    parser.add_argument("--step", type=int, default=5, help="of the fault")
    parser.add_argument("--pause", type=float, default=0.4, help="of a slow job, in s per step")
    parser.add_argument("--ddp", action="store_true")
    work = Workload(parser)
    work.options.directory = str(work.options.directory)
    ranks = []
    alive, alive_writer = os.pipe()
    for rank in range(work.options.ranks):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(alive_writer)
            with open(f"{work.options.directory}/log", "ab") as log:
                os.dup2(log.fileno(), 2)
            train(rank, work, alive)
        ranks.append(child)
    work.start(rank_pids=ranks)
    work.stopped.wait()
    for child in ranks:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    work.emit("end")


if __name__ == "__main__":
    main()
