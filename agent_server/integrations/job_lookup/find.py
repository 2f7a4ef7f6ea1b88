"""Finds the process that is meant: reads, resolves, and looks which rank suffers where a job has several."""

from __future__ import annotations

import time

import anyio

from whystall.agent_server.integrations.job_lookup import inventory
from whystall.agent_server.integrations.job_lookup.cmdline import LAUNCHERS
from whystall.agent_server.integrations.job_lookup.grouping import jobs
from whystall.agent_server.integrations.job_lookup.models import Inventory, Job, Resolution, Wanted
from whystall.agent_server.integrations.job_lookup.resolve import resolve
from whystall.agent_server.integrations.job_lookup.stalled import State, sampled, worst

LOOK_S = 0.5
_SAMPLES = 10
_MOST = 64


async def find(wanted: Wanted, look_s: float = LOOK_S) -> Resolution:
    """What `wanted` means now. `look_s`: seconds to look at the ranks of a job where none was asked for; 0: not at all.

    Raises `ToolError` as reading /proc does: never; what may not be read is told (`Resolution.missed`).
    """
    also = [wanted.pid] if wanted.pid is not None else []
    found = await anyio.to_thread.run_sync(lambda: resolve(wanted, inventory.read(also=also)))
    return await closer(found, look_s)


async def closer(found: Resolution, look_s: float = LOOK_S) -> Resolution:
    """`found` with the rank, or the worker, that suffers, where one clearly does and none was asked for."""
    job = found.job
    if found.status != "found" or job is None or look_s <= 0:
        return found
    if not any(code.startswith(("lowest_rank:", "first_of:")) for code in found.how):
        return found
    pids = [rank.pid for rank in job.ranks] or job.workers
    pid = await anyio.to_thread.run_sync(lambda: _suffers(pids[:_MOST], look_s))
    if pid is None:
        return found
    ticks = await anyio.to_thread.run_sync(lambda: inventory.start_ticks(pid))
    if ticks is None:
        return found
    rank = next((one.rank for one in job.ranks if one.pid == pid), None)
    how = [code for code in found.how if not code.startswith(("lowest_rank:", "first_of:"))]
    return found.model_copy(update={"pid": pid, "rank": rank, "start_ticks": ticks, "how": [*how, "suffers"]})


def _suffers(pids: list[int], look_s: float) -> int | None:
    samples: list[dict[int, State]] = []
    for _ in range(_SAMPLES):
        samples.append(sampled(pids))
        time.sleep(look_s / _SAMPLES)
    return worst(samples)


def running_jobs() -> tuple[Inventory, list[Job]]:
    """Return the processes of this machine, and its jobs: those with ranks, in a batch system, a pod or a container.

    Where there are none, the longest-running processes outside of system services.
    """
    seen = inventory.read()
    found = [job for job in jobs(seen) if job.program not in LAUNCHERS]
    named = [job for job in found if job.kind not in ("process", "unit")]
    return seen, named or [job for job in found if job.kind == "process"]
