"""fileslower: synchronous file operations slower than a threshold, by full path."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import SyscallOptions
from whystall.tools.contract.findings import Finding, Interval, Subject
from whystall.tools.contract.params import LiveParams, MinMs
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.host.common.file_devices import FileDevices
from whystall.tools.host.common.file_operations import DURABLE, FILE_CLASS
from whystall.tools.host.common.findings import finding, severity
from whystall.tools.host.common.latency import quantile, slot_quantile
from whystall.tools.host.common.stack_frames import kernel_path
from whystall.tools.host.fileslower.episodes import Call, Episode, episodes, period_s
from whystall.tools.host.fileslower.totals import (
    ABNORMAL_PCT,
    CLASSES,
    PARTS,
    bytes_by_position,
    bytes_moved,
    many_fast,
    normal,
    spent_ns,
)
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_LONG_MS = 1000.0
_ENDLESS = 0.9
# Calls that give a file another name or none.
_RENAMES = frozenset({"unlink", "unlinkat", "rename", "renameat", "renameat2"})


class Params(LiveParams):
    """Parameters of fileslower."""

    min_ms: MinMs = 10.0


class Event(Model):
    """One slow operation. Times in ms since the window began; the four parts add up to `latency_ms`. None: not
    reported by the engine."""

    at_ms: float
    pid: int
    tid: int
    comm: str
    operation: str
    path: str
    bytes_asked: int
    bytes_returned: int
    offset: int
    direct: bool | None
    latency_ms: float
    oncpu_ms: float | None
    blocked_ms: float | None
    sleep_ms: float | None
    runnable_ms: float | None
    in_flight: bool


class FileRow(Model):
    """One file with all its operations, fast ones included. `period_s`: of its slow episodes, if they recur."""

    path: str
    filesystem: str
    operations: str
    count: int
    bytes: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    slow: int
    period_s: float | None


class Data(Model):
    """Slowest events first; files by time lost; `in_flight`: operations that had not returned when the window ended."""

    events: list[Event] = Field(default_factory=list)
    files: list[FileRow] = Field(default_factory=list)
    in_flight: list[Event] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need("syscalls", SyscallOptions(min_ns=int(params.min_ms * 1e6)))]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the slow file operations of `recording`."""
    calls = recording.table("syscalls.calls").filter(pl.col("syscall").is_in(list(FILE_CLASS)) & (pl.col("file") >= 0))
    files = recording.table("syscalls.files").select("file", "path", "fstype", "complete")
    slow = (
        calls.filter(pl.col("end_ns") - pl.col("start_ns") >= int(params.min_ms * 1e6))
        .join(files, on="file", how="inner")
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("wall_ns"))
        .sort("wall_ns", descending=True)
    )
    totals = recording.table("syscalls.totals").filter(pl.col("syscall").is_in(list(FILE_CLASS)))
    rows = slow.to_dicts()
    stacks = {r["stack"]: r["frames"] for r in recording.table("syscalls.stacks").iter_rows(named=True)}
    moved = bytes_moved(recording.table("syscalls.latency"))
    devices = FileDevices(recording)
    findings = _abnormal(rows, stacks, moved, spent_ns(totals), recording.manifest.window_ns, devices)
    findings += many_fast(totals, findings, recording)
    findings += normal(findings, totals, recording)
    file_rows = _file_rows(recording, rows, files)
    not_seen = [("io_uring", "")]
    incomplete = slow.filter(~pl.col("complete"))["path"].n_unique()
    if incomplete:
        not_seen.append(("path_incomplete", str(incomplete)))
    return Judgement(
        findings=findings,
        data=Data(
            events=[_event(r) for r in rows[: params.top]],
            files=file_rows[: params.top],
            in_flight=[_event(r) for r in rows if r["in_flight"]][: params.top],
        ),
        seen=max(int(totals["count"].sum()), len(rows)),
        totals={"events": len(rows), "files": len(file_rows)},
        not_seen=not_seen,
    )


def _event(row: dict[str, Any]) -> Event:
    return Event(
        at_ms=row["start_ns"] / 1e6,
        pid=row["pid"],
        tid=row["tid"],
        comm=row["comm"],
        operation=row["syscall"],
        path=row["path"],
        bytes_asked=row["asked"],
        bytes_returned=row["returned"],
        offset=row["offset"],
        direct=row["direct"],
        latency_ms=row["wall_ns"] / 1e6,
        oncpu_ms=_ms(row["oncpu_ns"]),
        blocked_ms=_ms(row["blocked_ns"]),
        sleep_ms=_ms(row["sleep_ns"]),
        runnable_ms=_ms(row["runnable_ns"]),
        in_flight=row["in_flight"],
    )


def _ms(ns: int) -> float | None:
    return ns / 1e6 if ns >= 0 else None


def _abnormal(
    rows: list[dict[str, Any]],
    stacks: dict[int, list[str]],
    moved: dict[tuple[int, int], int],
    spent: dict[int, int],
    window_ns: int,
    devices: FileDevices,
) -> list[Finding]:
    """Return one finding per thread and series of files: the cost of its episodes, and where the time went."""
    groups: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["pid"], row["tid"], path_pattern(row["path"])), []).append(row)
    found = [
        _finding(group, stacks, moved, spent.get(thread[1], 0), window_ns, devices) for thread, group in groups.items()
    ]
    return sorted(found, key=lambda f: f.metrics["window_pct"], reverse=True)


