"""Versions and crashes that logs state, joined to what was observed, for the tool known_fix."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from whystall.agent_server.inputs.logs import read_all
from whystall.tools.collect.tables import DEVICE_LOG, VERSIONS, filled
from whystall.tools.known_fixes.stated import ENGINE
from whystall.tools.recording.manifest import CollectorManifest
from whystall.tools.recording.store import Recording

_NO_PID = -1


def with_logs(recording: Recording, named: Sequence[str]) -> Recording:
    """Return a copy of `recording` with what the logs `named` state: crashes, Xids, and versions.

    The driver's messages of this host are left out: the case is that of the logs. If these name other hosts only, the
    versions of this host are left out too. Raises `ToolError` for a log that cannot be read.
    """
    read = read_all(named)
    crashes = read.crashes
    manifest = recording.manifest.model_copy(deep=True)
    tables = {name: frame for name, frame in recording.tables().items() if not name.startswith("device_log.")}
    manifest.collectors.pop("device_log", None)
    manifest.left_out.pop("device_log", None)
    manifest.collectors["crashes"] = crashes.manifest.collectors["crashes"]
    tables |= crashes.tables()
    if read.devices:
        manifest.collectors["device_log"] = CollectorManifest(engine=ENGINE, proven=True, hooks=[ENGINE])
        tables |= {f"device_log.{name}": frame for name, frame in filled(DEVICE_LOG).items()}
        tables["device_log.events"] = pl.concat([one.table("device_log.events") for one in read.devices])
    hosts = {host for name in ("reports", "failures") for host in crashes.table(f"crashes.{name}")["host"].to_list()}
    if "versions.versions" in tables and hosts - {""} and manifest.host not in hosts:
        tables["versions.versions"] = tables["versions.versions"].filter(pl.col("pid") != _NO_PID)
    if read.versions:
        more = filled(VERSIONS, versions=read.versions)["versions"]
        before = tables.get("versions.versions")
        tables["versions.versions"] = more if before is None else pl.concat([before, more])
        if "versions" not in manifest.collectors:
            manifest.collectors["versions"] = CollectorManifest(engine=ENGINE, proven=True, hooks=[ENGINE])
    return Recording.in_memory(manifest, tables)
