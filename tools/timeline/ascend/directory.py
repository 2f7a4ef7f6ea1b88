"""Read ``*_ascend_pt`` directories of torch_npu (and ``*_ascend_ms`` of MindSpore, which have the same layout)."""

from __future__ import annotations

import re
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Match
from whystall.tools.timeline.ascend import db as ascend_db
from whystall.tools.timeline.ascend import text as ascend_text
from whystall.tools.timeline.ascend.info import info_of
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.format import ProfileFormat

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_NAME = re.compile(r".*_ascend_(?:pt|ms)")
DATABASE = re.compile(r"ascend_(?:pytorch|mindspore)_profiler(?:_[0-9]{1,9})?\.db")
_TIMELINE = "trace_view.json"


def is_directory(path: Path) -> bool:
    """Return whether it is a directory of an Ascend framework profiler."""
    return _NAME.fullmatch(path.name) is not None or (path / OUTPUT).is_dir()


def read(directory: Path) -> Profile:
    """Return the profile: from the database when there is one, else from the timeline.

    Raises `ToolError` (bad_trace, io_error).
    """
    info, output = info_of(directory), directory / OUTPUT
    databases = [path for path in output.iterdir() if DATABASE.fullmatch(path.name)] if output.is_dir() else []
    if databases:
        return ascend_db.read(min(databases), info, "ascend_db")
    if (output / _TIMELINE).exists():
        return ascend_text.read([output / _TIMELINE], info, "ascend_text")
    raise ToolError(
        ErrorCode.BAD_TRACE,
        f"{directory} holds raw data only",
        "analyse it first: torch_npu.profiler.profiler.analyse(its parent directory)",
    )


FORMAT = ProfileFormat(
    "ascend",
    lambda head: Match.CERTAIN if is_directory(head.path) else Match.NO,
    read,
    lambda head: info_of(head.path).rank,
    lambda head: False,
    directory=True,
)
