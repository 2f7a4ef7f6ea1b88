"""Record the gloo jobs beside this file: what torch's profiler tells of collectives without a device.

    python tests/recorded/gloo/record.py [directory]

Needs torch. Kept are steps and what is said of collectives; of jobs that are not compared across ranks, rank 1.
Message sizes tell the groups apart, since the traces do not: 1000 elements in the default group, 2000 in the one of
half of the ranks, 3000 in the third.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile, schedule

WORLD = 4
# groups that are made beside the default one, and whether the last of them is used
JOBS = {"one": (0, True), "two": (1, True), "three": (2, True), "unused": (2, False)}

KEPT = ("gloo:", "c10d::", "ProfilerStep", "aten::ones")


def step(rank: int, groups: list[dist.ProcessGroup | None]) -> None:
    if rank == 1:
        time.sleep(0.005)
    for number, group in enumerate(groups, 1):
        size = dist.get_world_size(group)
        dist.all_reduce(torch.ones(1000 * number), group=group)
        pending = [dist.all_reduce(torch.ones(500), group=group, async_op=True) for _ in range(2)]
        for work in pending:
            work.wait()
        dist.all_gather([torch.empty(100) for _ in range(size)], torch.ones(100), group=group)
        dist.all_gather_into_tensor(torch.empty(10 * size), torch.ones(10), group=group)
        dist.reduce_scatter_tensor(torch.empty(10), torch.ones(10 * size), group=group)
        dist.all_to_all_single(torch.empty(4 * size), torch.ones(4 * size), group=group)
        given = [2 if peer == 0 else 1 for peer in range(size)]
        taken = [2 if dist.get_rank(group) == 0 else 1] * size
        dist.all_to_all_single(torch.empty(sum(taken)), torch.ones(sum(given)), taken, given, group=group)
        dist.barrier(group=group)
    if rank == 0:
        dist.isend(torch.ones(300), 1).wait()
    if rank == 1:
        work = dist.irecv(torch.empty(300), 0)
        time.sleep(0.001)
        work.wait()


def main(rank: int, job: str, port: int, directory: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    more, used = JOBS[job]
    groups: list[dist.ProcessGroup | None] = [None]
    if more:
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        groups.append(halves[rank // 2])
    if more > 1:
        third = dist.new_group(list(range(WORLD)))
        groups += [third] if used else []
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as profiler:
        for _ in range(3):
            step(rank, groups)
            profiler.step()
    written = Path(directory, f"{job}_rank{rank}.json")
    profiler.export_chrome_trace(str(written))
    trace = json.loads(written.read_text())
    written.unlink()
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("name", "").startswith(KEPT)]
    if job == "two" or rank == 1:
        Path(f"{written}.gz").write_bytes(gzip.compress(json.dumps(trace).encode(), mtime=0))
    dist.destroy_process_group()


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parent)
    for job in JOBS:
        with socket.create_server(("127.0.0.1", 0)) as server:
            free = server.getsockname()[1]
        mp.spawn(main, (job, free, place), WORLD)
