"""Versions and crashes that logs state, joined to what was observed, for the tool known_fix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import polars as pl

from whystall.tools.collect.log_file import recording_of_log
from whystall.tools.collect.tables import DEVICE_LOG, VERSIONS, filled
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.crashes.read import files_below, name_of, read_logs
from whystall.tools.files.input import DAMAGED, opened
from whystall.tools.known_fixes.catalogue import components
from whystall.tools.known_fixes.versions import UnknownVersion, parsed, upstream_kernel
from whystall.tools.recording.manifest import CollectorManifest
from whystall.tools.recording.store import Recording

_ENGINE = "log"
_MOST_BYTES = 64 << 20
_MOST_LOGS = 64
_MOST_STATED = 16
_LINE = 4096
_NO_PID = -1


def stated_versions(paths: Sequence[Path]) -> list[tuple[str, str, str, int, bool]]:
    """Return the versions that the first 64 MiB of each log state, as rows of the collector ``versions``.

    Line: ``node01:9:9 [0] NCCL INFO NCCL version 2.21.5+cuda12.4``. What cannot be read states nothing.
    """
    rows: dict[tuple[str, str, str, int, bool], None] = {}
    for path in paths:
        try:
            with opened(path) as file:
                left = _MOST_BYTES
                while left > 0 and (line := file.readline(_LINE)):
                    left -= len(line)
                    for row in _stated(line.decode("utf-8", "replace")):
                        if len(rows) < _MOST_STATED:
                            rows.setdefault(row)
        except (OSError, ToolError, *DAMAGED):
            continue
    return list(rows)


def _stated(line: str) -> list[tuple[str, str, str, int, bool]]:
    if "ersion" not in line and "Kernel Module" not in line:
        return []
    rows = []
    for name, about in components().items():
        for pattern in about.stated:
            if found := pattern.search(line):
                try:
                    if name == "kernel":
                        version, vendor = upstream_kernel(found[1], line)
                    else:
                        version, vendor = clean(found[1].rstrip(".,;:")), False
                        parsed(version)
                except UnknownVersion:
                    continue
                rows.append((name, version, _ENGINE, _NO_PID, vendor))
    return rows


def with_logs(recording: Recording, named: Sequence[str]) -> Recording:
    """Return a copy of `recording` with what the logs `named` state: crashes, Xids, and versions.

    The driver's messages of this host are left out: the case is that of the logs. If these name other hosts only, the
    versions of this host are left out too. Raises `ToolError` for a log that cannot be read.
    """
    crashes = read_logs(list(named), name_of(list(named)))
    files = _files(named)
    manifest = recording.manifest.model_copy(deep=True)
    tables = {name: frame for name, frame in recording.tables().items() if not name.startswith("device_log.")}
    manifest.collectors.pop("device_log", None)
    manifest.left_out.pop("device_log", None)
    manifest.collectors["crashes"] = crashes.manifest.collectors["crashes"]
    tables |= crashes.tables()
    events = [one.table("device_log.events") for one in map(recording_of_log, files)]
    if any(frame.height for frame in events):
        manifest.collectors["device_log"] = CollectorManifest(engine=_ENGINE, proven=True, hooks=[_ENGINE])
        tables |= {f"device_log.{name}": frame for name, frame in filled(DEVICE_LOG).items()}
        tables["device_log.events"] = pl.concat(events)
    hosts = {host for name in ("reports", "failures") for host in crashes.table(f"crashes.{name}")["host"].to_list()}
    if "versions.versions" in tables and hosts - {""} and manifest.host not in hosts:
        tables["versions.versions"] = tables["versions.versions"].filter(pl.col("pid") != _NO_PID)
    rows = log_versions(named, crashes)
    if rows:
        more = filled(VERSIONS, versions=list(dict.fromkeys(rows)))["versions"]
        before = tables.get("versions.versions")
        tables["versions.versions"] = more if before is None else pl.concat([before, more])
        if "versions" not in manifest.collectors:
            manifest.collectors["versions"] = CollectorManifest(engine=_ENGINE, proven=True, hooks=[_ENGINE])
    return Recording.in_memory(manifest, tables)


def log_versions(named: Sequence[str], crashes: Recording) -> list[tuple[str, str, str, int, bool]]:
    """Return the versions that the logs `named` state, and the kernels of `crashes`, as rows of ``versions``."""
    return list(dict.fromkeys(stated_versions(_files(named)) + _kernels(crashes)))


def _files(named: Sequence[str]) -> list[Path]:
    return [path for path in islice(files_below(named), _MOST_LOGS) if path.is_file()]


def _kernels(crashes: Recording) -> list[tuple[str, str, str, int, bool]]:
    """Return the versions of the kernels whose crashes were reported."""
    rows = []
    for release in crashes.table("crashes.reports")["release"].unique().to_list():
        try:
            version, vendor = upstream_kernel(release)
        except UnknownVersion:
            continue
        rows.append(("kernel", version, _ENGINE, _NO_PID, vendor))
    return rows
