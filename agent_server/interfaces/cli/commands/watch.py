"""``whystall watch``."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import Annotated, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.signals import signals

# typer reads these at run time, also on Python 3.10
_Texts = Optional[list[str]]  # noqa: UP045
_Pids = Optional[list[int]]  # noqa: UP045
_Number = Optional[float]  # noqa: UP045
_Switch = Optional[bool]  # noqa: UP045


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("watch")(watch)


def watch(
    pid: Annotated[_Pids, typer.Option("--pid", min=1, help="a process of the job; repeatable")] = None,
    name: Annotated[
        _Texts, typer.Option("--name", help="name of a job, as `whystall jobs` shows it; repeatable")
    ] = None,
    cgroup: Annotated[_Texts, typer.Option("--cgroup", help="control group; repeatable")] = None,
    pod: Annotated[_Texts, typer.Option("--pod", help="name or UID of a pod; repeatable")] = None,
    slurm_job: Annotated[_Texts, typer.Option("--slurm-job", help="number of a Slurm job; repeatable")] = None,
    step_log: Annotated[
        _Texts,
        typer.Option(
            "--step-log",
            metavar="FILE[:REGEX]",
            help=r"a file that grows with each step, or with each line in which REGEX is found: train.log:step (\d+); "
            "for one job; repeatable",
        ),
    ] = None,
    heartbeat: Annotated[
        _Texts, typer.Option("--heartbeat", metavar="FILE", help="a file that the job touches; for one job; repeatable")
    ] = None,
    progress_metric: Annotated[
        _Texts,
        typer.Option(
            "--progress-metric",
            metavar="URL#METRIC",
            help="a metric of Prometheus that changes with progress: http://127.0.0.1:9400/metrics#train_steps; "
            "for one job; repeatable",
        ),
    ] = None,
    learn: Annotated[
        _Number,
        typer.Option("--learn", min=5, max=3600, help="seconds to learn the rhythm of a process; default 60"),
    ] = None,
    min_age: Annotated[
        _Number,
        typer.Option("--min-age", min=0, max=3600, help="seconds until a process is watched; default 10"),
    ] = None,
    hang_after: Annotated[
        _Number,
        typer.Option("--hang-after", min=5, max=3600, help="seconds after which a stall is a hang; default 60"),
    ] = None,
    cpu_percent: Annotated[
        _Number,
        typer.Option("--cpu-percent", min=0.1, max=50, help="of one core: above, less detail is kept; default 1"),
    ] = None,
    accelerator_calls: Annotated[
        _Switch,
        typer.Option(
            "--accelerator-calls/--no-accelerator-calls",
            help="profile launches and waits of CUDA, HIP and CANN, by probes in their libraries; default: no",
        ),
    ] = None,
    tickets: Annotated[
        _Switch, typer.Option("--tickets/--no-tickets", help="open tickets, or only log stalls; default: tickets")
    ] = None,
    duration: Annotated[
        _Number, typer.Option("--duration", min=1, help="seconds to watch; without it, until a signal")
    ] = None,
) -> None:
    """Watch jobs without end, and explain their first stall from what was recorded before it was noticed.

    Without a name, all jobs of this host that look like training or serving are watched. What is not given here is
    taken from the section `watch` of the settings.
    """
    from whystall.agent_server.profile_push.pushes import ProfilePushes
    from whystall.agent_server.settings.load import load
    from whystall.agent_server.watch.cases import CaseLimits
    from whystall.agent_server.watch.jobs import Selection
    from whystall.agent_server.watch.progress_sources import SourceNames, check_one_job
    from whystall.agent_server.watch.service import WatchOptions, WatchService
    from whystall.tools.collect.continuous import directory_of_watch
    from whystall.tools.collect.continuous_budget import Limits

    loaded = load()
    found = loaded.watch
    named = any((pid, name, cgroup, pod, slurm_job))
    settings = Selection((), found.names, found.cgroups, found.pods, found.slurm_jobs)
    given = Selection(
        tuple(pid or ()), tuple(name or ()), tuple(cgroup or ()), tuple(pod or ()), tuple(slurm_job or ())
    )
    progress = SourceNames(
        tuple(step_log or found.step_logs),
        tuple(heartbeat or found.heartbeats),
        tuple(progress_metric or found.progress_metrics),
    )
    selection = given if named else settings
    check_one_job(selection, progress)
    options = WatchOptions(
        selection=selection,
        learn_s=found.learn_s if learn is None else learn,
        min_age_s=found.min_age_s if min_age is None else min_age,
        limits=CaseLimits(
            hang_after_s=found.hang_after_s if hang_after is None else hang_after,
            per_job=found.per_job,
            per_host=found.per_host,
        ),
        recorder=Limits(
            cpu_share=(found.cpu_percent if cpu_percent is None else cpu_percent) / 100,
            job_share=found.job_percent / 100,
            log_bytes=found.log_mib << 20,
            memory_bytes=found.memory_mib << 20,
            calls=found.accelerator_calls if accelerator_calls is None else accelerator_calls,
        ),
        tickets=found.tickets if tickets is None else tickets,
        progress=progress,
    )
    directory = directory_of_watch()
    with suppress(OSError):  # the recorder keeps its log in memory then, and reports so
        directory.mkdir(mode=0o700, exist_ok=True)
    end = None if duration is None else time.monotonic() + duration
    with ExitStack() as stack:
        wished = stack.enter_context(signals.as_wish())
        profiles = loaded.profiles
        pushes = stack.enter_context(ProfilePushes(profiles.every_s, directory)) if profiles.on else None

        def stopped(seconds: float) -> bool:
            until = time.monotonic() + seconds
            while not wished() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))
            return wished() or (end is not None and time.monotonic() >= end)

        def note(line: str) -> None:
            with suppress(OSError):  # the disk of its output is full, or its reader gone: it watches on
                console.note(f"whystall: {line}")

        state = pushes.state if pushes is not None else None
        WatchService(options, directory, note, state).run(stopped)
