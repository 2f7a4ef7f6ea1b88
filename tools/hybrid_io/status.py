"""Status of a file and of the process: the engine's counters by name."""

from __future__ import annotations

import os
from typing import NamedTuple

from whystall.tools.hybrid_io import layout

_By = dict[str, dict[str, dict[str, int]]]


class FileStatus(NamedTuple):
    """One file; sizes are bytes."""

    engine: str
    """``hybrid``, or ``plain`` where the engine is missing."""
    direct: bool
    """Whether direct I/O is possible."""
    note: str
    """Why not, else empty."""
    direct_align: int
    """Required alignment of offsets and sizes of direct requests; 0 without direct I/O."""
    memory_align: int
    """Required alignment of memory; other memory is copied."""
    cached_bytes: int
    """Resident pages of the file, of all processes."""
    own_bytes: int
    """Those added by this process through the engine and not released, as far as known."""
    flags: tuple[str, ...]
    """Properties, of `layout.FLAGS`."""
    requests: _By
    """Requests and bytes by operation and reason (`layout.REASONS`). Each request counts once, under the reason of its
    main part; bytes count under the reason of the part that moved them."""


class Counters(NamedTuple):
    """Counters of this process since its start; a child of fork begins at zero."""

    requests: _By
    """As in `FileStatus`."""
    files: int
    dropped_bytes: int
    """Cached pages released to stay below the limit."""
    pressure_reads: int
    bounced_bytes: int
    """Copied through an aligned buffer because the caller's memory was not aligned."""
    fallbacks: int
    """Direct requests that the kernel rejected."""
    errors: int
    """Returned to the caller."""


def status_of(now: layout.Status) -> FileStatus:
    """Convert a status of the engine."""
    flags = tuple(name for bit, name in enumerate(layout.FLAGS) if now.flags >> bit & 1)
    direct = "unsupported" not in flags
    note = "" if direct else f"direct I/O is not possible here ({os.strerror(now.unsupported_errno)}): all is buffered"
    return FileStatus(
        engine="hybrid",
        direct=direct,
        note=note,
        direct_align=now.direct_align,
        memory_align=now.memory_align,
        cached_bytes=now.cached_bytes,
        own_bytes=now.own_bytes,
        flags=flags,
        requests=layout.counts(now.by),
    )


def counters_of(now: layout.Counters) -> Counters:
    """Convert counters of the engine."""
    return Counters(
        requests=layout.counts(now.by),
        files=now.files,
        dropped_bytes=now.dropped_bytes,
        pressure_reads=now.pressure_reads,
        bounced_bytes=now.bounced_bytes,
        fallbacks=now.fallbacks,
        errors=now.errors,
    )
