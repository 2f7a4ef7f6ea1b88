"""memory_growth: how fast the memory of processes and cgroups grows, when it reaches a limit, and who was killed."""

from __future__ import annotations

from typing import Annotated, Any

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import MemoryUseOptions
from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host.common import oom
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.memory_growth.copies import Copies, copies
from whystall.tools.host.memory_growth.data import CopyRow, Data, GroupRow, KillRow, ProcessRow
from whystall.tools.host.memory_growth.trend import LEAST_READINGS, Trend, trend
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

# Readings per window: twice as many as the test for a trend needs, since a process that starts late has fewer.
_READINGS = 12
# Four hours is when the alert rules of Prometheus' node mixin call a resource that fills up critical
# (NodeFilesystemSpaceFillingUp: predict_linear by 4 h); an operator acts within the hour, not within minutes.
_WITHIN_MIN = 240.0
_MAJOR_S, _CRITICAL_S = 3600.0, 600.0
# The sum of PSS moves by some hundred KiB when programs load libraries.
_COPIED_BYTES = 4 << 20
_FINDINGS = 8
# A process that starts after this share of the window is not judged: every program grows while it starts.
_BORN = 0.2


class Params(LiveParams):
    """Parameters of memory_growth."""

    within_min: Annotated[
        float, Field(ge=1, le=100_000, description="abnormal if a limit is reached within so many minutes")
    ] = _WITHIN_MIN


def _needs(params: Params) -> list[Need]:
    period_ns = int(min(1.0, params.duration / _READINGS) * 1e9)
    return [Need("memory_use", MemoryUseOptions(period_ns=period_ns))]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the growth of processes, cgroups and the host, copies after forks, and kills."""
    processes = recording.table("memory_use.processes").sort("at_ns", maintain_order=True)
    groups = _group_rows(recording.table("memory_use.groups").sort("at_ns", maintain_order=True))
    rows, trends = _process_rows(processes, groups, recording.manifest.window_ns, recording.manifest.observer)
    copied = copies(processes)
    killed = oom.kills(recording)
    bound_s = params.within_min * 60
    found = [
        *oom.findings(recording, killed),
        *_process_findings(recording, rows, trends, bound_s),
        *_group_findings(recording, groups, bound_s),
        *_copy_findings(recording, copied, groups),
    ]
    most = max((row.readings for row in rows), default=0)
    return Judgement(
        findings=found,
        data=Data(
            processes=rows[: params.top],
            groups=groups[: params.top],
            copies=[_copy_row(one) for one in copied[: params.top]],
            kills=[_kill_row(kill) for kill in killed[: params.top]],
        ),
        seen=processes.height,
        totals={"processes": len(rows), "groups": len(groups), "copies": len(copied), "kills": len(killed)},
        not_seen=[("few_readings", str(most))] if most < LEAST_READINGS else [],
    )


def _process_rows(
    processes: pl.DataFrame, groups: list[GroupRow], window_ns: int, observer: int
) -> tuple[list[ProcessRow], dict[int, Trend | None]]:
    rows: list[ProcessRow] = []
    trends: dict[int, Trend | None] = {}
    processes = processes.filter(pl.col("pid") != observer)
    latest = min(processes["at_ns"].to_list(), default=0) + _BORN * window_ns
    own = pl.col("anon_bytes").clip(0) + pl.col("shmem_bytes").clip(0) + pl.col("swap_bytes").clip(0)
    for _, readings in processes.with_columns(own=own).group_by("pid", "start_ticks", maintain_order=True):
        last = readings.row(-1, named=True)
        sizes = list(readings.select("at_ns", pl.col("own").cast(pl.Float64)).iter_rows())
        change = trend(sizes) if sizes[0][0] <= latest else None
        until, limit_of = _until(last["cgroup"], change, groups)
        trends[last["pid"]] = change
        rows.append(
            ProcessRow(
                **{name: last[name] for name in ("pid", "comm", "cgroup", "rss_bytes", "anon_bytes")},
                shmem_bytes=last["shmem_bytes"],
                swap_bytes=last["swap_bytes"],
                bytes_rate=change.rate if change else None,
                rss_bytes_rate=_rate(readings, "rss_bytes") or 0.0,
                grown_bytes=readings["own"][-1] - readings["own"][0],
                steady=change is not None and change.steady,
                readings=readings.height,
                until_limit_s=until,
                limit_of=limit_of,
            )
        )
    rows.sort(key=lambda row: -(row.bytes_rate or 0.0))
    return rows, trends


def _group_rows(groups: pl.DataFrame) -> list[GroupRow]:
    rows = []
    firm = pl.col("used_bytes") - pl.col("reclaimable_bytes").clip(0)
    for (name,), readings in groups.with_columns(firm=firm).group_by("cgroup", maintain_order=True):
        # the largest reading: after an out-of-memory kill little is left
        last = readings.sort("firm").row(-1, named=True)
        change = trend(list(readings.select("at_ns", pl.col("firm").cast(pl.Float64)).iter_rows()))
        limit = last["limit_bytes"] if last["limit_bytes"] > 0 else None
        until = None
        if limit and change and change.steady and change.rate > 0:
            until = max(0.0, limit - last["firm"]) / change.rate
        kinds = ("anon", "shmem", "file", "slab", "swap")
        rows.append(
            GroupRow(
                cgroup=str(name) or oom.HOST,
                used_bytes=last["used_bytes"],
                reclaimable_bytes=max(0, last["reclaimable_bytes"]),
                limit_bytes=limit,
                bytes_rate=change.rate if change else None,
                steady=change is not None and change.steady,
                **{f"{kind}_bytes_rate": _rate(readings, f"{kind}_bytes") for kind in kinds},
                until_limit_s=until,
            )
        )
    return sorted(rows, key=lambda row: -(row.bytes_rate or 0.0))


def _rate(readings: pl.DataFrame, name: str) -> float | None:
    """Return the growth per second from the first to the last reading; None if it was not measured."""
    span_ns = readings["at_ns"][-1] - readings["at_ns"][0]
    first, last = readings[name][0], readings[name][-1]
    return None if first < 0 or last < 0 else (last - first) / max(span_ns / 1e9, 1e-3)


def _until(cgroup: str, change: Trend | None, groups: list[GroupRow]) -> tuple[float | None, str]:
    """Return the seconds until the first limit above a process is reached by its own growth alone, and whose limit it
    is."""
    if change is None or not change.steady or change.rate <= 0:
        return None, ""
    room = [
        (max(0.0, row.limit_bytes - row.used_bytes + row.reclaimable_bytes) / change.rate, row.cgroup)
        for row in groups
        if row.limit_bytes and (row.cgroup == oom.HOST or f"{cgroup}/".startswith(row.cgroup.rstrip("/") + "/"))
    ]
    return min(room, default=(None, ""))


def _grade(until_s: float | None, bound_s: float) -> Severity | None:
    if until_s is None or until_s > bound_s:
        return None
    if until_s <= _CRITICAL_S:
        return Severity.CRITICAL
    return Severity.MAJOR if until_s <= _MAJOR_S else Severity.MINOR


def _process_findings(
    recording: Recording, rows: list[ProcessRow], trends: dict[int, Trend | None], bound_s: float
) -> list[Finding]:
    """Return findings about processes that grow towards a limit, and normal ones about the target's others."""
    manifest = recording.manifest
    found = []
    for row in rows:
        change, grade = trends.get(row.pid), _grade(row.until_limit_s, bound_s)
        if change is None or (grade is None and row.pid not in manifest.target.pids):
            continue
        metrics: dict[str, Any] = {
            "rate": change.rate,
            "grown_bytes": change.grown_bytes,
            "rss_bytes": row.rss_bytes,
            "until_limit_s": row.until_limit_s,
            "p_value": change.p_value,
            "window_pct": 100.0 if grade is not None else 0.0,
        }
        subject = Subject(type="process", pid=row.pid, comm=row.comm, cgroup=row.cgroup or None)
        limit = {"limit_of": row.limit_of} if row.limit_of else {}
        found.append(finding("memory.growth", subject, window(manifest.window_ns), metrics, grade, limit))
    return found[:_FINDINGS]


