"""``whystall watch``."""

from __future__ import annotations

import time
from typing import Annotated, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.signals import signals


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("watch")(watch)


def watch(
    pid: Annotated[Optional[list[int]], typer.Option("--pid", help="a process of the job; repeatable")] = None,  # noqa: UP045
    name: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--name", help="name of a job, as `whystall jobs` shows it; repeatable"),
    ] = None,
    cgroup: Annotated[Optional[list[str]], typer.Option("--cgroup", help="control group; repeatable")] = None,  # noqa: UP045
    pod: Annotated[Optional[list[str]], typer.Option("--pod", help="name or UID of a pod; repeatable")] = None,  # noqa: UP045
    slurm_job: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--slurm-job", help="number of a Slurm job; repeatable"),
    ] = None,
    learn: Annotated[
        float, typer.Option("--learn", min=5, max=3600, help="seconds to learn the rhythm of a process")
    ] = 60.0,
    min_age: Annotated[
        float, typer.Option("--min-age", min=0, max=3600, help="seconds that a process lives before it is watched")
    ] = 10.0,
    hang_after: Annotated[
        float, typer.Option("--hang-after", min=5, max=3600, help="seconds after which a stall is reported as a hang")
    ] = 60.0,
    tickets: Annotated[bool, typer.Option("--tickets/--no-tickets", help="open tickets; else only log stalls")] = True,
    cpu_percent: Annotated[
        float, typer.Option("--cpu-percent", min=0.1, max=50, help="of one core: above it less detail is recorded")
    ] = 1.0,
    duration: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--duration", min=1, help="seconds to watch; without it, until a signal"),
    ] = None,
) -> None:
    """Watch jobs without end, and explain their first stall from what was recorded before it was noticed.

    Without a name, all jobs of this host that look like training or serving are watched.
    """
    from whystall.agent_server.watch.cases import CaseLimits
    from whystall.agent_server.watch.jobs import Selection
    from whystall.agent_server.watch.service import WatchOptions, WatchService
    from whystall.tools.collect.continuous import directory_of_watch
    from whystall.tools.collect.continuous_budget import Limits

    selection = Selection(
        tuple(pid or ()), tuple(name or ()), tuple(cgroup or ()), tuple(pod or ()), tuple(slurm_job or ())
    )
    options = WatchOptions(
        selection=selection,
        learn_s=learn,
        min_age_s=min_age,
        limits=CaseLimits(hang_after_s=hang_after),
        tickets=tickets,
        recorder=Limits(cpu_share=cpu_percent / 100),
    )
    directory = directory_of_watch()
    directory.mkdir(mode=0o700, exist_ok=True)
    end = None if duration is None else time.monotonic() + duration
    with signals.as_wish() as wished:

        def stopped(seconds: float) -> bool:
            until = time.monotonic() + seconds
            while not wished() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))
            return wished() or (end is not None and time.monotonic() >= end)

        WatchService(options, directory, lambda line: console.note(f"whystall: {line}")).run(stopped)
