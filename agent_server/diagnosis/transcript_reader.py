"""Transcripts back from files: whole ones of this version, and nothing else."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from whystall.agent_server.diagnosis.transcript import (
    MAX_BYTES,
    SCHEMA,
    Blind,
    CaseOpened,
    Cut,
    End,
    Failed,
    Header,
    Line,
    ObservationFailed,
    Observed,
    RanksJudged,
    Record,
    Replied,
    Request,
    Stopped,
    Struck,
)
from whystall.tools.contract.errors import ErrorCode, ToolError

_LINE: TypeAdapter[Any] = TypeAdapter(Line)
_SLACK = 1 << 10  # the line that says where it was cut
_VERSION = re.compile(rb'"schema_version": ?"(\d{1,9})"')


@dataclass
class TranscriptContent:
    """What a transcript tells, by what it is needed for; each list in the order of its lines. It tells of a case, or of
    the traces of ranks, or of both.
    """

    header: Header
    case: CaseOpened | None = None
    ranks: RanksJudged | None = None
    blind: list[Blind] = field(default_factory=list)
    looks: list[Observed | ObservationFailed] = field(default_factory=list)
    answers: list[Replied | Failed] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)


def read(path: Path) -> tuple[TranscriptContent, End]:
    """The transcript at `path`, and how it ends.

    Raises `ToolError`: io_error (cannot be read), bad_recording for what is no transcript, was made by a newer version,
    is larger than any, is damaged, or was cut: the diagnosis was stopped, still runs, or left more than was kept.
    """
    lines = _content(path).split(b"\n")
    last = lines.pop()
    records = [_record(path, number, line) for number, line in enumerate(lines, 1)]
    if not records:
        raise _bad(path, "it is empty" if not last else "its first line is no header")
    end = records[-1]
    if isinstance(end, Cut):
        raise _bad(path, f"it was cut at {end.bytes >> 20} MiB, and cannot be replayed; what is there can be read")
    if last or not isinstance(end, End):
        why = f"it breaks off after line {len(records)}: the diagnosis was stopped, or is still running"
        raise _bad(path, why)
    return _sorted(path, records[:-1]), end


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _bad(path, "it is not a regular file")
            if status.st_size <= MAX_BYTES + _SLACK:
                content = file.read(MAX_BYTES + _SLACK + 1)
                if len(content) <= MAX_BYTES + _SLACK:
                    return content
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        said = getattr(error, "strerror", None) or str(error)
        remedy = "give the id of a diagnosis, or the file of its transcript"
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {said}", remedy) from None
    raise _bad(path, f"it is larger than {MAX_BYTES >> 20} MiB")


def _record(path: Path, number: int, line: bytes) -> Record:
    """One line. Its text is a stranger's: of what is wrong with it only the place is told."""
    if number == 1:
        named = _VERSION.search(line[:4096])
        if named is None or not line.startswith(b'{"type": "header"'):
            raise _bad(path, "its first line is no header")
        if named[1].decode() != SCHEMA:
            version = int(named[1])
            raise _bad(path, f"it has version {version} of the format, and this whystall reads version {SCHEMA}")
    try:
        record: Record = _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:80]
        raise _bad(path, f"line {number} cannot be used{f' ({place})' if place else ''}") from None
    return record


def _sorted(path: Path, records: Sequence[Record]) -> TranscriptContent:
    first, *rest = records
    if not isinstance(first, Header):
        raise _bad(path, "its first line is no header")
    told = TranscriptContent(first)
    for number, record in enumerate(rest, 2):
        once = {CaseOpened: "case", RanksJudged: "ranks"}.get(type(record))
        if once is not None:
            if getattr(told, once) is not None:
                raise _bad(path, f"line {number} tells a second {once}")
            setattr(told, once, record)
        elif isinstance(record, Observed | ObservationFailed):
            told.looks.append(record)
        elif isinstance(record, Replied | Failed):
            told.answers.append(record)
        elif isinstance(record, Blind):
            told.blind.append(record)
        elif isinstance(record, Struck):
            told.struck.append(record)
        elif isinstance(record, Stopped):
            told.stopped.append(record)
        elif not isinstance(record, Request):
            raise _bad(path, f"line {number} does not belong there")
    if told.case is None and told.ranks is None:
        raise _bad(path, "it tells of no case")
    return told


def _bad(path: Path, why: str) -> ToolError:
    remedy = "give a transcript of this version that is whole, or the id of a diagnosis made here"
    return ToolError(ErrorCode.BAD_RECORDING, f"{path.name} is no usable transcript: {why}", remedy)
