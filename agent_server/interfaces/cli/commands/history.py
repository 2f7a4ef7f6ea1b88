"""``whystall history``."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Annotated, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.results import history_text
from whystall.agent_server.ticketing.oncall.times import parse_span
from whystall.tools.collect.continuous import directory_of_watch
from whystall.tools.collect.history_summary import summarise
from whystall.tools.collect.slice_history import HistoryRow, history_rows


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("history")(history)


def history(
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="how far back: 30m, 2h, 1d")] = "1h",
    before: Annotated[bool, typer.Option("--before", help="beside the span of the same length before it")] = False,
    pid: Annotated[
        Optional[int],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--pid", min=1, max=4194304, help="only this process"),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="most rows")] = 10,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Report what watched jobs waited for over time: seconds by thread, system call and line of code."""
    length = int(parse_span(since, "--since").total_seconds() * 1e9)
    end = time.time_ns()
    start = end - length
    rows = history_rows(directory_of_watch(), start - length if before else start, end + 1)
    wanted = [row for row in rows if pid is None or row.pid == pid]
    now, earlier = _parted(wanted, start)
    summary = summarise(now, earlier, (start, end), (_text(start), _text(end)), top)
    if as_json:
        console.say_json(summary)
    else:
        console.say(history_text(summary, lang))


def _parted(rows: list[HistoryRow], start: int) -> tuple[list[HistoryRow], list[HistoryRow]]:
    """Return the rows from `start` on, and those before."""
    return [row for row in rows if row.minute_ns >= start], [row for row in rows if row.minute_ns < start]


def _text(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
