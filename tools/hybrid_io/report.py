"""Read the shim's counters of the programs of one run from their files.

The layout is `struct hy_counters` (src/hybrid.h) and, one page further, `struct shim_counters` (src/shim.h).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from whystall.tools.hybrid_io.layout import DIRECT, OPS, REASONS

REST = "rest"
"""The file of all programs without large requests."""
_PAGE = 4096
_ENGINE_MAGIC, _SHIM_MAGIC = 0x3130304F49594877, 0x3130304D49485359
_ENGINE_HEAD = struct.Struct("=QQQQ64s")
_ENGINE_TAIL = struct.Struct("=7Q")
_SHIM_HEAD = struct.Struct("=QII9Q")
_STRIPES = 16
_ALIGN = 64
_FIRST = -(-_SHIM_HEAD.size // _ALIGN) * _ALIGN
REST_BYTES = _PAGE + _FIRST + _STRIPES * (-(-16 * len(OPS) * len(REASONS) // _ALIGN) * _ALIGN)
"""Size of a counter file."""


@dataclass
class Count:
    """Requests and transferred bytes."""

    requests: int = 0
    bytes: int = 0


def _counts() -> dict[str, dict[str, Count]]:
    return {operation: {reason: Count() for reason in REASONS} for operation in OPS}


@dataclass
class Programs:
    """Counters of one program, or of several together.

    `counts`: by operation and reason. `passed_bytes`: read and written without the shim, by C stdio or own system calls
    (in the kernel's accounting, with pipes and sockets), None if unknown. `copied_bytes`: moved within the kernel
    (sendfile, copy_file_range, splice). `stdio_requests`: large fread and fwrite of the shim. `started`: started
    programs; `uncovered`: those without the shim.
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
        """Return the bytes of an operation; with `direct`, of direct (True) or buffered (False) requests only."""
        ways = self.counts[operation].items()
        return sum(c.bytes for reason, c in ways if direct is None or (reason in DIRECT) is direct)

    def requests(self, operation: str) -> int:
        """Return the number of requests of an operation."""
        return sum(count.requests for count in self.counts[operation].values())

    def add(self, other: Programs) -> None:
        """Add the counters of `other`, except `passed_bytes`."""
        for operation, ways in other.counts.items():
            for reason, count in ways.items():
                total = self.counts[operation][reason]
                total.requests += count.requests
                total.bytes += count.bytes
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMS = (
    *("programs", "files", "dropped_bytes", "bounced_bytes", "fallbacks", "errors"),
    *("stdio_files", "stdio_requests", "copied_bytes", "started", "uncovered"),
)


def read_folder(folder: Path) -> tuple[list[Programs], Programs]:
    """Return the programs with large requests, in the order of their start, and all others together.

    An incomplete file of a killed program is left out.
    """
    rest = Programs(programs=0)
    found: list[tuple[int, Programs]] = []
    for path in folder.iterdir():
        if path.is_symlink():  # the link to a shim whose path has blanks
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
        program.passed_bytes = None  # known of a part only; the run reports the total instead
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
    """Add a table of counts at `at`; return its end."""
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
