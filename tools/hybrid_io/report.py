"""What the shim counted in the programs of one run, read from the files they counted in.

The layout is `struct hy_counters` (src/hybrid.h) and, one page further, `struct shim_counters` (src/shim.h).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from whystall.tools.hybrid_io.layout import DIRECT, OPS, REASONS

REST = "rest"
"""The file of all programs that made no large request."""
_PAGE = 4096
_ENGINE_MAGIC, _SHIM_MAGIC = 0x3130304F49594877, 0x3130304D49485359
_ENGINE_HEAD = struct.Struct("=QQQQ64s")
_ENGINE_TAIL = struct.Struct("=7Q")
_SHIM_HEAD = struct.Struct("=QII9Q")
_STRIPES = 16
_ALIGN = 64
_FIRST = -(-_SHIM_HEAD.size // _ALIGN) * _ALIGN
REST_BYTES = _PAGE + _FIRST + _STRIPES * (-(-16 * len(OPS) * len(REASONS) // _ALIGN) * _ALIGN)
"""How long a file of counters is."""


@dataclass
class Count:
    """Requests, and bytes that they moved."""

    requests: int = 0
    bytes: int = 0


def _counts() -> dict[str, dict[str, Count]]:
    return {operation: {reason: Count() for reason in REASONS} for operation in OPS}


@dataclass
class Programs:
    """What one program did, or several together.

    `counts`: by operation and reason. `passed_bytes`: read and written (as the kernel accounts it: pipes and sockets,
    too) without the shim, by C stdio or by system calls of its own, None where that is not known. `copied_bytes`: moved
    inside of the kernel (sendfile, copy_file_range, splice). `stdio_requests`: large fread and fwrite looked after.
    `started`: programs it started, `uncovered`: those of them that run without the shim.
    """

    pid: int = 0
    program: str = ""
    running: bool = False
    programs: int = 1
    counts: dict[str, dict[str, Count]] = field(default_factory=_counts)
    files: int = 0
    dropped_bytes: int = 0
    bounced_bytes: int = 0
    fallbacks: int = 0
    errors: int = 0
    stdio_files: int = 0
    stdio_requests: int = 0
    copied_bytes: int = 0
    passed_bytes: dict[str, int] | None = None
    started: int = 0
    uncovered: int = 0

    def bytes(self, operation: str, direct: bool | None = None) -> int:
        """Bytes of an operation, of one way where `direct` says which."""
        ways = self.counts[operation].items()
        return sum(c.bytes for reason, c in ways if direct is None or (reason in DIRECT) is direct)

    def requests(self, operation: str) -> int:
        """Requests of an operation."""
        return sum(count.requests for count in self.counts[operation].values())

    def add(self, other: Programs) -> None:
        """Count `other` in; what it passed by is left as it is."""
        for operation, ways in other.counts.items():
            for reason, count in ways.items():
                mine = self.counts[operation][reason]
                mine.requests += count.requests
                mine.bytes += count.bytes
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMS = (
    *("programs", "files", "dropped_bytes", "bounced_bytes", "fallbacks", "errors"),
    *("stdio_files", "stdio_requests", "copied_bytes", "started", "uncovered"),
)


def read_folder(folder: Path) -> tuple[list[Programs], Programs]:
    """The programs that made large requests, in the order they began, and all others as one.

    A file that a program was about to make when it was killed is left out.
    """
    rest = Programs(programs=0)
    found: list[tuple[int, Programs]] = []
    for path in folder.iterdir():
        if path.is_symlink():  # the shim's, where its path has blanks
            continue
        data = path.read_bytes()
        if path.name == REST:
            rest = _rest(data) or rest
            continue
        one = _one(data)
        if one is not None:
            found.append(one)
    return [program for _start, program in sorted(found, key=lambda item: item[0])], rest


def _one(data: bytes) -> tuple[int, Programs] | None:
    if len(data) < _PAGE:
        return None
    magic, _abi, pid, start, name = _ENGINE_HEAD.unpack_from(data)
    program = _shim(data)
    if magic != _ENGINE_MAGIC or program is None:
        return None
    program.pid, program.program = pid, name.split(b"\0")[0].decode("utf-8", "replace")
    program.running = _runs(pid)
    at = _add_counts(program, data, _ENGINE_HEAD.size)
    files, dropped, _pressure, bounced, fallbacks, errors, _stdio = _ENGINE_TAIL.unpack_from(data, at)
    program.files, program.dropped_bytes, program.bounced_bytes = files, dropped, bounced
    program.fallbacks, program.errors = fallbacks, errors
    return start, program


def _rest(data: bytes) -> Programs | None:
    program = _shim(data)
    if program is not None:
        program.passed_bytes = None  # of those that could tell; the run as a whole is told instead
    return program


def _shim(data: bytes) -> Programs | None:
    if len(data) < _PAGE + _SHIM_HEAD.size:
        return None
    magic, reasons, stripe, known, ended, *rest = _SHIM_HEAD.unpack_from(data, _PAGE)
    if magic != _SHIM_MAGIC or reasons != len(REASONS):
        return None
    read, written, copied, stdio_files, stdio_requests, started, uncovered = rest
    program = Programs(
        programs=ended or 1,
        copied_bytes=copied,
        stdio_files=stdio_files,
        stdio_requests=stdio_requests,
        started=started,
        uncovered=uncovered,
        passed_bytes=dict(zip(OPS, (read, written), strict=True)) if known else None,
    )
    for number in range(_STRIPES):
        _add_counts(program, data, _PAGE + _FIRST + number * stripe)
    return program


def _add_counts(program: Programs, data: bytes, at: int) -> int:
    """Add a table of counts at `at`; where it ends."""
    numbers = struct.unpack_from(f"={2 * len(OPS) * len(REASONS)}Q", data, at)
    pairs = iter(zip(numbers[::2], numbers[1::2], strict=True))
    for operation in OPS:
        for reason in REASONS:
            requests, moved = next(pairs)
            program.counts[operation][reason].requests += requests
            program.counts[operation][reason].bytes += moved
    return at + 8 * len(numbers)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
