"""Kineto files of the ranks of a small job on a device, as libkineto writes them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BASE_NS = 1_711_964_646_000_000_000
STEP_US = 10_000.0
KERNEL = "void gemm(float*)"


def events_of(steps: int, first: int, compute_us: float, start_us: float) -> list[dict[str, Any]]:
    """Steps of 10 ms: one kernel from 1 ms on, then one all_reduce that ends 1 ms before the step does."""
    found: list[dict[str, Any]] = []
    for number in range(steps):
        at = start_us + number * STEP_US
        step, ids = first + number, 10 * (first + number + 1)
        found.append(_event("user_annotation", f"ProfilerStep#{step}", at, STEP_US, {}))
        for offset, length, name, correlation in (
            (1000.0, compute_us, KERNEL, ids),
            (1000.0 + compute_us, 8000.0 - compute_us, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", ids + 1),
        ):
            found.append(
                _event("cuda_runtime", "cudaLaunchKernel", at + offset - 50, 5, {"correlation": correlation}),
            )
            args: dict[str, Any] = {"correlation": correlation, "device": 0, "stream": 7}
            if correlation == ids + 1:
                args |= {
                    "stream": 20,
                    "Collective name": "allreduce",
                    "In msg nelems": 1024,
                    "Out msg nelems": 1024,
                    "dtype": "Float",
                    "Process Group Name": "0",
                    "Process Group Description": "default_pg",
                    "Seq": step,
                }
            found.append(_event("kernel", name, at + offset, length, args, pid=0, tid=args["stream"]))
    return found


def write_rank(
    path: Path,
    rank: int | None,
    *,
    world: int = 2,
    steps: int = 3,
    first: int = 0,
    compute_us: float = 4000.0,
    start_us: float = 5e11,
    host: str = "node0",
    group: list[int] | None = None,
) -> Path:
    """One rank's file; gzip when its name ends so. `rank` None: it does not say."""
    ranks = list(range(world)) if group is None else group
    content: dict[str, Any] = {"schemaVersion": 1, "host_name": host, "baseTimeNanoseconds": BASE_NS}
    if rank is not None:
        config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": len(ranks), "ranks": ranks}]
        content["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": config}
    content["traceEvents"] = events_of(steps, first, compute_us, start_us)
    text = json.dumps(content).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


def write_job(directory: Path, ranks: int = 2, **settings: Any) -> Path:
    """``rank<N>.json`` of each rank."""
    for rank in range(ranks):
        write_rank(directory / f"rank{rank}.json", rank, world=ranks, **settings)
    return directory


def write_uneven_job(directory: Path, seen: Iterable[int], slow: int, *, world: int, stepped: bool = True) -> Path:
    """Forty steps of a job on hosts with clocks of their own, of which some ranks were traced.

    The work of rank `slow` takes half as long again. NCCL's kernels are not numbered. `stepped`: with a schedule.
    """
    chance = random.Random(1)
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(world)}
    clock = {rank: chance.uniform(-30_000, 30_000) for rank in events}
    at = 5e11
    for step in range(40):
        took = {rank: (4000 + chance.gauss(0, 60)) * (1.5 if rank == slow else 1) for rank in events}
        end = at + 1700 + max(took.values())
        for rank, own in events.items():
            begin, done = at + clock[rank], end + clock[rank] + chance.uniform(0, 15)
            met, ids = begin + 1000 + took[rank], 2 * step + 1
            if stepped:
                own.append(_event("user_annotation", f"ProfilerStep#{step}", begin, end + 300 - at, {}))
            own.append(_event("cuda_runtime", "cudaLaunchKernel", begin + 900, 5, {"correlation": ids}))
            own.append(_event("cuda_runtime", "cudaLaunchKernel", begin + 950, 5, {"correlation": ids + 1}))
            args: dict[str, Any] = {"correlation": ids, "device": 0, "stream": 7}
            own.append(_event("kernel", KERNEL, begin + 1000, took[rank], args, pid=0, tid=7))
            args = {
                "correlation": ids + 1, "device": 0, "stream": 20, "Collective name": "allreduce",
                "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float", "Process Group Name": "0",
            }  # fmt: skip
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            own.append(_event("kernel", name, met, done - met, args, pid=0, tid=20))
        at = end + 400 + chance.uniform(0, 300)
    config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}]
    for rank in seen:
        info = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": config}
        content = {"baseTimeNanoseconds": BASE_NS, "distributedInfo": info, "host_name": f"node{rank}"}
        (directory / f"rank{rank}.json").write_text(json.dumps({**content, "traceEvents": events[rank]}))
    return directory


def _event(
    category: str, name: str, start_us: float, dur_us: float, args: dict[str, Any], pid: int = 17, tid: int = 17
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": dur_us, "args": args
    }  # fmt: skip
