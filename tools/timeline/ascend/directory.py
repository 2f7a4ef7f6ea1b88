"""Read ``*_ascend_pt`` directories of torch_npu (and ``*_ascend_ms`` of MindSpore, which have the same layout)."""

from __future__ import annotations

import re
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Head, Match
from whystall.tools.timeline.ascend import db as ascend_db
from whystall.tools.timeline.ascend import text as ascend_text
from whystall.tools.timeline.ascend.info import Info, info_of
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.format import ProfileFormat, rank_in_name

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_NAME = re.compile(r".*_ascend_(?:pt|ms)")
DATABASE = re.compile(r"ascend_(?:pytorch|mindspore)_profiler(?:_[0-9]{1,9})?\.db")
_TIMELINE = "trace_view.json"
STEPS, OPERATIONS = "step_trace_time.csv", "communication.json"
"""Tables that are exported beside the timeline, or alone."""


def is_directory(path: Path) -> bool:
    """Return whether it is a directory of an Ascend framework profiler."""
    return _NAME.fullmatch(path.name) is not None or (path / OUTPUT).is_dir()


def has_only_tables(path: Path) -> bool:
    """Return whether a directory holds neither database nor timeline, but exported tables (`timeline.tables`)."""
    output = path / OUTPUT
    names = {entry.name for entry in output.iterdir()} if output.is_dir() else set()
    if _TIMELINE in names or any(DATABASE.fullmatch(name) for name in names):
        return False
    return bool(names & {STEPS, OPERATIONS})


def rank_of(directory: Path, info: Info) -> int:
    """Return the rank by the profiler's own file, else by the directory's name; -1 unknown."""
    return info.rank if info.rank >= 0 else rank_in_name(directory.absolute().name)


def _detect(head: Head) -> Match:
    if not is_directory(head.path):
        return Match.NO
    return Match.LIKELY if has_only_tables(head.path) else Match.CERTAIN


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
    _detect,
    read,
    lambda head: rank_of(head.path, info_of(head.path)),
    lambda head: False,
    directory=True,
)
