"""Read the transcript of a diagnosis from its file: only complete ones."""

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
    Answered,
    AnswerFailed,
    CaseOpened,
    Cut,
    End,
    Header,
    HostNotObserved,
    Line,
    ObservationFailed,
    Observed,
    RanksJudged,
    Record,
    Request,
    Stopped,
    Struck,
)
from whystall.tools.contract.errors import ErrorCode, ToolError

_LINE: TypeAdapter[Any] = TypeAdapter(Line)
_SLACK = 1 << 10  # for the last line, which records where it was cut
_VERSIONS = ("1", "2", "3", SCHEMA)
_VERSION = re.compile(rb'"schema_version": ?"(\d{1,9})"')


@dataclass
class TranscriptContent:
    """The records of a transcript by type, each list in the order of the lines. It has `case`, `ranks` or both.

    `struck_from`: what was struck from the conclusion in an answer, by its index in `answers`.
    """

    header: Header
    case: CaseOpened | None = None
    ranks: RanksJudged | None = None
    blind: list[HostNotObserved] = field(default_factory=list)
    windows: list[Observed | ObservationFailed] = field(default_factory=list)
    answers: list[Answered | AnswerFailed] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    struck_from: dict[int, Struck] = field(default_factory=dict)
    stopped: list[Stopped] = field(default_factory=list)


def read(path: Path) -> tuple[TranscriptContent, End]:
    """Return the content of the transcript at `path`, and its last record.

    Raises `ToolError`: io_error if it cannot be read; bad_recording if it is no transcript, of a newer version, too
    large, damaged, cut at the size limit, or unfinished.
    """
    records, last = _records(path)
    if not records:
        raise _bad(path, "it is empty" if not last else "its first line is no header")
    end = records[-1]
    if isinstance(end, Cut):
        raise _bad(path, f"it was cut at {end.bytes >> 20} MiB, and cannot be replayed; what is there can be read")
    if last or not isinstance(end, End):
        why = f"it ends after line {len(records)}: the diagnosis was stopped, or is still running"
        raise _bad(path, why)
    return _content_of(path, records[:-1]), end


def records_of(path: Path) -> list[Record]:
    """Return the records of the transcript at `path`, also of an unfinished one. Raises as `read`."""
    return _records(path)[0]


def _records(path: Path) -> tuple[list[Record], bytes]:
    """Return the records of the whole lines, and what follows the last one."""
    lines = _bytes(path).split(b"\n")
    last = lines.pop()
    return [_record(path, number, line) for number, line in enumerate(lines, 1)], last


def _bytes(path: Path) -> bytes:
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
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "give the id of a diagnosis, or the file of its transcript"
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {reason}", remedy) from None
    raise _bad(path, f"it is larger than {MAX_BYTES >> 20} MiB")


def _record(path: Path, number: int, line: bytes) -> Record:
    """Parse one line. Error messages name only the place of a fault: the text is untrusted."""
    if number == 1:
        named = _VERSION.search(line[:4096])
        if named is None or not line.startswith(b'{"type": "header"'):
            raise _bad(path, "its first line is no header")
        if named[1].decode() not in _VERSIONS:
            version = int(named[1])
            raise _bad(path, f"it has version {version} of the format, and this whystall reads version {SCHEMA}")
    try:
        record: Record = _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:80]
        raise _bad(path, f"line {number} cannot be used{f' ({place})' if place else ''}") from None
    return record


def _content_of(path: Path, records: Sequence[Record]) -> TranscriptContent:
    first, *rest = records
    if not isinstance(first, Header):
        raise _bad(path, "its first line is no header")
    content = TranscriptContent(first)
    for number, record in enumerate(rest, 2):
        once = {CaseOpened: "case", RanksJudged: "ranks"}.get(type(record))
        if once is not None:
            if getattr(content, once) is not None:
                raise _bad(path, f"line {number} is a second {once}")
            setattr(content, once, record)
        elif isinstance(record, Observed | ObservationFailed):
            content.windows.append(record)
        elif isinstance(record, Answered | AnswerFailed):
            content.answers.append(record)
        elif isinstance(record, HostNotObserved):
            content.blind.append(record)
        elif isinstance(record, Struck):
            content.struck.append(record)
            content.struck_from[len(content.answers) - 1] = record
        elif isinstance(record, Stopped):
            content.stopped.append(record)
        elif not isinstance(record, Request):
            raise _bad(path, f"line {number} does not belong there")
    if content.case is None and content.ranks is None:
        raise _bad(path, "it has no case")
    return content


def _bad(path: Path, why: str) -> ToolError:
    remedy = "give a transcript of this version that is whole, or the id of a diagnosis made here"
    return ToolError(ErrorCode.BAD_RECORDING, f"{path.name} is no usable transcript: {why}", remedy)
