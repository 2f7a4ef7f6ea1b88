"""The structs and names of ``src/hybrid.h``, for ctypes; `check` compares their sizes with a loaded library's."""

from __future__ import annotations

import ctypes

ABI = 1
OPS = ("read", "write")
MODES = ("auto", "buffered", "direct")
BUFFERED = (
    *("small", "resident", "reread", "room", "passing", "edge"),
    *("unsupported", "append", "shared", "mapped", "refused", "off"),
)
DIRECT = ("caller", "size", "pressure")
REASONS = (*BUFFERED, *DIRECT)
"""Reasons of buffered, then of direct requests (``enum hy_reason``)."""
FLAGS = ("caller_direct", "unsupported", "append", "shared", "mapped")
"""Flags of a file (``HY_F_*``), lowest bit first."""
POSITION = -1
"""As an offset: use and move the descriptor's position."""
MOST = 0x7FFFF000
"""Most bytes of a request, as in the kernel."""

_U32, _U64, _DOUBLE = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double


class Policy(ctypes.Structure):
    """``struct hy_policy``."""

    _fields_ = (
        ("abi", _U32),
        ("mode", _U32),
        ("read_direct_bytes", _U64),
        ("write_direct_bytes", _U64),
        ("pressure_direct_bytes", _U64),
        ("limit_share", _DOUBLE),
        ("direct_share", _DOUBLE),
        ("limit_bytes", _U64),
        ("refresh_ns", _U64),
        ("refresh_bytes", _U64),
        ("keep_reread", _U32),
        ("pad", _U32),
        ("keep_file_bytes", _U64),
    )


class Request(ctypes.Structure):
    """``struct hy_request``."""

    _fields_ = (
        ("op", _U32),
        ("flags", _U32),
        ("bytes", _U64),
        ("file_bytes", _U64),
        ("reread_bytes", _U64),
        ("rest_bytes", _U64),
    )


class Pressure(ctypes.Structure):
    """``struct hy_pressure``."""

    _fields_ = (
        ("limit_bytes", _U64),
        ("cgroup_limit_bytes", _U64),
        ("memory_bytes", _U64),
        ("cached_bytes", _U64),
        ("active_bytes", _U64),
        ("other_bytes", _U64),
        ("own_bytes", _U64),
        ("read_at_ns", _U64),
        ("cgroup_version", _U32),
        ("pad", _U32),
    )


class Choice(ctypes.Structure):
    """``struct hy_choice``."""

    _fields_ = (("way", _U32), ("reason", _U32))


class Count(ctypes.Structure):
    """``struct hy_count``."""

    _fields_ = (("requests", _U64), ("bytes", _U64))


Counts = Count * len(REASONS) * len(OPS)


class Counters(ctypes.Structure):
    """``struct hy_counters``."""

    _fields_ = (
        ("magic", _U64),
        ("abi", _U64),
        ("pid", _U64),
        ("start_ns", _U64),
        ("program", ctypes.c_char * 64),
        ("by", Counts),
        ("files", _U64),
        ("dropped_bytes", _U64),
        ("pressure_reads", _U64),
        ("bounced_bytes", _U64),
        ("fallbacks", _U64),
        ("errors", _U64),
        ("stdio_files", _U64),
        ("spare", _U64 * 8),
    )


class Status(ctypes.Structure):
    """``struct hy_status``."""

    _fields_ = (
        ("direct_align", _U64),
        ("memory_align", _U64),
        ("cached_bytes", _U64),
        ("own_bytes", _U64),
        ("flags", _U32),
        ("unsupported_errno", _U32),
        ("by", Counts),
    )


STRUCTS = (Policy, Request, Pressure, Choice, Counters, Status)
"""In the order of the sizes from ``hy_sizes()``."""


def check(library: ctypes.CDLL) -> str:
    """Compare a loaded library with these structs; return the differences in one line, empty if none."""
    sizes = (_U32 * len(STRUCTS))()
    library.hy_sizes(sizes, len(STRUCTS))
    wrong = [struct.__name__ for struct, size in zip(STRUCTS, sizes, strict=True) if ctypes.sizeof(struct) != size]
    return f"sizes differ: {', '.join(wrong)}" if wrong else ""


def counts(by: ctypes.Array[ctypes.Array[Count]]) -> dict[str, dict[str, dict[str, int]]]:
    """Return requests and bytes by operation and reason, without zeros."""
    return {
        op: {
            reason: {"requests": by[i][j].requests, "bytes": by[i][j].bytes}
            for j, reason in enumerate(REASONS)
            if by[i][j].requests or by[i][j].bytes
        }
        for i, op in enumerate(OPS)
    }
