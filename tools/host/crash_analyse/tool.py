"""crash_analyse: which crashes the logs of a host or a job state, and which process of the job failed first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import Params as BaseParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.crashes.read import SEPARATOR
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.crash_analyse.rows import (
    CrashRow,
    FailureRow,
    FirstRow,
    crash_rows,
    failure_rows,
    first_row,
)
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_MOST_FINDINGS = 40
_PATH = 4096


class Params(BaseParams):
    """Parameters of crash_analyse."""

    log: Annotated[
        list[str] | None,
        Field(
            max_length=4096, description="path of a log, core or error file, or a directory of them; may be repeated"
        ),
    ] = None
    # hosts that use NTP differ by milliseconds; a second leaves room for one that has just started
    skew_s: Annotated[
        float, Field(ge=0, le=3600, description="seconds by which clocks of different hosts may differ")
    ] = 1.0
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10

    @model_validator(mode="after")
    def _paths(self) -> Params:
        if any(not 0 < len(path) <= _PATH for path in self.log or ()):
            raise ValueError(f"a path of log has 1 to {_PATH} characters")
        return self


class Data(Model):
    """Crashes of the kernel, the most severe first; failures of programs; which process failed first."""

    first: FirstRow | None = None
    crashes: list[CrashRow] = Field(default_factory=list)
    failures: list[FailureRow] = Field(default_factory=list)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return what the logs in `recording` state."""
    reports, failures = recording.table("crashes.reports"), recording.table("crashes.failures")
    crashes, failed = crash_rows(reports), failure_rows(failures)
    first = first_row(failures, reports, params.skew_s)
    interval = recording.manifest.window_ns
    found = [_crash(row, interval) for row in crashes]
    found += [_failure(row, interval) for row in _distinct(failed)]
    if first is not None and first.who:
        found.insert(0, _first(first, interval))
    # what failed by itself before what reacted to it
    failed.sort(key=lambda row: row.reaction)
    return Judgement(
        findings=found[:_MOST_FINDINGS],
        data=Data(first=first, crashes=crashes[: params.top], failures=failed[: params.top]),
        seen=reports.height + failures.height,
        totals={"crashes": len(crashes), "failures": len(failed)},
        not_seen=[] if crashes or failed else [("no_crash_logged", "")],
    )


def _distinct(rows: list[FailureRow]) -> list[FailureRow]:
    """Return one row per process and title; those that failed by themselves first."""
    by_key: dict[tuple[int | None, int | None, str], FailureRow] = {}
    for row in rows:
        by_key.setdefault((row.rank, row.pid, row.title), row)
    return sorted(by_key.values(), key=lambda row: row.reaction)


def _crash(row: CrashRow, window_ns: int) -> Finding:
    subject = Subject(
        type="host",
        host=row.host or None,
        comm=row.process or None,
        pid=row.pid if row.pid > 0 else None,
        cgroup=row.cgroup or None,
    )
    words = {
        "name": row.title,
        "what": row.crash_class,
        "also": SEPARATOR.join(row.also),
        "function": row.function,
        "module": row.module,
        "limit_of": row.limit_cgroup,
        "detail": row.allocator,
        "broken": row.corrupted,
        "origin": "kernel" if row.origin == "kernel" else "",
        "taint": row.taint,
        "log": row.log,
    }
    metrics = {
        "window_pct": 100.0 if row.severity == "critical" else None,
        "count": float(row.count) if row.count > 1 else None,
        "boot_s": row.boot_s,
        "line": float(row.line) if row.line else None,
        "anon_bytes": None if row.anon_bytes is None else float(row.anon_bytes),
    }
    kept = {name: text for name, text in words.items() if text}
    return finding("crash.kernel", subject, window(window_ns), metrics, Severity(row.severity), kept)


def _failure(row: FailureRow, window_ns: int) -> Finding:
    subject = Subject(
        type="process",
        comm=row.process or (None if row.rank is not None else Path(row.log).name),
        pid=row.pid or None,
        rank=row.rank,
        host=row.host or None,
    )
    words = {"log": row.log, "name": row.title, "what": row.crash_class, "code": row.code, "detail": row.detail}
    words["reaction"] = "rank" if row.reaction else ""
    status = None if row.status is None else float(row.status)
    line = float(row.line) if row.line else None
    metrics = {"window_pct": None if row.reaction else 100.0, "status": status, "line": line}
    kept = {name: text for name, text in words.items() if text}
    bad = Severity.MINOR if row.reaction else Severity.CRITICAL
    return finding("crash.program", subject, window(window_ns), metrics, bad, kept)


def _first(row: FirstRow, window_ns: int) -> Finding:
    known = row.rank is not None
    subject = Subject(type="process", rank=row.rank, comm=None if known else row.who)
    words = {"name": row.title, "what": row.crash_class, "log": row.log}
    metrics = {"lead_ms": row.lead_ms or None, "count": float(len(row.candidates)) if len(row.candidates) > 1 else None}
    return finding("crash.first", subject, window(window_ns), metrics, Severity.CRITICAL, words)


TOOL = Tool(
    name="crash_analyse",
    title="Crashes in logs",
    description=(
        "What crashed, by logs: kernel panics, oopses, lockups, stalls, kills for lack of memory; exceptions, CUDA and "
        "NCCL failures, exit codes and core files of ranks; and which rank failed first."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("crashes")],
    judge=judge,
    kinds=frozenset({"crash.kernel", "crash.program", "crash.first"}),
    reads="logs",
)
