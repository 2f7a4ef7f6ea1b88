"""Find all processes of the job that some words, or one of its processes, stand for."""

from __future__ import annotations

from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.grouping import jobs
from whystall.agent_server.job_lookup.models import Job, Wanted
from whystall.agent_server.job_lookup.resolve import resolve as resolve_words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import JobParams
from whystall.tools.recording.target import Target, resolve

_LISTED = 5
_REMEDY = "name one: `whystall jobs` lists what runs"


def whole_job(params: JobParams) -> Target:
    """Return all processes of the job of `params`: by words, or by a process, command or cgroup that belongs to it;
    without any, of the only job with ranks on this host.

    Raises `ToolError`: no_such_process when no job matches, bad_argument when several do, and what `resolve` raises.
    """
    if params.job is not None:
        return _target(_named(params.job))
    target = resolve(params)
    seen = jobs(inventory.read(also=target.pids))
    if target.everything:
        return _target(_only([job for job in seen if job.ranks], "have ranks"))
    found = [job for job in seen if not set(job.pids).isdisjoint(target.pids)]
    if len(several := [job for job in found if job.ranks]) > 1:
        _only(several, "match")
    pids = {pid for job in found for pid in job.pids}
    return target.model_copy(update={"pids": sorted(pids.union(target.pids))})


def _named(text: str) -> Job:
    found = resolve_words(Wanted(text=text), inventory.read())
    if found.status == "several" and found.job is None:
        return _only(found.jobs, f"fit {text[:100]!r}")
    if found.job is None:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"no job of this host fits {text[:100]!r}", _REMEDY)
    return found.job


def _only(found: list[Job], what: str) -> Job:
    if not found:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"no jobs of this host {what}", "give the pid of one of its ranks")
    if len(found) > 1:
        names = ", ".join(job.id for job in found[:_LISTED])
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{len(found)} jobs of this host {what}: {names}", _REMEDY)
    return found[0]


def _target(job: Job) -> Target:
    return Target(everything=False, pid=job.pid, comm=job.program[:15], pids=job.pids)