def _finding(
    group: list[dict[str, Any]],
    stacks: dict[int, list[str]],
    moved: dict[tuple[int, int], int],
    spent: int,
    window_ns: int,
    devices: FileDevices,
) -> Finding:
    runs = _episodes(group, window_ns)
    walls = [r["wall_ns"] for r in group]
    total = sum(walls)
    # Episodes include pauses for unlisted fast calls, so `spent`, the time in all file calls, is an upper bound.
    share = 100 * min(sum(e.duration_ns for e in runs), max(spent, total)) / max(window_ns, 1)
    in_flight = any(r["in_flight"] for r in group)
    # By (file, path): files renamed in turn onto one path share the path.
    counted: Counter[str] = Counter()
    for (pid, file), path in {(r["pid"], r["file"]): r["path"] for r in group}.items():
        if (pid, file) in moved:
            counted[path] += moved[pid, file]
    total_bytes = sum(counted.values()) if counted else bytes_by_position(group)
    times = Counter(e.calls[0].path for e in runs)
    # The median: a file may have been partly written before the window.
    each = statistics.median(b / times[p] for p, b in counted.items()) if counted else total_bytes / len(runs)
    durations = [e.duration_ns for e in runs]
    metrics: dict[str, float | None] = {
        "count": len(group),
        "total_ms": total / 1e6,
        "p50_ms": quantile(walls, 0.5) / 1e6,
        "p99_ms": quantile(walls, 0.99) / 1e6,
        "max_ms": max(walls) / 1e6,
        "bytes": total_bytes,
        "window_pct": share,
        "episodes": len(runs),
        "episode_ms": statistics.median(durations) / 1e6,
        "episode_max_ms": max(durations) / 1e6,
        "episode_bytes": each,
        **{
            f"{name}_pct": 100 * sum(r[f"{name}_ns"] for r in group) / max(total, 1)
            for name in PARTS
            if all(r[f"{name}_ns"] >= 0 for r in group)
        },
        "period_s": period_s([e.start_ns for e in runs]),
    }
    worst = max(group, key=lambda r: r["wall_ns"])
    paths = {r["path"] for r in group}
    attributes = {
        "example": worst["path"],
        "operations": "+".join(_by_time(group)),
        "in_flight": "yes" if in_flight else "no",
        **devices.of(paths),
    }
    if worst["fstype"]:
        attributes["filesystem"] = worst["fstype"]
    if worst["direct"] is not None:
        attributes["direct"] = "yes" if worst["direct"] else "no"
    if where := kernel_path(stacks.get(worst["kstack"], [])):
        attributes["kernel_path"] = where
    bad = share >= ABNORMAL_PCT or max(walls) / 1e6 >= _LONG_MS  # in flight: its age so far
    pid = worst["pid"] if worst["pid"] >= 0 else None
    return finding(
        f"file.slow_{FILE_CLASS[_by_time(group)[0]]}",
        Subject(type="file", pid=pid, tid=worst["tid"], comm=worst["comm"], path=path_series(paths)),
        Interval(start_ns=min(r["start_ns"] for r in group), end_ns=max(r["end_ns"] for r in group)),
        metrics,
        severity(share) if bad else None,
        attributes,
    )


def _episodes(rows: list[dict[str, Any]], window_ns: int) -> list[Episode]:
    """Group calls into episodes. If one episode fills 90 % of the window, treat each call as its own episode."""
    calls = [
        Call(r["start_ns"], r["end_ns"], r["path"], r["syscall"] in DURABLE, r["syscall"] in _RENAMES) for r in rows
    ]
    runs = episodes(calls)
    if len(runs) == 1 and runs[0].duration_ns >= _ENDLESS * window_ns:
        return [Episode((call,)) for call in runs[0].calls]
    return runs


def _by_time(group: list[dict[str, Any]]) -> list[str]:
    """Return the system calls of a group, longest total first."""
    spent: dict[str, int] = {}
    for row in group:
        spent[row["syscall"]] = spent.get(row["syscall"], 0) + row["wall_ns"]
    return sorted(spent, key=lambda call: -spent[call])


def _file_rows(recording: Recording, slow: list[dict[str, Any]], files: pl.DataFrame) -> list[FileRow]:
    latency = recording.table("syscalls.latency")
    known = {r["file"]: r for r in files.iter_rows(named=True)}
    slots: dict[int, list[dict[str, Any]]] = {}
    for row in latency.filter(pl.col("file") >= 0).iter_rows(named=True):
        slots.setdefault(row["file"], []).append(row)
    by_file: dict[int, list[dict[str, Any]]] = {}
    for row in slow:
        by_file.setdefault(row["file"], []).append(row)
    rows = []
    for file in sorted(by_file, key=lambda f: -sum(r["wall_ns"] for r in by_file[f])):
        events = by_file[file]
        histogram = [(s["low_ns"], s["high_ns"], s["count"]) for s in slots.get(file, [])]
        if not histogram:  # operations on a name (stat, unlink) have no open file
            histogram = [(r["wall_ns"], r["wall_ns"] + 1, 1) for r in events]
        worst = max(r["wall_ns"] for r in events)
        runs = _episodes(events, recording.manifest.window_ns)
        rows.append(
            FileRow(
                path=known[file]["path"],
                filesystem=known[file]["fstype"],
                operations="+".join(_by_time(events)),
                count=sum(c for _, _, c in histogram),
                bytes=sum(s["bytes"] for s in slots.get(file, [])),
                p50_ms=slot_quantile(histogram, 0.5) / 1e6,
                p99_ms=min(slot_quantile(histogram, 0.99), worst) / 1e6,
                max_ms=worst / 1e6,
                slow=len(events),
                period_s=period_s([e.start_ns for e in runs]),
            )
        )
    return rows


TOOL = Tool(
    name="fileslower",
    title="Slow file operations",
    description=(
        "Synchronous file operations (read, write, fsync, open, rename, ...) slower than min_ms, also in flight, "
        "with process, full path, and where the time went (on CPU, blocked, sleeping, runnable)."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(f"file.slow_{name}" for name in CLASSES),
    cost=3.0,
)
