"""Recordings that hold versions of software only."""

from __future__ import annotations

from whystall.tools.collect.tables import VERSIONS, filled
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target


def versions_recorded(*rows: tuple[str, str, str, int, bool], machine: str = "x86_64") -> Recording:
    """A recording of the host n1, a `machine` as of uname(2). `rows`: component, version, where, pid, vendor_built."""
    manifest = Manifest(
        id="r1",
        host="n1",
        kernel="6.1.0",
        machine=machine,
        cpus=1,
        target=Target(everything=True),
        started="2026-01-01T00:00:00Z",
        start_ns=0,
        window_ns=1,
        requested_ns=1,
        collectors={"versions": CollectorManifest(engine="procfs", proven=True)},
    )
    return Recording.in_memory(manifest, {"versions.versions": filled(VERSIONS, versions=rows)["versions"]})
