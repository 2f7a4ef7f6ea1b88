"""Read ``PROF_*`` directories of msprof: raw data of the host and each device, and exports of them.

Only exports are read: the database, else the timeline. Layout and clock files (see `ascend.info`) are those of the
documentation and of the open source; no recorded directory was available for a check.
"""

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

SOURCE = "msprof"
NAME = re.compile(r"PROF_\w+")
_DATABASE = re.compile(r"msprof_([0-9]{1,20})\.db")
_TIMELINE = re.compile(r"msprof(?:_slice_[0-9]{1,9})?(?:_[0-9]{1,9}){0,2}_([0-9]{1,20})\.json")
OUTPUT = "mindstudio_profiler_output"
_PLACES = (OUTPUT, "timeline")  # "timeline" before CANN 7


def is_directory(path: Path) -> bool:
    """Return whether it is a directory of msprof."""
    return NAME.fullmatch(path.name) is not None and any((path / name).is_dir() for name in ("host", *_PLACES))


def read(directory: Path) -> Profile:
    """Return the newest export. Raises `ToolError` (bad_trace, io_error)."""
    info = info_of(directory)
    if databases := _newest(directory, _DATABASE):
        return ascend_db.read(databases[0], info, SOURCE)
    for place in _PLACES:
        if timelines := _newest(directory / place, _TIMELINE):
            return ascend_text.read(timelines, info, SOURCE)
    raise ToolError(
        ErrorCode.BAD_TRACE,
        f"{directory} holds raw data only",
        f"export it first: msprof --export=on --output={directory}",
    )


def _newest(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the files of the last export; one export may be cut into slices."""
    if not directory.is_dir():
        return []
    found = [(match.group(1), path) for path in directory.iterdir() if (match := pattern.fullmatch(path.name))]
    last = max((int(stamp) for stamp, _ in found), default=0)
    return sorted(path for stamp, path in found if int(stamp) == last)


FORMAT = ProfileFormat(
    "msprof",
    lambda head: Match.CERTAIN if is_directory(head.path) else Match.NO,
    read,
    lambda head: info_of(head.path).rank,
    lambda head: False,
    directory=True,
)
