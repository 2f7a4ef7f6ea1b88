"""The two snapshots of the collector ``objects``: at the start and at the end of the window."""

from __future__ import annotations

import polars as pl

from whystall.tools.recording.store import Recording


def first_snapshot(recording: Recording, table: str) -> pl.DataFrame:
    """Return the rows of ``objects.<table>`` as read at the start of the window."""
    return recording.table(f"objects.{table}").filter(pl.col("at_ns") < recording.manifest.window_ns / 2)


def last_snapshot(recording: Recording, table: str) -> pl.DataFrame:
    """Return the rows of ``objects.<table>`` as read at the end of the window."""
    return recording.table(f"objects.{table}").filter(pl.col("at_ns") >= recording.manifest.window_ns / 2)


def target_pids(recording: Recording) -> frozenset[int] | None:
    """Return the processes of the target and their children; None for the whole host. Children that started within the
    window are included if ``proc`` was recorded."""
    target = recording.manifest.target
    if target.everything:
        return None
    pids = {*target.pids, *first_snapshot(recording, "threads")["pid"].to_list()}
    if recording.has("proc"):
        parents = dict(recording.table("proc.processes").select("pid", "ppid").unique().iter_rows())
        for pid in parents:
            line = [pid]
            while line[-1] in parents and parents[line[-1]] not in (*pids, *line):
                line.append(parents[line[-1]])
            if parents.get(line[-1]) in pids:
                pids.update(line)
    return frozenset(pids)