def _group_findings(recording: Recording, groups: list[GroupRow], bound_s: float) -> list[Finding]:
    """Return findings about limited cgroups and the host: whether memory that the kernel cannot free grows to the
    limit."""
    found = []
    for row in groups:
        if row.limit_bytes is None or row.bytes_rate is None:
            continue
        at_host = row.cgroup == oom.HOST
        subject = Subject(type="host") if at_host else Subject(type="cgroup", cgroup=row.cgroup)
        metrics: dict[str, Any] = {
            "rate": row.bytes_rate,
            "used_bytes": row.used_bytes,
            "limit_bytes": row.limit_bytes,
            "until_limit_s": row.until_limit_s,
            **{f"{kind}_rate": getattr(row, f"{kind}_bytes_rate") for kind in ("anon", "shmem", "file", "slab")},
        }
        grade = _grade(row.until_limit_s, bound_s)
        found.append(finding("memory.group_growth", subject, window(recording.manifest.window_ns), metrics, grade))
    return found[:_FINDINGS]


def _copy_findings(recording: Recording, found: list[Copies], groups: list[GroupRow]) -> list[Finding]:
    """Return findings about families that copy memory: major if what remains to be copied exceeds the next limit."""
    made = []
    for one in found:
        if one.copied_bytes < _COPIED_BYTES or one.copied_bytes < one.grown_bytes / 2:
            continue
        above = f"{one.cgroup}/"
        room = [
            row.limit_bytes - row.used_bytes + row.reclaimable_bytes
            for row in groups
            if row.limit_bytes and (row.cgroup == oom.HOST or above.startswith(row.cgroup.rstrip("/") + "/"))
        ]
        grade = Severity.MAJOR if room and one.remaining_bytes > min(room) else Severity.MINOR
        row = _copy_row(one)
        metrics = {name: getattr(row, name) for name in ("processes", "copied_bytes", "remaining_bytes")}
        metrics |= {"rate": row.bytes_rate, "window_pct": 100.0}
        subject = Subject(type="process", pid=one.pid, comm=one.comm, cgroup=one.cgroup or None)
        made.append(finding("memory.copies", subject, window(recording.manifest.window_ns), metrics, grade))
    return made[:_FINDINGS]


def _copy_row(one: Copies) -> CopyRow:
    return CopyRow(
        pid=one.pid,
        comm=one.comm,
        processes=one.processes,
        copied_bytes=one.copied_bytes,
        bytes_rate=one.copied_bytes / one.span_s,
        remaining_bytes=one.remaining_bytes,
    )


def _kill_row(kill: oom.Kill) -> KillRow:
    return KillRow(
        at_s=kill.at_ns / 1e9,
        pid=kill.pid,
        comm=kill.comm,
        cgroup=kill.cgroup,
        limit_of=kill.limit_of,
        limit_bytes=kill.limit_bytes,
        anon_bytes=kill.anon_bytes,
    )


TOOL = Tool(
    name="memory_growth",
    title="Memory growth",
    description=(
        "How fast the memory of each process, its cgroups and the host grows (anonymous, shared, page cache, slab), "
        "minutes until the limit, memory copied after a fork, and processes killed for lack of memory. No "
        "privilege."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"memory.growth", "memory.group_growth", "memory.copies", "memory.oom_kill", "memory.oom_kills"}),
    cost=1.0,
)
