"""Record Flight Recorder dumps of real jobs that hang: four gloo ranks on the CPU, killed once they stand still.

``python tests/recorded/flight_recorder/make.py`` (needs torch 2.13) writes a directory per scenario beside this file.
Stacks are left out: they hold paths of the machine they were recorded on.
"""

from __future__ import annotations

import datetime
import os
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = Path(__file__).parent
RANKS = 4
_STANDS_STILL_S = 4.0
_FOREVER_S = 60.0
_TIMEOUT_S = {"timed_out": 2.0}


def absent(rank: int) -> None:
    """Rank 2 does not enter the last all_reduce."""
    if rank == 2:
        time.sleep(_FOREVER_S)
    dist.all_reduce(torch.ones(1000))


def timed_out(rank: int) -> None:
    """The same, and the others' all_reduce fails before the dumps are written."""
    try:
        absent(rank)
    except RuntimeError:
        time.sleep(_FOREVER_S)


def chain(rank: int) -> None:
    """Rank 3 stands still; rank 2 waits for it in their pair, and all others for both."""
    pairs = [dist.new_group([0, 1], group_desc="pair"), dist.new_group([2, 3], group_desc="pair")]
    dist.all_reduce(torch.ones(10), group=pairs[rank // 2])
    if rank == 3:
        time.sleep(_FOREVER_S)
    dist.all_reduce(torch.ones(10), group=pairs[rank // 2])
    dist.all_reduce(torch.ones(1000))


def circle(rank: int, rounds: int = 2) -> None:
    """In the last round ranks 0 and 1 enter the operations of two groups in different orders; the others wait."""
    groups = [dist.new_group([0, 1], group_desc="first"), dist.new_group([0, 1], group_desc="second")]
    for number in range(rounds):
        last = number == rounds - 1
        if rank < 2:
            for group in reversed(groups) if last and rank == 1 else groups:
                dist.all_reduce(torch.ones(10), group=group)
        dist.barrier()


def strangers(rank: int) -> None:
    """The same in groups that were never used before: gloo's dumps do not tell who belongs to them."""
    circle(rank, rounds=1)


def other_operation(rank: int) -> None:
    """Rank 1 enters a broadcast where the others enter an all_reduce."""
    if rank == 1:
        dist.broadcast(torch.ones(1000), src=0)
    dist.all_reduce(torch.ones(1000))


SCENARIOS = {one.__name__: one for one in (absent, timed_out, chain, circle, strangers, other_operation)}


def _rank(rank: int, name: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_TIMEOUT_S.get(name, 1800.0)))
    threading.Thread(target=_dump, args=(HERE / name, rank), daemon=True).start()
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
        dist.barrier()
    try:
        SCENARIOS[name](rank)
    except RuntimeError:
        time.sleep(_FOREVER_S)


def _dump(directory: Path, rank: int) -> None:
    time.sleep(_STANDS_STILL_S)
    recorder = torch._C._distributed_c10d
    (directory / f"_dump_{rank}").write_bytes(recorder._dump_fr_trace(includeStackTraces=False))
    if directory.name == "absent":
        beside = directory.with_name("absent_json")
        beside.mkdir(exist_ok=True)
        (beside / f"_dump_{rank}.json").write_bytes(recorder._dump_fr_trace_json())
    os._exit(0)


def main() -> None:
    """Record the scenarios named, or all."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    for name in sys.argv[1:] or SCENARIOS:
        (HERE / name).mkdir(exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.start_processes(_rank, (name, port), RANKS, start_method="spawn")


if __name__ == "__main__":
    main()
