"""Read saved answers of a metrics endpoint as a recording: one file, or several of different times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from whystall.bpf.regular_files import open_regular
from whystall.tools.collect.serving.engine import COLLECTOR, ServingRows
from whystall.tools.collect.serving.scrape import MOST_BYTES
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

FILE = "file"
_UNKNOWN_START = "1970-01-01T00:00:00.000Z"
_REMEDY = "give what `curl http://127.0.0.1:PORT/metrics` printed"


def recording_of_files(paths: Sequence[Path]) -> Recording:
    """Return the metrics in `paths`, in the order of their modification, with the collector ``serving``.

    Files of the same time keep the order in which they are given; the time between them is then unknown.

    Raises `ToolError`: io_error; bad_trace for what is too large, or has no metric of a known server.
    """
    read = sorted((_read(path) for path in paths), key=lambda one: one[0])
    first = read[0][0]
    rows = ServingRows()
    for number, (modified_ns, text, path) in enumerate(read):
        at_ns = modified_ns - first
        if number and modified_ns == read[number - 1][0]:
            rows.spots["metrics_untimed"] = ""
        if not rows.add_text(at_ns + number, "", text, -1).samples:
            raise ToolError(ErrorCode.BAD_TRACE, f"{path} has no metric of an inference server that is known", _REMEDY)
    found = rows.capture()
    window_ns = read[-1][0] - first
    entry = CollectorManifest(
        engine=FILE,
        hooks=[FILE],
        seen=len(read),
        kept=len(read),
        lost=0,
        proven=True,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in found.not_seen],
    )
    manifest = Manifest(
        id=clean(paths[0].name),
        host="",
        kernel="",
        machine="",
        cpus=1,
        target=Target(everything=True),
        started=_UNKNOWN_START,
        start_ns=0,
        window_ns=window_ns,
        requested_ns=window_ns,
        collectors={COLLECTOR: entry},
    )
    return Recording.in_memory(manifest, {f"{COLLECTOR}.{name}": frame for name, frame in found.tables.items()})


def _read(path: Path) -> tuple[int, str, str]:
    """Return when a file was modified, its text, and its path as shown."""
    shown = clean(str(path))
    try:
        with open(open_regular(str(path)), "rb") as file:
            content = file.read(MOST_BYTES + 1)
            modified_ns = os.fstat(file.fileno()).st_mtime_ns
    except OSError as error:
        why = error.strerror or str(error)
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {shown}: {why}", "check path and permission") from None
    except ValueError:
        raise ToolError(ErrorCode.IO_ERROR, "the path of the metrics has a NUL", _REMEDY) from None
    if len(content) > MOST_BYTES:
        raise ToolError(ErrorCode.BAD_TRACE, f"{shown} is larger than {MOST_BYTES >> 20} MiB", _REMEDY)
    return modified_ns, content.decode("utf-8", "replace"), shown
