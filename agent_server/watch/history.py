"""The operation behind ``whystall history`` and the MCP tool: read the history of the watch, and judge a span of it."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.models import Wanted
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.agent_server.ticketing.oncall.times import parse_span, parse_time
from whystall.agent_server.watch.path_history import path_history
from whystall.tools.collect.continuous import directory_of_watch
from whystall.tools.collect.slice_history import LOG_NAME, RUNNING, HistoryRow, Minute, history_minutes
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params
from whystall.tools.contract.result import BlindSpot, CollectorCoverage, Coverage, Status, ToolResult
from whystall.tools.contract.text import clean
from whystall.tools.history.blind_spots import blind_spots
from whystall.tools.history.data import WATCHED, HistoryData
from whystall.tools.history.grid import grid_of
from whystall.tools.history.path_changes import findings_of_path
from whystall.tools.history.summary import PARTS, Spans, at_text, findings_of, ns_of, summarise

_LATE_NS = 90_000_000_000  # the watch writes a minute when it is over
_PARTIAL = frozenset({"history_gap", "history_begins", "history_lowered", "events_lost"})
_MOST_NAMES = 20
_Moment = Annotated[str, Field(max_length=40)]
Wants = Callable[[Minute, HistoryRow], bool]


class HistoryParams(Params):
    """A span of the history of the watch, and what it is compared with."""

    since: Annotated[_Moment, Field(description="begin: 30m, 2h, 1d ago, or 2026-03-29T09:00Z")] = "1h"
    until: Annotated[_Moment, Field(description="end, likewise; empty: now")] = ""
    baseline_since: Annotated[_Moment, Field(description="begin of a span to compare with")] = ""
    baseline_until: Annotated[_Moment, Field(description="its end; empty: where the other span begins")] = ""
    before: Annotated[bool, Field(description="compare with the span of the same length before it")] = False
    job: Annotated[str, Field(max_length=200, description="only this job, as watch names it: llama-sft")] = ""
    pid: Annotated[int | None, Field(ge=1, le=4194304, description="only this process")] = None
    top: Annotated[int, Field(ge=1, le=1000, description="rows per table")] = 10
    parts: Annotated[int, Field(ge=1, le=120, description="parts of the span in which rows are given")] = PARTS

    @model_validator(mode="after")
    def _one_baseline(self) -> HistoryParams:
        if self.before and (self.baseline_since or self.baseline_until):
            raise ValueError("give before or baseline_since, not both")
        if self.baseline_until and not self.baseline_since:
            raise ValueError("baseline_until needs baseline_since")
        return self


@dataclass(frozen=True)
class Judged:
    """The result, and the matrices from which pages are drawn."""

    result: ToolResult[HistoryData]
    spans: Spans


def history(params: HistoryParams, directory: Path | None = None) -> Judged:
    """Return what was recorded below `directory` (None: by the watch of this host). Blocks.

    Raises `ToolError`: not_found if no watch has recorded here, or not such a job; bad_argument, bad_recording.
    """
    now = time.time_ns()
    start, end = _span(params.since, params.until, now, "since", "until")
    baseline = _baseline(params, start, end, now)
    directory = directory or directory_of_watch()
    minutes = _minutes(directory)
    asked = _wanted(params, minutes)
    unsampled = _unsampled(minutes, [(start, end), *([baseline] if baseline is not None else [])])
    wanted: Wants = (lambda minute, row: row.place.state != RUNNING and asked(minute, row)) if unsampled else asked
    grid = grid_of(minutes, start, end, wanted)
    before = grid_of(minutes, *baseline, wanted) if baseline is not None else None
    spans = Spans(grid, before, sampled=not unsampled)
    data = summarise(spans, params.top, params.parts)
    spots = [BlindSpot(code="history_unsampled", detail=f"{unsampled} min")] if unsampled else []
    begins = minutes[0].first_ns
    judged = [(grid, (start, end))]
    if before is not None and baseline is not None:
        judged.append((before, baseline))
    for one, (first, last) in judged:
        inside = [minute for minute in minutes if first - 60_000_000_000 < minute.minute_ns < last]
        label = "" if one is grid else "baseline: "
        for spot in blind_spots(one, inside, begins, min(last, now - _LATE_NS), wanted):
            spots.append(spot.model_copy(update={"detail": label + spot.detail}))
    if data.tested is None:
        other = f", baseline: {data.minutes_before:g} min" if before is not None else ""
        spots.append(BlindSpot(code="history_short", detail=f"{data.minutes:g} min{other}"))
    findings = findings_of(data)
    if baseline is not None:
        data.path, unknown = path_history(directory, minutes, wanted, params.pid, (baseline, (start, end)), params.top)
        spots += unknown
        if data.path is not None:
            part = (max(0, ns_of(at) - start) for at in (data.path.after.since, data.path.after.until))
            findings += findings_of_path(data.path, *part)
    recorded = float(grid.recorded.sum())
    seen = sum(grid.count)
    partial = recorded == 0 or any(spot.code in _PARTIAL for spot in spots)
    coverage = Coverage(
        recording=str(directory / LOG_NAME),
        host=clean(socket.gethostname()),
        kernel=clean(platform.release()),
        start=at_text(start),
        window_s=round(recorded, 3),
        requested_s=(end - start) / 1e9,
        target=_target(params),
        collectors=[
            CollectorCoverage(
                name="switches", engine="ebpf", why="whystall watch", seen=seen, kept=len(grid.keys),
                lost=sum(minute.lost for minute in minutes if start <= minute.minute_ns < end), proven=recorded > 0,
            )
        ],
        not_seen=spots,
    )  # fmt: skip
    result = ToolResult[HistoryData](
        tool="history",
        status=Status.PARTIAL if partial else Status.OK if grid.keys else Status.NO_DATA,
        findings=findings,
        coverage=coverage,
        data=data,
        totals={
            "rows": len(data.rows) + data.left_out,
            "running": len(data.running) + data.running_left_out,
            "changes": len(data.changes) + data.changes_left_out,
        },
    )
    return Judged(result, spans)


def _unsampled(minutes: Sequence[Minute], spans: Sequence[tuple[int, int]]) -> int:
    """Return the number of minutes of the spans without CPU samples, as an older watch wrote them."""
    inside = (one for one in minutes if any(first - 60_000_000_000 < one.minute_ns < last for first, last in spans))
    return sum(1 for one in inside if any(one.recorded_ns) and not one.sample_ns)


def _target(params: HistoryParams) -> str:
    parts = [f"job {clean(params.job)}"] if params.job else []
    return ", ".join([*parts, *([f"process {params.pid}"] if params.pid else [])]) or WATCHED


def _minutes(directory: Path) -> Sequence[Minute]:
    """Return all minutes of the history, at least one."""
    if not (directory / LOG_NAME).exists():
        message = f"no watch has recorded on this host: there is no {directory / LOG_NAME}"
        raise ToolError(ErrorCode.NOT_FOUND, message, "start `whystall watch`, or set WHYSTALL_HOME to its directory")
    found = history_minutes(directory, 0, time.time_ns() + _LATE_NS)
    if not found:
        message = "the watch has not completed a minute of history yet"
        raise ToolError(ErrorCode.NOT_FOUND, message, "ask again in a minute; `whystall doctor` shows whether it runs")
    return sorted(found, key=lambda minute: minute.minute_ns)


def _span(since: str, until: str, now: int, first: str, last: str, default: int = 0) -> tuple[int, int]:
    end = _moment(until, now, last) if until else default or now
    start = _moment(since, now, first)
    if start >= end:
        message = f"{first} {clean(since)!r} is not before {last} {clean(until)!r}" if until else f"{first} is not past"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give an earlier {first}")
    return start, end


def _baseline(params: HistoryParams, start: int, end: int, now: int) -> tuple[int, int] | None:
    if params.before:
        return 2 * start - end, start
    if not params.baseline_since:
        return None
    return _span(params.baseline_since, params.baseline_until, now, "baseline_since", "baseline_until", start)


def _moment(text: str, now: int, name: str) -> int:
    """Return an instant, ns of CLOCK_REALTIME: a time, or how long ago."""
    if "T" in text or "-" in text:
        return int(parse_time(text, ZoneInfo("UTC"), name).timestamp() * 1e9)
    return now - int(parse_span(text, name).total_seconds() * 1e9)


def _wanted(params: HistoryParams, minutes: Sequence[Minute]) -> Wants:
    chosen = _of_job(params.job, minutes) if params.job else None
    pid = params.pid
    return lambda minute, row: (pid is None or row.pid == pid) and (chosen is None or chosen(minute, row))


def _of_job(text: str, minutes: Sequence[Minute]) -> Wants:
    """Return which rows are of the job `text`: one that was recorded by this name or id, else part of the name of just
    one, else the running job that these words mean."""
    known = list(dict.fromkeys(job for minute in minutes for job in minute.jobs.values()))
    word = text.strip().casefold()
    ids = {job.id for job in known if word in (job.id.casefold(), job.name.casefold())}
    if not ids:
        alike = {job.name for job in known if word in job.name.casefold()}
        if len(alike) > 1:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT, f"{clean(text)!r} means several recorded jobs", f"give one of: {_list(alike)}"
            )
        ids = {job.id for job in known if job.name in alike}
    if not ids and (meant := resolve(Wanted(text=text), inventory.read()).job) is not None:
        pids = frozenset(meant.pids)
        if any(row.pid in pids for minute in minutes for row in minute.rows):
            return lambda _minute, row: row.pid in pids
    if not ids:
        names = _list({job.name for job in known})
        remedy = f"recorded jobs: {names}" if names else "no job was recorded: see `whystall doctor`"
        raise ToolError(ErrorCode.NOT_FOUND, f"the history has no job {clean(text)!r}", remedy)
    return lambda minute, row: (job := minute.jobs.get(row.pid)) is not None and job.id in ids


def _list(names: set[str]) -> str:
    found = sorted(map(clean, names))
    return ", ".join(found[:_MOST_NAMES]) + (", ..." if len(found) > _MOST_NAMES else "")
