"""``whystall top``."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.interfaces.signals import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from whystall.agent_server.watch.live import LiveJobs
    from whystall.agent_server.watch.now import Now
    from whystall.knowledge_base.models import Lang

_ONCE_S = 6.0

# typer reads these at run time, also on Python 3.10
_Texts = Optional[list[str]]  # noqa: UP045
_Pids = Optional[list[int]]  # noqa: UP045


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("top")(top)


def top(
    pid: Annotated[_Pids, typer.Option("--pid", min=1, help="a process of the job; repeatable")] = None,
    name: Annotated[
        _Texts, typer.Option("--name", help="name of a job, as `whystall jobs` shows it; repeatable")
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.5, max=60, help="seconds between updates")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print the table of some seconds, and end")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show what each job waits for now, updated each second; without a name, of all that look like AI jobs.

    Into a file or pipe, and with --json, the state of some seconds is printed once.
    """
    from whystall.agent_server.watch.jobs import Selection
    from whystall.agent_server.watch.live import LiveJobs

    with signals.as_wish() as wished, LiveJobs(Selection(tuple(pid or ()), tuple(name or ()))) as live:
        if once or as_json or not sys.stdout.isatty():
            for _ in _ticks(1.0, lambda: wished() or live.seen_s >= _ONCE_S):
                live.look()
            _print(live, as_json, lang)
        else:
            _show(live, every, wished, lang)


def _ticks(every: float, ended: Callable[[], bool]) -> Iterator[None]:
    """Yield each `every` seconds until `ended`."""
    while not ended():
        until = time.monotonic() + every
        yield
        while not ended() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))


def _print(live: LiveJobs, as_json: bool, lang: Lang) -> None:
    if as_json:
        jobs: list[dict[str, Any]] = [
            {
                "id": job.id,
                "name": job.name,
                "processes": [
                    _json(live.now[pid]) | {"rank": job.ranks.get(pid)} for pid in job.leaders if pid in live.now
                ],
            }
            for job in live.jobs
        ]
        console.say_json({"jobs": jobs, "cpu_share": live.cost})
        return
    from rich.console import Console

    from whystall.agent_server.presentation.top_table import top_table

    with (made := Console(width=160, color_system=None)).capture() as captured:
        made.print(top_table(live.jobs, live.now, live.cost, lang))
    console.say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _json(now: Now) -> dict[str, Any]:
    waits = [{"share": share, "call": spot.call, "line": spot.line} for share, spot in now.waits]
    return asdict(now) | {"waits": waits}


def _show(live: LiveJobs, every: float, wished: Callable[[], bool], lang: Lang) -> None:
    from rich.console import Console
    from rich.live import Live

    from whystall.agent_server.presentation.top_table import top_table

    with Live(console=Console(), screen=True, auto_refresh=False) as screen:
        for _ in _ticks(every, wished):
            live.look()
            screen.update(top_table(live.jobs, live.now, live.cost, lang), refresh=True)
