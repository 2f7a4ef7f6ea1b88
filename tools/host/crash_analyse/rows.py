"""The rows of crash_analyse: repeated reports folded, failures of ranks, and the first of them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, NamedTuple

import polars as pl
from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.crashes.first_failure import First, Happened, Reason, first_failure
from whystall.tools.crashes.read import SEPARATOR
from whystall.tools.crashes.rules import kernel_rules
from whystall.tools.crashes.times import Instant

_UNTOLD = -1000
"""Status of a failure that states none."""
_ABORTED = "SIGABRT"
_REACTIONS = frozenset({"signal", "exit_code", "core_file"})


class CrashRow(Model):
    """A crash report of the kernel, and how often it is there (`count`).

    `crash_class`: a class of crashes; `severity`: of the class; `title`, `also`: names of the crash: two crashes are
    of the same bug if they share one; `function`: the one at fault; `corrupted`: why the report is not whole, else
    empty; `origin`: kernel, or unknown where the log does not state who wrote its lines; `start`, `end`: bytes of the
    first report in `log`; `boot_s`: since boot; `when`: by the log, RFC 3339 (without a zone if it states
    none). `cgroup` to `allocator`: of a kill for lack of memory; `line`: in `log`, from 1, 0 unknown; `module`: of
    `function`, if it is not of the kernel itself.
    """

    crash_class: str
    severity: str
    title: str
    also: list[str] = Field(default_factory=list)
    function: str = ""
    count: int = 1
    process: str = ""
    pid: int = -1
    corrupted: str = ""
    panicked: bool = False
    origin: str = "unknown"
    taint: str = ""
    release: str = ""
    modules: list[str] = Field(default_factory=list)
    frames: list[str] = Field(default_factory=list)
    host: str = ""
    when: str = ""
    boot_s: float | None = None
    cgroup: str = ""
    limit_cgroup: str = ""
    anon_bytes: int | None = None
    allocator: str = ""
    log: str = ""
    start: int = 0
    end: int = 0
    line: int = 0
    module: str = ""


class FailureRow(Model):
    """A failure of a program. `status`: exit code, or minus the signal; `reaction`: to the failure of another rank;
    `exact`: it was at `when`, else after it."""

    crash_class: str
    title: str
    detail: str = ""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    process: str = ""
    host: str = ""
    status: int | None = None
    signal: str = ""
    reaction: bool = False
    code: str = ""
    when: str = ""
    exact: bool = False
    log: str = ""
    start: int = 0
    line: int = 0


class FirstRow(Model):
    """Which process failed first. `reason`: why, or why it is left open (then `who` is empty): see the texts;
    `lead_ms`: by how much it surely precedes the others; `candidates`: those that may be."""

    reason: Reason
    who: str = ""
    rank: int | None = None
    crash_class: str = ""
    title: str = ""
    log: str = ""
    lead_ms: float = 0
    candidates: list[str] = Field(default_factory=list)


class _Event(NamedTuple):
    """A failure of a process, or a kill by the kernel."""

    row: FailureRow | CrashRow
    happened: Happened


def crash_rows(reports: pl.DataFrame) -> list[CrashRow]:
    """Return a row per title and class, the most severe first; the earliest report of each."""
    severity = kernel_rules().severity
    rows: dict[tuple[str, str], CrashRow] = {}
    for one in reports.iter_rows(named=True):
        key = (one["kind"], one["title"])
        if key in rows:
            rows[key].count += 1
            continue
        rows[key] = CrashRow(
            crash_class=one["kind"],
            severity=severity.get(one["kind"], "major"),
            process=one["comm"],
            corrupted=one["why"],
            when=_when(one["at_us"], one["zoned"]),
            log=one["path"],
            modules=one["modules"].split(),
            frames=one["functions"].split(),
            also=[title for title in one["also"].split(SEPARATOR) if title],
            boot_s=_known(one["boot_s"]),
            anon_bytes=_known(one["anon_bytes"]),
            line=max(one["line"], 0),
            module=one["module"],
            **{name: one[name] for name in _SAME},
        )
    order = ["critical", "major", "minor"]
    return sorted(rows.values(), key=lambda row: (order.index(row.severity), row.log, row.start))


_SAME = (
    *("title", "function", "pid", "panicked", "origin", "taint", "release", "host"),
    *("cgroup", "limit_cgroup", "allocator", "start", "end"),
)


def failure_rows(failures: pl.DataFrame) -> list[FailureRow]:
    """Return a row per failure, in the order of the logs.

    A launcher names a process by its pid first, and by its rank and host in its summary: each row gets both.
    """
    rows = [
        FailureRow(
            crash_class=one["kind"],
            process=one["comm"],
            reaction=one["of_other"],
            code=one["frames"][0] if one["frames"] else "",
            when=_when(one["at_us"] if one["at_us"] >= 0 else one["until_us"], one["zoned"]),
            log=one["path"],
            status=one["status"] if one["status"] != _UNTOLD else None,
            rank=_known(one["rank"]),
            local_rank=_known(one["local_rank"]),
            pid=_known(one["pid"]),
            line=max(one["line"], 0),
            **{name: one[name] for name in ("title", "detail", "host", "signal", "exact", "start")},
        )
        for one in failures.iter_rows(named=True)
    ]
    known = {(row.log, row.pid): row for row in rows if row.pid is not None and row.rank is not None}
    same = [known.get((row.log, row.pid)) if row.pid is not None else None for row in rows]
    return _reacted([_identified(row, one) for row, one in zip(rows, same, strict=True)])


def _reacted(rows: list[FailureRow]) -> list[FailureRow]:
    """Return `rows`, in which the end of a process is a reaction too if all that the process reported are reactions.

    PyTorch's watchdog reports a collective that timed out and aborts: the launcher then states exit code 1 or SIGABRT.
    """
    own = {_who(row) for row in rows if not row.reaction and not _follows(row)}
    reacted = {_who(row) for row in rows if row.reaction} - own
    followed = {"reaction": True}
    return [row.model_copy(update=followed) if _follows(row) and _who(row) in reacted else row for row in rows]


def _follows(row: FailureRow) -> bool:
    """Return whether `row` states only how a process ended, as it does after an error that it reported before."""
    return row.crash_class == "exit_code" or row.signal == _ABORTED


def _identified(row: FailureRow, same: FailureRow | None) -> FailureRow:
    """Return `row` with rank and host of `same`, a row of the same process, if it states no rank itself."""
    if same is None or row.rank is not None:
        return row
    local = row.local_rank if row.local_rank is not None else same.local_rank
    return row.model_copy(update={"rank": same.rank, "local_rank": local, "host": row.host or same.host})


def _known(number: Any) -> Any:
    return number if number >= 0 else None


def first_row(failures: pl.DataFrame, reports: pl.DataFrame, skew_s: float) -> FirstRow | None:
    """Return which process of a job failed first; None if none failed.

    A kill by the kernel counts as the failure of the rank whose pid it names, else of a process of its own.
    """
    rows = failure_rows(failures)
    ranks = {row.pid: row.rank for row in rows if row.pid is not None and row.rank is not None}
    events: list[_Event] = []
    for row, one in zip(rows, failures.iter_rows(named=True), strict=True):
        at = _instant(one["at_us"], one["width_us"], one["zoned"])
        until = _instant(one["until_us"], one["until_width_us"], one["zoned"])
        events.append(_event(row, _who(row), one["host"], at, until, one["exact"], row.reaction, len(events)))
    for one in reports.filter(pl.col("kind") == "oom").iter_rows(named=True):
        (crash,) = crash_rows(reports.filter((pl.col("path") == one["path"]) & (pl.col("start") == one["start"])))
        at = _instant(one["at_us"], one["width_us"], one["zoned"])
        rank = ranks.get(one["pid"], -1)
        who = f"rank {rank}" if rank >= 0 else _killed(one["comm"], one["pid"]) or one["path"]
        events.append(_event(crash, who, one["host"], at, None, True, False, len(events)))
    if not events:
        return None
    found = first_failure([event.happened for event in events], int(skew_s * 1e9))
    return _first(found, events)


def _event(
    row: FailureRow | CrashRow,
    who: str,
    host: str,
    at: Instant | None,
    until: Instant | None,
    exact: bool,
    of_other: bool,
    index: int,
) -> _Event:
    return _Event(row, Happened(index, who, host, at, exact and at is not None, of_other, until))


def _killed(comm: str, pid: int) -> str:
    """Return the name of a killed process; empty if the log does not state it."""
    return f"{comm} ({pid})".strip() if pid >= 0 else comm


def _who(row: FailureRow) -> str:
    if row.rank is not None:
        return f"rank {row.rank}"
    if row.local_rank is not None:
        return f"local rank {row.local_rank} {row.host}".strip()
    return f"pid {row.pid}" if row.pid is not None else row.log


def _first(found: First, events: list[_Event]) -> FirstRow:
    names = list(dict.fromkeys(events[index].happened.who for index in found.candidates))[:16]
    if found.index < 0:
        return FirstRow(reason=found.reason, candidates=names)
    event = events[found.index]
    # what the process stated itself says more than how it ended
    own = [one.row for one in events if one.happened.who == event.happened.who and not one.happened.of_other]
    row = next((one for one in own if one.crash_class not in _REACTIONS), event.row)
    rank = next((one.rank for one in own if isinstance(one, FailureRow) and one.rank is not None), None)
    return FirstRow(
        reason=found.reason,
        who=event.happened.who,
        rank=rank,
        crash_class=row.crash_class,
        title=row.title,
        log=row.log,
        lead_ms=found.lead_ns / 1e6,
        candidates=names,
    )


def _instant(at_us: int, width_us: int, zoned: bool) -> Instant | None:
    return None if at_us < 0 else Instant(at_us * 1000, max(width_us, 1) * 1000, zoned, True)


def _when(at_us: int, zoned: bool) -> str:
    if at_us < 0:
        return ""
    try:
        text = datetime.fromtimestamp(at_us / 1e6, timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return ""
    return text.replace("+00:00", "Z") if zoned else text.removesuffix("+00:00")
