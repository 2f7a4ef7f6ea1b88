"""Single files of the Ascend profilers, given without their directory."""

from __future__ import annotations

import re
from pathlib import Path

from whystall.tools.files.formats import Head, Match
from whystall.tools.timeline.ascend import db, directory, msprof, text
from whystall.tools.timeline.ascend.info import info_of
from whystall.tools.timeline.kineto.trace import CATEGORY
from whystall.tools.timeline.nsys.export import is_export
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.format import ProfileFormat, rank_in_name

# Arguments and sections that only Ascend's timelines have.
_ASCEND = re.compile(rb'"(?:connection_id|Task Type|Physic Stream Id|async_npu|Ascend Hardware|CANN|AscendCL)"')


def _detect_text(head: Head) -> Match:
    if head.json != b"[":
        return Match.NO
    return Match.CERTAIN if _ASCEND.search(head.data) or CATEGORY.search(head.data) else Match.POSSIBLE


def _read_text(path: Path) -> Profile:
    return text.read([path], info_of(_home(path)), _source(path, "ascend_text"))


def _detect_db(head: Head) -> Match:
    return Match.POSSIBLE if head.database and not is_export(head.path) else Match.NO


def _read_db(path: Path) -> Profile:
    return db.read(path, info_of(_home(path)), _source(path, "ascend_db"))


def _rank(head: Head) -> int:
    rank = info_of(_home(head.path)).rank
    return rank if rank >= 0 else rank_in_name(head.name)


def _home(path: Path) -> Path:
    """Return the directory with the small files that belong to a timeline or database."""
    parent = path.absolute().parent
    return parent.parent if parent.name in (directory.OUTPUT, msprof.OUTPUT) else parent


def _source(path: Path, framework: str) -> str:
    return msprof.SOURCE if path.name.startswith(msprof.SOURCE) else framework


TEXT = ProfileFormat("ascend_text", _detect_text, _read_text, _rank, lambda head: False)
DATABASE = ProfileFormat(
    "ascend_db", _detect_db, _read_db, _rank, lambda head: directory.DATABASE.fullmatch(head.name) is not None
)
