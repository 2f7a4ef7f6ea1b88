"""Read logs, core files and error files of a job or a host into the tables of the collector ``crashes``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

import polars as pl

from whystall.tools.collect.tables import CRASHES, filled
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.crashes.core_file import core_file, is_core
from whystall.tools.crashes.kernel import KernelReport, beginning, report
from whystall.tools.crashes.rules import kernel_rules
from whystall.tools.crashes.scan import Place, places
from whystall.tools.crashes.times import Instant, instant
from whystall.tools.crashes.user_space import Failure, error_file, failure, program_rules
from whystall.tools.files.input import DAMAGED, opened
from whystall.tools.node.log_lines import LogLine, lines
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

COLLECTOR = "crashes"
SEPARATOR = " | "
"""Between the other titles of a crash."""
_MOST_FILES = 4096
_DEPTH = 8
_MOST_REPORTS = 400
"""Reports, and failures, that are kept per file; of more only the number."""
_REPORT_LINES = 1000
_SMALL = 1 << 20
_HEAD = 4096
_JOURNAL, _KDUMP = b"LPKSHHRH", (b"KDUMP   ", b"makedumpfile")
# `rank3.log`, `rank_3/`, `attempt_0/3/stderr.log`, `job-3.err`
_RANK = re.compile(r"rank[-_.]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
_LOCAL = re.compile(r"attempt_\d+/(?P<local>\d{1,7})/")


@dataclass
class _Found:
    logs: list[tuple[object, ...]] = field(default_factory=list)
    reports: list[tuple[object, ...]] = field(default_factory=list)
    failures: list[tuple[object, ...]] = field(default_factory=list)
    not_seen: list[tuple[str, str]] = field(default_factory=list)
    readable: bool = False  # one file at least is a text, a core file or an error file


class Taker(Protocol):
    """Reads the text of a log along with the scan for crashes, so that a file is read once."""

    def take(self, raw: bytes) -> None:
        """Read the next bytes of the file."""


class _Shared:
    """A file whose bytes also go to `takers`, as they are read from its start on."""

    def __init__(self, file: BinaryIO, takers: Sequence[Taker]) -> None:
        self._file, self._takers = file, takers
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        """Return the next bytes of the file, at most `size`."""
        data = self._file.read(size)
        for taker in self._takers:
            taker.take(data)
        return data


def read_logs(
    paths: Sequence[str], name: str = "logs", takers: Callable[[Path], Sequence[Taker]] = lambda path: ()
) -> Recording:
    """Return what the files at and below `paths` state about crashes, as a recording in memory.

    `takers`: who else reads a text file; called once per such file. Raises `ToolError`: io_error if one of `paths`
    cannot be read, bad_argument if there is no file at all. Files below a directory that cannot be read are blind
    spots.
    """
    found = _Found()
    files = list(islice(files_below(paths), _MOST_FILES + 1))
    if not files:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "there is no log file", "give files, or a directory that has some")
    if len(files) > _MOST_FILES:
        found.not_seen.append(("logs_unread", f"all but the first {_MOST_FILES}"))
    named = {Path(path) for path in paths}
    for path in files[:_MOST_FILES]:
        try:
            _read(path, found, takers)
        except (OSError, ToolError, *DAMAGED) as error:
            if path in named:
                raise _unreadable(path, error) from error
            found.not_seen.append(("logs_unread", clean_path(f"{path}: {_why(error)}")))
    return _recorded(found, name)


def name_of(paths: Sequence[str]) -> str:
    """Return a name for these logs: that of the only one, else their number."""
    return clean(Path(paths[0]).name) if len(paths) == 1 else f"{len(paths)} logs"


def files_below(paths: Sequence[str]) -> Iterator[Path]:
    """Yield the files that are `paths`, or below the directories among them."""
    for name in paths:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        for folder, below, names in os.walk(path):
            below[:] = sorted(below) if len(Path(folder).relative_to(path).parts) < _DEPTH else []
            yield from (Path(folder, one) for one in sorted(names) if not Path(folder, one).is_symlink())


def _unreadable(path: Path, error: Exception) -> ToolError:
    if isinstance(error, ToolError):
        return error
    return ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {_why(error)}", "check the path and the permission")


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _read(path: Path, found: _Found, takers: Callable[[Path], Sequence[Taker]]) -> None:
    status = path.stat()
    year = datetime.fromtimestamp(max(status.st_mtime, 0), timezone.utc).year
    rank = int(one["rank"]) if (one := _RANK.search(path.name) or _RANK.search(str(path.parent))) else -1
    local = int(two["local"]) if (two := _LOCAL.search(str(path))) else -1
    with opened(path) as file:
        head = file.read(_HEAD)
        file.seek(0)
        if is_core(head):
            _core(path, file, status.st_size, rank, local, found)
            return
        if head.startswith(_JOURNAL):
            why = "a binary journal; export it with journalctl -o short-precise or -o json"
            found.not_seen.append(("logs_unread", clean_path(f"{path}: {why}")))
            return
        if head.startswith(_KDUMP):
            why = "a dump of memory; give the vmcore-dmesg.txt or dmesg file beside it"
            found.not_seen.append(("logs_unread", clean_path(f"{path}: {why}")))
            return
        if head.lstrip()[:1] == b"{" and status.st_size <= _SMALL:
            known = error_file(file.read(_SMALL), year, program_rules())
            if known is not None:
                _add_failure(found, path, known, rank, local)
                found.logs.append((clean_path(str(path)), rank, local, status.st_size, 0, 0, False))
                return
            file.seek(0)
        if b"\0" in head:
            found.not_seen.append(("log_damaged", clean_path(f"{path}: NUL bytes (binary, or UTF-16)")))
        else:
            found.readable = True
        _text(path, _Shared(file, takers(path)), (rank, local), year, found)


def _core(path: Path, file: BinaryIO, size: int, rank: int, local: int, found: _Found) -> None:
    core = core_file(file, size)
    detail = f"{core.missing_bytes} bytes of it are missing" if core.missing_bytes else ""
    title = core.signal or "core file without a signal"
    known = Failure(0, size, "core_file", title, detail, pid=core.pid, signal=core.signal, exact=False)
    _add_failure(found, path, known, rank, local, comm=core.comm)
    found.logs.append((clean_path(str(path)), rank, local, size, 0, 0, False))
    if not core.complete:
        found.not_seen.append(("core_incomplete", clean_path(str(path))))


def marks_of_crashes() -> Sequence[str]:
    """Return the texts of which a line must have one to begin a report or a failure."""
    kernel = [text.decode("ascii") for text in kernel_rules().begins()]
    return list(dict.fromkeys([*kernel, *program_rules().begins()]))


class _Reader:
    """Reads one log: what begins at the places that the scan finds."""

    def __init__(self, path: Path, ranks: tuple[int, int], year: int, found: _Found) -> None:
        self._path, self._ranks, self._year, self._found = path, ranks, year, found
        self._rules, self._programs = kernel_rules(), program_rules()
        self._end = 0
        self._lines: frozenset[int] = frozenset()
        self.left = self.imitated = 0
        self.unknown = False
        self._reports = self._failures = 0

    def texts(self) -> list[str]:
        """Return the texts to scan for."""
        return list(marks_of_crashes())

    def taken(self, offset: int) -> bool:
        """Return whether the line at `offset` belongs to what was read already."""
        return offset < self._end or offset in self._lines

    def read(self, place: Place) -> None:
        """Read what begins at `place`, if anything does."""
        if (failed := self._failure(place)) is not None:
            self._end = failed.end
            if self._failures < _MOST_REPORTS:
                _add_failure(self._found, self._path, failed, *self._ranks, line=place.line)
            else:
                self.left += 1
            self._failures += 1
            return
        first, begun = self._beginning(place)
        if begun is None:
            return
        if begun.origin == "user":
            self.imitated += 1
            return
        if self._reports >= _MOST_REPORTS:
            self.left += 1
            return
        window = islice(lines(place.window, place.offset), first, first + _REPORT_LINES)
        known = report(window, self._rules)
        if known is None:
            return
        self._reports += 1
        self.unknown = self.unknown or known.origin == "unknown"
        self._lines = known.lines
        _add_report(self._found, self._path, known, _time_of(place, known, self._year), place.line)

    def _failure(self, place: Place) -> Failure | None:
        return failure(place.window, place.before, place.offset, self._year, self._programs)

    def _beginning(self, place: Place) -> tuple[int, LogLine | None]:
        """Return the part of the line that begins a report of the kernel, and its number."""
        end = place.window.find(b"\n")
        raw = place.window if end < 0 else place.window[:end]
        for number, part in enumerate(lines(raw, place.offset)):
            if beginning(part, self._rules) is not None:
                return number, part
        return 0, None


def _time_of(place: Place, known: KernelReport, year: int) -> Instant | None:
    text = known.clock.encode() or place.window[:512].split(b"\n", 1)[0]
    return instant(text, year)


def _text(path: Path, file: _Shared, ranks: tuple[int, int], year: int, found: _Found) -> None:
    reader = _Reader(path, ranks, year, found)
    damaged = False
    try:
        for place in places(file, reader.texts(), reader.taken):
            reader.read(place)
    except DAMAGED:
        damaged = True  # what was read before stays
    size = file.tell() if not damaged else 0
    found.logs.append((clean_path(str(path)), *ranks, size, reader.left, reader.imitated, damaged))
    if reader.left:
        found.not_seen.append(("reports_left", clean_path(f"{path}: {reader.left}")))
    if damaged:
        found.not_seen.append(("logs_unread", clean_path(f"{path}: damaged")))
    if reader.imitated:
        found.not_seen.append(("user_space_lines", clean_path(f"{path}: {reader.imitated}")))
    if reader.unknown:
        found.not_seen.append(("origin_unknown", clean_path(str(path))))


def _add_report(found: _Found, path: Path, known: KernelReport, at: Instant | None, line: int) -> None:
    details, kill = known.details, known.kills[0] if known.kills else None
    found.reports.append(
        (
            clean_path(str(path)),
            known.start,
            known.end,
            known.kind,
            known.title,
            SEPARATOR.join(known.also),
            known.function,
            known.why,
            known.origin,
            known.panicked,
            -1.0 if known.time_s is None else known.time_s,
            *_stated(at),
            clean(known.host),
            details.comm,
            details.pid,
            details.taint,
            details.kernel,
            " ".join(details.modules),
            " ".join(details.foreign),
            " ".join(known.frames),
            (kill.cgroup or "") if kill else "",
            kill.limit_cgroup if kill else "",
            kill.anon_bytes if kill else -1,
            known.allocator,
            line,
            known.module,
        )
    )


def _add_failure(
    found: _Found, path: Path, known: Failure, rank: int, local: int, comm: str = "", line: int = 0
) -> None:
    own = clean_path(str(path))
    until = _stated(known.until)
    found.failures.append(
        (
            own,
            known.offset,
            known.end,
            known.kind,
            known.title,
            known.detail,
            known.rank if known.rank >= 0 else rank,
            known.local_rank if known.local_rank >= 0 else local,
            known.pid,
            comm,
            known.host,
            -1000 if known.status is None else known.status,
            known.signal,
            known.of_other,
            list(known.frames),
            *_stated(known.at),
            known.exact,
            until[0],
            until[1],
            line,
        )
    )


def _stated(at: Instant | None) -> tuple[int, int, bool]:
    return (-1, -1, False) if at is None else (at.at_ns // 1000, max(at.width_ns // 1000, 1), at.zoned)


def _recorded(found: _Found, name: str) -> Recording:
    tables: dict[str, pl.DataFrame] = filled(CRASHES, logs=found.logs, reports=found.reports, failures=found.failures)
    seen = len(found.reports) + len(found.failures)
    entry = CollectorManifest(
        engine="files",
        seen=seen,
        kept=seen,
        proven=found.readable or seen > 0,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in found.not_seen],
    )
    manifest = Manifest(
        id=clean(name),
        host="",
        kernel="",
        machine="",
        cpus=1,
        target=Target(everything=True),
        started="1970-01-01T00:00:00.000Z",
        clock="",
        start_ns=0,
        window_ns=0,
        requested_ns=0,
        collectors={COLLECTOR: entry},
    )
    return Recording.in_memory(manifest, {f"{COLLECTOR}.{table}": frame for table, frame in tables.items()})
