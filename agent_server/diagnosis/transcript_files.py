"""Create and find the files of transcripts, and remove old ones."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from whystall.agent_server.diagnosis.transcript import Header, Transcript, TranscriptFile, causes_hash, tools_hash
from whystall.agent_server.version import version
from whystall.knowledge_base.models import Cause
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.recording.home import home

SCHEME = "whystall://transcripts/"
KEPT = 200
KEPT_BYTES = 512 << 20
"""The most transcripts, and their bytes, that are kept; the oldest are removed first."""
_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{6}")
_SUFFIX = ".jsonl"


def begin(symptom: str, causes: Mapping[str, Cause], tools: Iterable[Tool[Any, Any]]) -> Transcript:
    """Create the transcript of a new diagnosis, and with it the id of the diagnosis.

    If the file cannot be written (disk full, no permission) the transcript stores nothing, and its `uri` is None.
    """
    now = datetime.now(timezone.utc)
    id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    header = Header(
        whystall=version(),
        id=id,
        created=rfc3339(now),
        symptom=symptom,
        causes=causes_hash(causes),
        tools=tools_hash(tools),
    )
    try:
        directory = _directory()
        directory.mkdir(mode=0o700, exist_ok=True)
        _prune(directory)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = open(os.open(directory / f"{id}{_SUFFIX}", flags, 0o600), "ab", buffering=0)  # noqa: SIM115  stays open
    except (OSError, ToolError):
        return Transcript(id)
    return TranscriptFile(file, SCHEME + id, header)


def is_id(name: str) -> bool:
    """Return whether `name` has the form of a diagnosis's id, which is also that of its transcript."""
    return _ID.fullmatch(name) is not None


def path_of(id: str) -> Path:
    """Return the transcript of the diagnosis `id`. Raises `ToolError` (not_found)."""
    path = _directory() / f"{id}{_SUFFIX}"
    with suppress(OSError):  # the same error for every reason
        if is_id(id) and stat.S_ISREG(path.lstat().st_mode):
            return path
    raise ToolError(
        ErrorCode.NOT_FOUND,
        f"there is no transcript of a diagnosis {id!r}",
        f"give the id of a diagnosis made here, or a file; the last {KEPT} are kept",
    )


def ids() -> list[str]:
    """Return the ids of the stored transcripts, the newest first."""
    return [file.name.removesuffix(_SUFFIX) for file in reversed(_files(_directory()))]


def _directory() -> Path:
    return home() / "transcripts"


def _files(directory: Path) -> list[Path]:
    """Return the transcripts in `directory`, the oldest first: names start with the time."""
    try:
        found = [file for file in directory.iterdir() if file.name.endswith(_SUFFIX)]
    except OSError:
        return []
    return sorted(file for file in found if is_id(file.name.removesuffix(_SUFFIX)))


def _prune(directory: Path) -> None:
    """Remove the oldest transcripts so that one more may be added."""
    left, kept = KEPT - 1, 0
    for file in reversed(_files(directory)):
        with suppress(OSError):  # another process may prune as well
            kept += file.lstat().st_size
            left -= 1
            if left < 0 or kept > KEPT_BYTES:
                file.unlink()
