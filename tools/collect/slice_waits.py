"""What the threads of a slice waited for, beyond the kernel's totals: lock or file, who ended the wait, and which part
of a long wait lies in the slice. Sums, made as the records arrive."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.tools.contract.text import clean, clean_path, path_pattern

_MOST = 4096  # different waits of a slice; of the others only the time is known
_MOST_FILES = 4096
# start, end; tgid, tid, nr, off_class, ino, dev, gen, futex; pystack, wake; waker_tgid; wake_context, waker_comm; comm
_SEGMENT = struct.Struct("<4xIQQ8xIIiIQIIQ16xQQ8xI12xI4x16s16x16s").unpack_from
_FILE = struct.Struct("<8xQII").unpack_from  # ino, dev, gen
_INODE = {"pipe:[": "pipe", "socket:[": "socket"}
_NUMBER = re.compile(r"(?<=[-_:/#@ ])[0-9]+|[0-9]{2,}")
_CONTEXTS = ("", *lay.WAKE_CONTEXTS[1:])
_TASK = _CONTEXTS.index("task")


class WaitKey(NamedTuple):
    """Waits of one thread in one place. `file`: inode, device and generation; `state`: ``layout.OFF_...``."""

    tgid: int
    tid: int
    state: int
    nr: int
    pystack: int
    file: tuple[int, int, int]


class WaitEnd(NamedTuple):
    """The rest of what a wait was for. `futex`: address, 0: none. `context`: of the wake-up; `waker_tgid`, `waker`:
    who ended it if that was a thread."""

    futex: int
    context: int
    waker_tgid: int
    waker: bytes


class WaitSum(NamedTuple):
    """`inside_ns`: time of waits within the slice, `early_ns`: of those that ended in it, the time before it;
    `open_ns`: the part of `inside_ns` of waits in progress; `longest_ns`: of one of these; `number`: of those that
    ended. `comm`: of the thread."""

    inside_ns: int
    early_ns: int
    open_ns: int
    longest_ns: int
    number: int
    comm: bytes


# As many members as `WaitKey` and `WaitEnd`, in plain tuples and lists, which are made faster: for each record.
_Key = tuple[int, int, int, int, int, int, int, int, int, int, int, bytes]


class SliceWaits:
    """The sums of the slice so far."""

    def __init__(self) -> None:
        self._start = 0
        self._sums: dict[_Key, list[int]] = {}
        self._comms: dict[int, bytes] = {}
        self._files: dict[tuple[int, int, int], bytes] = {}
        self._names: dict[tuple[int, int, int], str] = {}

    def begin(self, start_ns: int) -> None:
        """Begin a slice at `start_ns` (CLOCK_MONOTONIC)."""
        self._start = start_ns
        self._sums, self._comms = {}, {}
        if len(self._files) > _MOST_FILES:
            self._files = {}
        if len(self._names) > _MOST_FILES:
            self._names = {}

    def segment(self, taken: bytes, at: int) -> None:
        """Add the record of a wait."""
        (
            flags, start, end, tgid, tid, nr, state, ino, dev, gen, futex, pystack, wake, waker_tgid, context,
            waker, comm,
        ) = _SEGMENT(taken, at)  # fmt: skip
        if flags & lay.RECORD_KTHREAD:
            return
        is_open = flags & lay.RECORD_OPEN
        if is_open or not wake:
            context = 0
        if context != _TASK:
            waker_tgid, waker = 0, b""
        key = (tgid, tid, state, nr, pystack, ino, dev, gen, futex, context, waker_tgid, waker)
        known = self._sums.get(key)
        if known is None:
            if len(self._sums) >= _MOST:
                key = (tgid, tid, state, nr, pystack, ino, dev, gen, 0, 0, 0, b"")
            known = self._sums.setdefault(key, [0, 0, 0, 0, 0])
            self._comms[tid] = comm
        took = end - start
        inside = took if start >= self._start else max(0, end - self._start)
        known[0] += inside
        if took > known[3]:
            known[3] = took
        if is_open:
            known[2] += inside
        else:
            known[1] += took - inside
            known[4] += 1

    def file(self, record: bytes) -> None:
        """Keep the record of a file, which later waits name by its number."""
        key = _FILE(record)
        if len(self._files) <= 2 * _MOST_FILES:
            self._files[key] = record
            self._names.pop(key, None)

    def sums(self) -> Iterator[tuple[WaitKey, WaitEnd, WaitSum]]:
        """Yield the sums."""
        for (tgid, tid, state, nr, pystack, *file, futex, context, waker_tgid, waker), known in self._sums.items():
            key = WaitKey(tgid, tid, state, nr, pystack, (file[0], file[1], file[2]))
            yield (
                key,
                WaitEnd(futex, context, waker_tgid, waker),
                WaitSum(known[0], known[1], known[2], known[3], known[4], self._comms[tid]),
            )

    def file_name(self, key: tuple[int, int, int]) -> str:
        """Return the path of a file, numbers in its last two parts as ``*``; ``pipe``, ``socket``, or the kind of
        another file without a path; empty if unknown."""
        record = self._files.get(key)
        if record is None:
            return ""
        name = self._names.get(key)
        if name is None:
            (found,) = cap.Records([record]).files.values()
            path = clean_path(found.path)
            name = next((kind for head, kind in _INODE.items() if path.startswith(head)), None) or path_pattern(path)
            self._names[key] = name
        return name


def ended_by(how: WaitEnd, tgid: int) -> str:
    """Return who ended waits of process `tgid`: ``thread NAME`` of its own, ``process NAME``, else the context: timer,
    block, network, signal, interrupt; empty if unknown."""
    if how.context != _TASK:
        return _CONTEXTS[how.context] if how.context < len(_CONTEXTS) else ""
    return f"{'thread' if how.waker_tgid == tgid else 'process'} {role_of(how.waker)}"


def role_of(comm: bytes) -> str:
    """Return the name of a thread, numbers of more than a digit or after a separator as ``*``."""
    return _NUMBER.sub("*", clean(comm.split(bytes(1))[0]))
