"""System calls: each slow one, totals of all, and latencies per file."""

from __future__ import annotations

import contextlib
import ctypes as ct
import errno
from collections.abc import Mapping
from dataclasses import dataclass, field

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.collector import Collector, Window

# Storage that is full, broken, read-only or stale; too little memory or too many files; peers that do not answer; names
# that are missing, not accessible, or taken.
ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
    *(errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE),
    *(errno.ENOTCONN, errno.EACCES, errno.ENOENT, errno.EEXIST, errno.EADDRNOTAVAIL),
)
"""Errors with which failing calls are counted."""


@dataclass(frozen=True)
class SyscallRows:
    """The calls of one window. `failures`: None if they were not counted; `failed`: the first call of each, by thread,
    number and error."""

    calls: list[cap.Call] = field(default_factory=list)
    call_totals: list[cap.CallTotal] = field(default_factory=list)
    file_slots: list[cap.FileSlot] = field(default_factory=list)
    failures: list[cap.CallFailures] | None = None
    failed: dict[tuple[int, int, int], cap.Call] = field(default_factory=dict)


class Syscalls(Collector):
    """Record calls that take at least `min_ns`."""

    shared_maps = ("call_totals", "file_slots", "call_failures", "stacks_emitted")
    start_iterators = stop_iterators = ("walk",)
    bytes_per_thread = ct.sizeof(lay.SegmentRecord)

    def __init__(self, min_ns: int = 10_000_000) -> None:
        self._min_ns = min_ns

    def programs(self) -> list[str]:
        """Return exits first: an exit without an entry is ignored."""
        ends = [] if self.setup.variants["task_storage"] else ["on_thread_exit"]
        return ["on_exit", "on_enter", "on_switch", *ends]

    def constants(self) -> Mapping[str, int]:
        """Return the threshold, and the errors as bits."""
        low, high = (sum(1 << error % 64 for error in ERRORS if error // 64 == part) for part in (0, 1))
        return {"syscalls": True, "call_min_ns": self._min_ns, "errors_low": low, "errors_high": high}

    def read(self, window: Window) -> SyscallRows:
        """Return rows; paths of calls still in progress are read from their callers' memory."""
        totals = cap.call_totals(window.made.map("call_totals").items())
        window.seen["calls"] = sum(one.count for one in totals) + sum(window.lost.get("call_totals_full", ()))
        calls = [_with_open_paths(call, window.records) for call in window.records.calls]
        return SyscallRows(
            # the first failure of each kind is recorded regardless of its length
            [call for call in calls if call.end - call.start >= self._min_ns or call.returned >= 0],
            totals,
            cap.file_slots(window.made.map("file_slots").items()),
            cap.call_failures(window.made.map("call_failures").items()),
            {(call.tid, call.nr, -call.returned): call for call in reversed(calls) if call.returned < 0},
        )


def _with_open_paths(call: cap.Call, records: cap.Records) -> cap.Call:
    addresses = records.open_paths.get((call.tid, call.start))
    if addresses is None:
        return call
    return call._replace(path=remote_text(call.tid, addresses[0]), path2=remote_text(call.tid, addresses[1]))


def remote_text(tid: int, address: int) -> bytes:
    """Return a NUL-terminated text in another thread's memory; empty if unreadable."""
    if not address:
        return b""
    text = b""
    with contextlib.suppress(OSError, ValueError, OverflowError), open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        while b"\0" not in text and len(text) < lay.PATH_BYTES:  # page by page: the next may be unmapped
            chunk = memory.read(4096 - (address + len(text)) % 4096)
            if not chunk:
                break
            text += chunk
    return text.split(b"\0", 1)[0]
