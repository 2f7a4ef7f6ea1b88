"""Judge file operations by their totals: what was normal, and storms of calls too short to be listed."""

from __future__ import annotations

from typing import Any

import polars as pl

from whystall.tools.contract.findings import Finding, Polarity, Subject
from whystall.tools.host.common.file_operations import FILE_CLASS, FileClass
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.common.latency import slot_quantile
from whystall.tools.recording.store import Recording

# With a smaller share of a thread's time, slow calls are reported as normal: it is within the step-to-step variation of
# a job.
ABNORMAL_PCT = 2.0
PARTS = ("oncpu", "blocked", "sleep", "runnable")
CLASSES: tuple[FileClass, ...] = ("read", "write", "sync", "metadata")
# Number of threads reported as normal if another thread of the job is slow.
_THREADS = 8


def bytes_moved(latency: pl.DataFrame) -> dict[tuple[int, int], int]:
    """Return bytes read and written by (process, file), fast calls included: the write before a slow fsync is fast."""
    data = [call for call, name in FILE_CLASS.items() if name in ("read", "write")]
    rows = latency.filter(pl.col("syscall").is_in(data)).group_by("pid", "file").agg(pl.col("bytes").sum())
    return {(r["pid"], r["file"]): r["bytes"] for r in rows.iter_rows(named=True)}


def spent_ns(totals: pl.DataFrame) -> dict[int, int]:
    """Return the time per thread in all file calls, fast ones included; `totals` are those of file operations."""
    return dict(totals.group_by("tid").agg(pl.col("wall_ns").sum()).iter_rows())


def bytes_by_position(rows: list[dict[str, Any]]) -> int:
    """Return the bytes that slow calls moved, from the files' positions, for engines that do not count bytes.

    A file seen once was written from its start; of one seen again, only the growth between is known. At least what
    the slow reads and writes themselves requested is counted.
    """
    positions: dict[int, list[int]] = {}
    for row in rows:
        if row["offset"] >= 0:
            positions.setdefault(row["file"], []).append(row["offset"])
    asked: int = sum(row["asked"] for row in rows if FILE_CLASS[row["syscall"]] in ("read", "write"))
    return max(asked, sum(max(p) - (min(p) if len(p) > 1 else 0) for p in positions.values()))


def many_fast(totals: pl.DataFrame, found: list[Finding], recording: Recording) -> list[Finding]:
    """Return a finding per thread that loses much time in calls too short to be listed, as in a storm of syncs.

    `totals` are those of file operations, `found` the findings about listed calls. A thread that has an abnormal one is
    left out, unless its listed calls are the smaller part of its wait in their class: then the rest is reported.
    """
    window_ns = recording.manifest.window_ns
    abnormal = [f for f in found if f.polarity is Polarity.ABNORMAL]
    listed = {f.subject.tid for f in abnormal}
    more = []
    for name in CLASSES:
        rows = totals.filter(pl.col("syscall").is_in(_calls(name)))
        for thread in _waits(rows, name, window_ns).iter_rows(named=True):
            same = [f for f in abnormal if (f.kind, f.subject.tid) == (f"file.slow_{name}", thread["tid"])]
            known = sum(f.metrics["window_pct"] for f in same)
            rest = thread["pct"] - known
            if rest >= ABNORMAL_PCT and (thread["tid"] not in listed or (same and rest > known)):
                more.append(_storm(name, thread | _unlisted(thread, same), rows, recording))
    return more


def _unlisted(thread: dict[str, Any], listed: list[Finding]) -> dict[str, Any]:
    """Return count, time and share of the calls of `thread` that are in no finding of `listed`, and its whole time."""
    return {
        "whole_ns": thread["wall_ns"],
        "count": thread["count"] - int(sum(f.metrics["count"] for f in listed)),
        "wall_ns": thread["wall_ns"] - int(sum(f.metrics["total_ms"] for f in listed) * 1e6),
        "pct": thread["pct"] - sum(f.metrics["window_pct"] for f in listed),
    }


