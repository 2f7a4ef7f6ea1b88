"""Make a recording of what the engines captured in a window."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime

import polars as pl

from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.node.containers import Containers
from whystall.tools.node.vantage import host_name
from whystall.tools.recording.assignment import Assignment
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.oom_kills import killed
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

_INSTANTS = (
    *("start_ns", "end_ns", "issue_ns", "at_ns", "woken_ns", "prev_arrived_ns", "longest_at_ns"),
    *("first_ns", "last_ns", "queued_ns"),
)


def assemble(
    captures: Sequence[tuple[Assignment, Mapping[str, Capture]]],
    *,
    target: Target,
    started: datetime,
    start_ns: int,
    window_ns: int,
    requested_ns: int,
    target_exited: bool,
    left_out: dict[str, str],
    containers: Containers,
) -> Recording:
    """Return a recording of `captures`, with times relative to `start_ns` and single events trimmed to the window.

    `started` (UTC) is the same instant as `start_ns` (CLOCK_MONOTONIC). `containers` has located the target's processes
    already, since they may have exited.
    """
    manifest = Manifest(
        id=f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        host=host_name(),
        kernel=clean(platform.release()),
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        target=target,
        started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        start_ns=start_ns,
        window_ns=window_ns,
        requested_ns=requested_ns,
        target_exited=target_exited,
        observer=os.getpid(),
        left_out=left_out,
    )
    tables: dict[str, pl.DataFrame] = {}
    for assignment, by_collector in captures:
        for name, capture in by_collector.items():
            manifest.collectors[name] = _describe(assignment, name, capture)
            for table, frame in capture.tables.items():
                if table in capture.events:
                    inside = pl.col("at_ns").is_between(start_ns, start_ns + window_ns)
                    frame = frame.filter(inside | (pl.col("at_ns") < 0))
                tables[f"{name}.{table}"] = _relative(frame, start_ns, window_ns)
    manifest.oom_killed = killed(tables, target.pids)
    pids = _pids(tables) | set(target.pids)
    containers.locate(pids)
    manifest.containers = containers.located(pids)
    return Recording.in_memory(manifest, tables)


def _pids(tables: Mapping[str, pl.DataFrame]) -> set[int]:
    """Return the ids of all processes in `tables`."""
    found: set[int] = set()
    for frame in tables.values():
        for name in {"pid", "waker_pid"} & set(frame.columns):
            found.update(frame[name].unique().to_list())
    return found


def _describe(assignment: Assignment, name: str, capture: Capture) -> CollectorManifest:
    return CollectorManifest(
        engine=assignment.engine.name,
        why=clean(assignment.why.get(name, ""), 500),
        options=assignment.options[name].as_dict(),
        hooks=capture.hooks,
        seen=capture.seen,
        kept=capture.kept,
        lost=capture.lost,
        proven=capture.proven,
        not_seen=[BlindSpot(code=code, detail=clean(detail)) for code, detail in capture.not_seen],
    )


def _relative(frame: pl.DataFrame, start_ns: int, window_ns: int) -> pl.DataFrame:
    """Convert absolute instants to ns since the start, clipped to the window; 0 stays (never), and so do negative ones
    (unknown)."""
    return frame.with_columns(
        pl.when(pl.col(c) <= 0).then(pl.col(c)).otherwise((pl.col(c) - start_ns).clip(0, window_ns)).alias(c)
        for c in _INSTANTS
        if c in frame.columns
    )
