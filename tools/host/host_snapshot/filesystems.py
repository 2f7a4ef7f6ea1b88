"""Judge how full the file systems of the target are."""

from __future__ import annotations

import polars as pl

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.host_snapshot.data import Filesystem
from whystall.tools.recording.store import Recording

# Both must hold: by share alone a large file system with much room, by amount alone every small one would be full.
_FULL_PCT = 1.0
_FULL_BYTES = 1 << 30
_FULL_INODES = 1000
_FINDINGS = 4


def rows(recording: Recording) -> list[Filesystem]:
    """Return the file systems at the end of the window, the fullest first."""
    table = recording.find("proc.filesystems")
    if table is None or table.is_empty():
        return []
    last = table.sort("at_ns", maintain_order=True).group_by("dev", maintain_order=True)
    ends = last.agg(pl.all().exclude("open_files").last(), pl.col("open_files").max())
    found = []
    for r in ends.iter_rows(named=True):
        limited = r["inodes"] > 0
        found.append(
            Filesystem(
                path=r["path"],
                fstype=r["fstype"],
                size_bytes=r["size_bytes"],
                free_bytes=r["free_bytes"],
                free_pct=100 * r["free_bytes"] / max(r["size_bytes"], 1),
                free_inodes=r["free_inodes"] if limited else None,
                free_inodes_pct=100 * r["free_inodes"] / r["inodes"] if limited else None,
                open_files=r["open_files"],
            )
        )
    return sorted(found, key=_free_pct)


def _free_pct(one: Filesystem) -> float:
    return one.free_pct if one.free_inodes_pct is None else min(one.free_pct, one.free_inodes_pct)


def findings(recording: Recording, found: list[Filesystem]) -> list[Finding]:
    """Return the full file systems, and those with room to which the target has files open for writing.

    A full one without files of the target open for writing is minor: the target may open one later.
    """
    manifest = recording.manifest
    made = []
    for one in found:
        no_room = one.free_pct < _FULL_PCT and one.free_bytes < _FULL_BYTES
        no_names = one.free_inodes_pct is not None and one.free_inodes_pct < _FULL_PCT
        full = no_room or (no_names and (one.free_inodes or 0) < _FULL_INODES)
        if not full and not one.open_files:
            continue
        grade = (Severity.MAJOR if one.open_files else Severity.MINOR) if full else None
        subject = Subject(type="file", path=one.path, pid=manifest.target.sole_pid, comm=manifest.target.comm)
        names = ("free_inodes", "free_inodes_pct") if no_names else ("free_bytes", "size_bytes", "free_pct")
        metrics = {name: getattr(one, name) for name in names}
        words = {"filesystem": one.fstype}
        made.append(finding("filesystem.full", subject, window(manifest.window_ns), metrics, grade, words))
    return made[:_FINDINGS]