def _storm(name: FileClass, thread: dict[str, Any], totals: pl.DataFrame, recording: Recording) -> Finding:
    """Return the finding of one thread; each call counts as an episode. Files are counted per process, so one is named
    only if no other thread of the process makes such calls. Quantiles, parts and the longest call include listed calls.
    """
    pid, tid, count = thread["pid"], thread["tid"], max(thread["count"], 1)
    own = totals.filter((pl.col("pid") == pid) & (pl.col("wall_ns") > 0)).sort("wall_ns", descending=True)
    alone = own["tid"].n_unique() == 1
    latency = recording.table("syscalls.latency")
    slots = latency.filter((pl.col("pid") == pid) & pl.col("syscall").is_in(_calls(name)))
    files = slots.join(recording.table("syscalls.files").select("file", "path", "fstype"), on="file", how="inner")
    spent = files.group_by("file", "path", "fstype").agg(pl.col("sum_ns").sum()).sort("sum_ns", descending=True)
    top = spent.row(0, named=True) if alone and spent.height else None
    moved = bytes_moved(latency)
    size = sum(moved.get((pid, file), 0) for file in spent["file"])
    histogram = [(s["low_ns"], s["high_ns"], s["count"]) for s in slots.iter_rows(named=True)]
    operations = own.filter(pl.col("tid") == tid)["syscall"].to_list()
    return finding(
        f"file.slow_{name}",
        Subject(type="file", pid=pid, tid=tid, comm=thread["comm"], path=top["path"] if top else None),
        window(recording.manifest.window_ns),
        {
            "count": thread["count"],
            "total_ms": thread["wall_ns"] / 1e6,
            "p50_ms": min(slot_quantile(histogram, 0.5), thread["max_ns"]) / 1e6,
            "p99_ms": min(slot_quantile(histogram, 0.99), thread["max_ns"]) / 1e6,
            "max_ms": thread["max_ns"] / 1e6,
            "bytes": size,
            "window_pct": min(100.0, thread["pct"]),
            "episodes": thread["count"],
            "episode_ms": thread["wall_ns"] / 1e6 / count,
            "episode_max_ms": thread["max_ns"] / 1e6,
            "episode_bytes": size / count,
            **{f"{part}_pct": 100 * thread[f"{part}_ns"] / max(thread["whole_ns"], 1) for part in PARTS},
        },
        severity(thread["pct"]),
        {
            "operations": "+".join(operations),
            "in_flight": "no",
            **({"example": top["path"], "filesystem": top["fstype"]} if top else {}),
        },
    )


def normal(abnormal: list[Finding], totals: pl.DataFrame, recording: Recording) -> list[Finding]:
    """Return what was measured as normal, per class: the whole target, or its other threads if one is slow."""
    target = recording.manifest.target
    if target.everything or not recording.manifest.saw_everything("syscalls"):
        return []  # on a whole host something is always slow; and what was missed may have been slow
    found = []
    for name in CLASSES:
        kind = f"file.slow_{name}"
        rows = totals.filter(pl.col("syscall").is_in(_calls(name)))
        slow = {f.subject.tid for f in abnormal if f.kind == kind and f.polarity is Polarity.ABNORMAL}
        waits = _waits(rows, name, recording.manifest.window_ns)
        slow |= {r["tid"] for r in waits.filter(pl.col("pct") >= ABNORMAL_PCT).iter_rows(named=True)}
        if not slow:
            found.append(_measured(kind, waits, recording, Subject(type="file", pid=target.sole_pid, comm=target.comm)))
            continue
        others = (
            totals.filter(~pl.col("tid").is_in(list(slow))).group_by("pid", "tid", "comm").agg(pl.col("wall_ns").sum())
        )
        for thread in others.sort("wall_ns", descending=True).head(_THREADS).iter_rows(named=True):
            subject = Subject(type="file", pid=thread["pid"], tid=thread["tid"], comm=thread["comm"])
            found.append(_measured(kind, waits.filter(pl.col("tid") == thread["tid"]), recording, subject))
    return found


def _calls(name: FileClass) -> list[str]:
    return [call for call, known in FILE_CLASS.items() if known == name]


def _waits(totals: pl.DataFrame, name: FileClass, window_ns: int) -> pl.DataFrame:
    """Return per thread how long calls of class `name` waited (`wait_ns`, and `pct` of the window).

    Totals of reads and writes include pipes and sockets, where sleeping is waiting for work: of these only
    uninterruptible waits count. Syncs and metadata calls are always on files.
    """
    wait = pl.col("blocked_ns") if name in ("read", "write") else pl.col("blocked_ns") + pl.col("sleep_ns")
    return (
        totals.group_by("pid", "tid", "comm")
        .agg(
            pl.col("count").sum(),
            wait.sum().alias("wait_ns"),
            *(pl.col(f"{part}_ns").sum() for part in ("wall", "oncpu", "blocked", "sleep", "runnable")),
            pl.col("max_ns").max(),
        )
        .with_columns((100 * pl.col("wait_ns") / max(window_ns, 1)).alias("pct"))
        .sort("wait_ns", descending=True)
    )


def _measured(kind: str, waits: pl.DataFrame, recording: Recording, subject: Subject) -> Finding:
    """Return the normal finding of the threads in `waits` (see `_waits`); the share is that of the longest waiting."""
    metrics = {
        "count": int(waits["count"].sum()),
        "total_ms": int(waits["wait_ns"].sum()) / 1e6,
        "window_pct": float(waits["pct"].max() or 0.0),  # type: ignore[arg-type]
    }
    return finding(kind, subject, window(recording.manifest.window_ns), metrics)
