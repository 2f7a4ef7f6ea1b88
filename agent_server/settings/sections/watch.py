"""``[watch]``: the jobs that ``whystall watch`` follows, and how."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.settings.section import Section

_Text = Annotated[str, Field(min_length=1, max_length=4096)]


_Many = Annotated[tuple[_Text, ...], Field(max_length=1000)]


class WatchSettings(Section):
    """Which jobs are watched; with nothing named, all that look like training or serving.

    `on`: ``whystall serve --transport http`` runs the watcher, too. `step_logs`, `heartbeats`, `progress_metrics`:
    signs of progress of the one job that is selected; a step log is ``FILE`` or ``FILE:REGEX``, a metric ``URL#NAME``.
    `learn_s`: nothing is reported about a process for so long after it is first seen. `hang_after_s`: a stall that
    lasts this long gets its ticket before it ends. `cpu_percent`: of one core; above it less detail is recorded.
    `per_job`, `per_host`: stalls investigated in an hour. `accelerator_calls`: also profile calls of accelerators'
    libraries (CUDA, HIP, CANN), by probes in them.
    """

    on: Annotated[bool, Field(description="run the watcher beside the server")] = False
    names: _Many = ()
    cgroups: _Many = ()
    pods: _Many = ()
    slurm_jobs: _Many = ()
    step_logs: _Many = ()
    heartbeats: _Many = ()
    progress_metrics: _Many = ()
    learn_s: Annotated[float, Field(ge=5, le=3600, description="seconds to learn the rhythm of a process")] = 60.0
    min_age_s: Annotated[float, Field(ge=0, le=3600, description="seconds until a process is watched")] = 10.0
    hang_after_s: Annotated[float, Field(ge=5, le=3600, description="seconds after which a stall is a hang")] = 60.0
    cpu_percent: Annotated[float, Field(ge=0.1, le=50, description="of one core, at most on average")] = 1.0
    job_percent: Annotated[
        float, Field(ge=0.1, le=50, description="of the jobs' CPU time, at most for the programs in the kernel")
    ] = 1.0
    log_mib: Annotated[int, Field(ge=4, le=4096, description="size of the log of waits")] = 64
    memory_mib: Annotated[int, Field(ge=48, le=4096, description="private memory; above it caches are freed")] = 128
    accelerator_calls: Annotated[bool, Field(description="profile launches and waits of CUDA, HIP and CANN")] = False
    per_job: Annotated[int, Field(ge=1, le=3600, description="stalls of a job that are investigated in an hour")] = 6
    per_host: Annotated[int, Field(ge=1, le=3600, description="of all jobs")] = 30
    tickets: Annotated[bool, Field(description="open tickets; else only log stalls")] = True
