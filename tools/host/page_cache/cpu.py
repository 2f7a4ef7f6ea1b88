"""Compute the CPU time spent in the page cache from stack samples."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.contract.findings import Finding, Subject
from whystall.tools.contract.proportion import wilson
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.page_cache.data import CpuRow
from whystall.tools.host.page_cache.symbols import CACHE, COPY, RECLAIM
from whystall.tools.recording.store import Recording

SAMPLES = "samples"
# In percent of one CPU: what users notice as a slower job (see host_snapshot.findings).
_NOTICEABLE_PCT = 5.0
_FINDINGS = 5
# Smaller shares are one or two ticks and get no finding.
_LEAST_PCT = 0.5
_METRICS = ("cpu_pct", "reclaim_pct", "copy_pct", "low_pct", "high_pct", "samples")


@dataclass
class _Part:
    comm: str = ""
    cache: float = 0.0
    reclaim: float = 0.0
    copy: float = 0.0
    samples: int = 0


def cpu_rows(recording: Recording) -> list[CpuRow]:
    """Return the processes by CPU time in the page cache, largest first; none without timed samples."""
    window_ns = recording.manifest.window_ns
    if not recording.has(SAMPLES) or not window_ns:
        return []
    events = recording.table(f"{SAMPLES}.events").filter((pl.col("unit") == "ns") & (pl.col("period") > 0))
    if events.is_empty():
        return []
    event, period = int(events["event"][0]), float(events["period"][0])
    nodes = _classes(recording)
    samples = recording.table(f"{SAMPLES}.samples").filter(pl.col("event") == event)
    threads = recording.table(f"{SAMPLES}.threads")
    parts: dict[int, _Part] = {}
    for row in samples.join(threads, on="thread", how="inner").iter_rows(named=True):
        cache, reclaim, copy = nodes[row["stack"]] if 0 <= row["stack"] < len(nodes) else (False,) * 3
        if cache or reclaim:
            part = parts.setdefault(row["pid"], _Part())
            part.comm = row["comm"] if row["tid"] == row["pid"] or not part.comm else part.comm
            part.samples += 1
            part.cache += row["weight"]
            part.reclaim += row["weight"] * reclaim
            part.copy += row["weight"] * (copy and not reclaim)
    cpus = recording.manifest.cpus
    ticks = window_ns / period * cpus
    rows = []
    for pid, part in parts.items():
        low, high = wilson(part.samples, ticks)
        rows.append(
            CpuRow(
                pid=pid,
                comm=part.comm,
                cpu_pct=100 * part.cache / window_ns,
                low_pct=100 * low * cpus,
                high_pct=100 * high * cpus,
                reclaim_pct=100 * part.reclaim / window_ns,
                copy_pct=100 * part.copy / window_ns,
                samples=part.samples,
            )
        )
    return sorted(rows, key=lambda row: (-row.cpu_pct, row.pid))


def _classes(recording: Recording) -> list[tuple[bool, bool, bool]]:
    """Return per node of the stack tree (parents first) whether it is in the page cache, in reclaim, in copying."""
    kinds = []
    for name, kind in recording.table(f"{SAMPLES}.frames").select("name", "kind").iter_rows():
        plain = name.partition(".")[0]  # compilers split functions: shrink_folio_list.constprop.0
        kernel = kind == "kernel"
        kinds.append((kernel and plain in CACHE, kernel and plain in RECLAIM, kernel and plain in COPY))
    found: list[tuple[bool, bool, bool]] = []
    for parent, frame in recording.table(f"{SAMPLES}.stacks").select("parent", "frame").iter_rows():
        cache, reclaim, copy = found[parent] if 0 <= parent < len(found) else (False,) * 3
        in_cache, in_reclaim, in_copy = kinds[frame] if 0 <= frame < len(kinds) else (False,) * 3
        found.append((cache or in_cache, reclaim or in_reclaim, copy or (cache and in_copy)))
    return found


def cpu_findings(rows: list[CpuRow], recording: Recording, requested: frozenset[int]) -> list[Finding]:
    """Return who spends CPU time there; abnormal if a process of the target certainly reclaims for a noticeable part of
    a CPU. kswapd is judged by its exact counters instead."""
    chosen = [row for row in rows if not requested or row.pid in requested]
    return [
        finding(
            "cache.cpu",
            Subject(type="process", pid=row.pid, comm=row.comm),
            window(recording.manifest.window_ns),
            {name: getattr(row, name) for name in _METRICS},
            severity(row.reclaim_pct) if _reclaims(row) else None,
        )
        for row in chosen[:_FINDINGS]
        if row.cpu_pct >= _LEAST_PCT
    ]


def _reclaims(row: CpuRow) -> bool:
    """Return whether reclaim certainly takes a noticeable part; the bounds are those of all time in the cache."""
    sure = row.low_pct * row.reclaim_pct / max(row.cpu_pct, 1e-9)
    return sure >= _NOTICEABLE_PCT and not row.comm.startswith("kswapd")
