#!/usr/bin/env python3
"""Be one rank (gloo) of a job whose other ranks are elsewhere, and read a pipe instead of entering an all_reduce.

    SLURM_JOB_ID=4242 python lone_rank.py --directory DIR --ranks 64 --rank 57

gloo connects to the others at the first operation, so that one process can be in a large group.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

os.environ["TORCH_GLOO_LAZY_INIT"] = "1"

import torch
import torch.distributed as dist
from workload import Workload


def load(fifo: Path) -> bytes:
    return fifo.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    work = Workload(parser)
    options = work.options
    torch.set_num_threads(1)
    store = f"file://{options.directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=options.rank, world_size=options.ranks)
    fifo = Path(options.directory, "samples.bin")
    os.mkfifo(fifo)
    work.start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    load(fifo)
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
