"""Find the process that is meant; of a job with several ranks, sample which one is most stalled."""

from __future__ import annotations

import time

import anyio

from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.cmdline import LAUNCHERS
from whystall.agent_server.job_lookup.grouping import jobs
from whystall.agent_server.job_lookup.models import Inventory, Job, Missed, Resolution, Wanted
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.agent_server.job_lookup.search_terms import search_terms
from whystall.agent_server.job_lookup.stalled import State, most_stalled, sampled
from whystall.tools.node.ai_programs import has_ai_library, is_ai_program

LOOK_S = 0.5
_SAMPLES = 10
_MOST = 64


async def find(wanted: Wanted, look_s: float = LOOK_S) -> Resolution:
    """Return what `wanted` means now. `look_s`: seconds to sample the ranks of a job if none was given; 0: do not.

    Raises nothing for unreadable processes; they are counted in `Resolution.missed`.
    """
    also = [wanted.pid] if wanted.pid is not None else []
    found = await anyio.to_thread.run_sync(lambda: resolve(wanted, inventory.read(also=also)))
    return await choose_rank(found, look_s)


async def choose_rank(found: Resolution, look_s: float = LOOK_S) -> Resolution:
    """Return `found` with the most stalled rank or worker, if one clearly is and none was asked for."""
    job = found.job
    if found.status != "found" or job is None or look_s <= 0:
        return found
    if not any(code.startswith(("lowest_rank:", "first_of:")) for code in found.how):
        return found
    pids = [rank.pid for rank in job.ranks] or job.workers
    pid = await anyio.to_thread.run_sync(lambda: _most_stalled(pids[:_MOST], look_s))
    if pid is None:
        return found
    ticks = await anyio.to_thread.run_sync(lambda: inventory.start_ticks(pid))
    if ticks is None:
        return found
    rank = next((one.rank for one in job.ranks if one.pid == pid), None)
    how = [code for code in found.how if not code.startswith(("lowest_rank:", "first_of:"))]
    return found.model_copy(update={"pid": pid, "rank": rank, "start_ticks": ticks, "how": [*how, "suffers"]})


async def process_of(pid: int, text: str, look_s: float = LOOK_S) -> int:
    """Return the process that `text` means of the job of the process `pid`: the rank that it names, else the most
    stalled one, if one clearly is and `pid` is not the only one; else `pid`.
    """
    rank = search_terms(Wanted(text=text), ()).rank
    wanted = Wanted(pid=pid, rank=rank)
    found = await anyio.to_thread.run_sync(lambda: resolve(wanted, inventory.read(also=[pid])))
    if found.job is None or found.pid is None:
        return pid
    if rank is None and (several := [one.pid for one in found.job.ranks] or found.job.workers)[1:]:
        stalled = await anyio.to_thread.run_sync(lambda: _most_stalled(several[:_MOST], look_s))
        return pid if stalled is None else stalled
    return found.pid


def _most_stalled(pids: list[int], look_s: float) -> int | None:
    samples: list[dict[int, State]] = []
    for _ in range(_SAMPLES):
        samples.append(sampled(pids))
        time.sleep(look_s / _SAMPLES)
    return most_stalled(samples)


def running_jobs() -> tuple[Inventory, list[Job]]:
    """Return the processes of this host and its jobs: those with ranks, in a batch system, a pod or a container; if
    there are none, the processes outside of system services.
    """
    seen = inventory.read()
    found = [job for job in jobs(seen) if job.program not in LAUNCHERS]
    named = [job for job in found if job.kind not in ("process", "unit")]
    return seen, named or [job for job in found if job.kind == "process"]


def jobs_by_kind() -> tuple[Missed, list[Job], list[Job]]:
    """Return what could not be read, the jobs of this host that look like training or serving, and the other programs
    outside of system services; the longest running ones first.
    """
    seen = inventory.read()
    likely: list[Job] = []
    others: list[Job] = []
    for job in jobs(seen):
        if job.program in LAUNCHERS or job.kind == "unit":
            continue
        fits = bool(job.ranks) or any(has_ai_library(pid) for pid in job.workers[:_MOST]) or is_ai_program(job.program)
        (likely if fits else others).append(job)
    for found in (likely, others):
        found.sort(key=lambda job: -job.age_s)
    return seen.missed, likely, others
