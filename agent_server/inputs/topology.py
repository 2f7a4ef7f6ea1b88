"""Open the topology of a cluster: from files, a recording, or this host; with the ranks of traces if they are given."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.agent_server.inputs.ranks import Runs, gathered
from whystall.agent_server.inputs.recordings import open_source
from whystall.tools.collect.topology import files, this_host
from whystall.tools.collect.topology.rows import Rows, host_named
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import host_name
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    from whystall.tools.host.cluster_topology.tool import Params

COLLECTOR = "topology"


def open_topology(params: Params, source: Path | None) -> Recording:
    """Return the topology that `params` names, or the recording or file `source`; without any, that of this host.

    Raises `ToolError`: bad_argument if a recording and files are given; what reading raises.
    """
    if source is not None:
        if params.files or params.traces:
            message = "files or traces, and a recording exclude each other"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give one of them")
        if (source / "manifest.json").is_file():
            return open_source(source)
    rows = Rows()
    named = [str(source)] if source is not None else list(params.files or [])
    if named:
        files.read(rows, named)
    if not named or params.live:
        this_host.read(rows, host_named(host_name()))
    return recorded(rows, gathered(Runs(params.traces)) if params.traces else None)


def topology_of(paths: Sequence[str], ranks: Recording) -> Recording:
    """Return `ranks`, those of traces, on the hosts that the files `paths` state. Raises what reading raises."""
    rows = Rows()
    files.read(rows, paths)
    return recorded(rows, ranks)


def recorded(rows: Rows, ranks: Recording | None) -> Recording:
    """Return `rows` as a recording, with the `ranks` of traces if there are any."""
    capture = rows.capture()
    entry = CollectorManifest(
        engine="files",
        why="",
        options={},
        hooks=[],
        seen=capture.seen,
        kept=capture.kept,
        lost=0,
        proven=capture.proven,
        not_seen=[BlindSpot(code=code, detail=clean(detail)) for code, detail in dict.fromkeys(capture.not_seen)],
    )
    tables = {f"{COLLECTOR}.{name}": table for name, table in capture.tables.items()}
    if ranks is not None:
        manifest = ranks.manifest.model_copy(deep=True)
        manifest.collectors[COLLECTOR] = entry
        return Recording.in_memory(manifest, {**ranks.tables(), **tables})
    now = datetime.now(timezone.utc)
    manifest = Manifest(
        id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        host=host_name(),
        kernel=clean(platform.release()),
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        target=Target(everything=True),
        started=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        start_ns=0,
        window_ns=0,
        requested_ns=0,
        collectors={COLLECTOR: entry},
        observer=os.getpid(),
    )
    return Recording.in_memory(manifest, tables)
