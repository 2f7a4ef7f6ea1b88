"""The result of a session as typed rows, decoded from the records of the BPF programs.

All times are CLOCK_MONOTONIC nanoseconds. Names and paths are untrusted bytes as the kernel gave them; the callers
sanitise them. ``dev`` is the kernel's device number (``device`` splits it). Stack ids are keys of ``Capture.stacks``; 0
means no stack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from whystall.bpf import layout as lay

_Result = TypeVar("_Result")
_Name = bytes  # for classes with a member ``bytes``


class FileKey(NamedTuple):
    """Identity of a file: kernel device number, inode number, inode generation."""

    dev: int
    ino: int
    gen: int


class Call(NamedTuple):
    """One system call slower than the threshold. ``end - start = cpu + d + s + runnable + other``."""

    start: int
    end: int
    tgid: int
    tid: int
    comm: bytes
    nr: int
    fd: int
    """Descriptor argument, or the one returned; -1: none."""
    flags: int
    """``layout.RECORD_*``: SEEDED (began before the window), OPEN (in progress at its end), DIRECT, SYNC, REGULAR."""
    file: FileKey | None
    file2: FileKey | None
    """The other file of sendfile (out), copy_file_range and splice (out)."""
    dir: FileKey | None
    """The directory a relative ``path`` starts from; its path is in ``Capture.files``."""
    dir2: FileKey | None
    path: bytes
    """First path argument as the caller wrote it; empty: none, or unreadable."""
    path2: bytes
    asked: int
    """Bytes requested; of a vector call the sum (of its first 32 parts), 0 while it is open."""
    returned: int
    """Result; negative errno; 0 while open."""
    offset: int | None
    """Byte position in the file it started at, where known."""
    cpu_ns: int
    d_ns: int
    """Blocked uninterruptibly (disk, throttled writer, ...)."""
    s_ns: int
    runnable_ns: int
    """Ready to run, without a CPU: preempted, or woken and waiting."""
    other_ns: int
    """Stopped, traced, frozen."""
    stack: int
    """Kernel stack of the longest time off the CPU within the call."""
    longest_off_ns: int


@dataclass(frozen=True)
class CallTotal:
    """All calls of one number by one thread, fast ones too, and the one in flight at the end."""

    tgid: int
    tid: int
    nr: int
    count: int
    wall_ns: int
    max_ns: int
    bytes: int
    cpu_ns: int
    d_ns: int
    s_ns: int
    runnable_ns: int
    other_ns: int


@dataclass(frozen=True)
class CallFailures:
    """Calls of one number by one thread that failed with one error. `first`, `last`: when they returned."""

    tgid: int
    tid: int
    nr: int
    error: int
    count: int
    first: int
    last: int


@dataclass(frozen=True)
class FileSlot:
    """Ended calls of one number on one file by one process, in one latency slot (layout.slot_bounds)."""

    file: FileKey
    tgid: int
    nr: int
    slot: int
    count: int
    sum_ns: int
    bytes: int


class File(NamedTuple):
    """A file that a recorded event used."""

    key: FileKey
    path: bytes
    """Absolute within the root of its mount tree; no leading ``/`` if the head is missing."""
    flags: int
    """``layout``: FILE_TRUNCATED, FILE_UNLINKED, FILE_NO_MOUNT (path within its file system only)."""
    size: int
    mode: int
    fs: bytes
    """File system type."""


class Segment(NamedTuple):
    """One time off the CPU at least as long as the threshold."""

    start: int
    end: int
    runnable_ns: int
    """Part of it after the wake-up (class R: all of it)."""
    tgid: int
    tid: int
    comm: bytes
    off_class: str
    """D, S, R (preempted) or other."""
    flags: int
    nr: int
    """System call it was in; -1: none (user mode, a fault, a kernel thread)."""
    file: FileKey | None
    futex: int
    """User address, 0: not a futex call."""
    kstack: int
    ustack: int
    pystack: int
    wake: int
    """When it was woken; 0: unknown (wakers off, or never)."""
    waker_tgid: int
    waker_tid: int
    waker_comm: bytes
    context: str = ""
    """Of the wake-up: task, timer, block, network, signal, interrupt; empty: unknown. In others than task the waker is
    whoever the interrupt ran on top of."""
    waker_nr: int = -1
    """System call of the waker; -1: none, or unknown."""
    fd: int = -1
    """Descriptor that the call waits for; -1: none, or unknown."""
    asked_ns: int = -1
    """How long the call asked to wait at most; -1: for ever, or unknown."""
    ran_tgid: int = 0
    """Process that had the CPU before, if the thread waited for a CPU; 0: none, idle, or unknown."""
    ran_comm: bytes = b""


class Followed(NamedTuple):
    """A process that is recorded from `at` on because its thread `tid` woke a traced one."""

    at: int
    tgid: int
    tid: int
    comm: bytes
    woken_tgid: int


@dataclass(frozen=True)
class OffTotal:
    """All segments of a thread with the same state, call, file and stacks; open ones included."""

    tgid: int
    tid: int
    off_class: str
    nr: int
    file: FileKey | None
    kstack: int
    ustack: int
    pystack: int
    count: int
    total_ns: int
    max_ns: int
    runnable_ns: int


class Thread(NamedTuple):
    """An observed thread, named at its first event and again at the end."""

    tid: int
    tgid: int
    comm: bytes
    kernel: bool


@dataclass(frozen=True)
class BlockSlot:
    """I/Os of a disk with one operation, one phase (queue, device) in one latency slot."""

    dev: int
    op: str
    phase: str
    slot: int
    count: int
    sum_ns: int


@dataclass(frozen=True)
class BlockTotal:
    """All completed I/Os of a disk with one operation."""

    dev: int
    op: str
    count: int
    bytes: int
    queue_ns: int
    device_ns: int
    queue_max_ns: int
    device_max_ns: int


class BlockIo(NamedTuple):
    """One I/O slower (queue and device together) than the threshold."""

    dev: int
    op: str
    insert: int
    """When it was queued; 0: issued directly."""
    issue: int
    """When the driver got it; 0: still queued."""
    complete: int
    """Of ``Capture.block_open``: the window's end."""
    sector: int
    bytes: int
    tgid: int
    tid: int
    comm: _Name
    """The thread that queued it: for buffered writes a kernel worker, not the writer."""


class Stack(NamedTuple):
    """Addresses, innermost first; a Python stack has words as in ``src/python_records.h``."""

    kind: int
    """``layout.STACK_KERNEL``, ``STACK_USER`` or ``STACK_PYTHON``."""
    addresses: tuple[int, ...]

    @property
    def user(self) -> bool:
        """Return whether it is a native stack in user mode."""
        return self.kind == lay.STACK_USER


class Capture(NamedTuple):
    """The result of one session: what its collectors share, and the result of each (`of`)."""

    window_start: int
    window_end: int
    files: dict[FileKey, File]
    threads: dict[int, Thread]
    stacks: dict[int, Stack]
    results: dict[type, object]
    """The results of the collectors, by their types."""
    lost: dict[str, list[int]]
    """Losses by reason (layout.LOSSES; ``reader_...``: records that did not fit this process; ``stacks_full``;
    ``recursion_PROGRAM``: it did not run because it was already running), per CPU or in one number. Only reasons that
    occurred."""
    seen: dict[str, int]
    """Counts of events: ``layout.COUNTERS`` from ``self_calls`` on, without the prefix ``seen_`` (meanings:
    ``src/records.h``), ``calls`` and ``switches``."""
    hooks: tuple[str, ...]
    variants: dict[str, str]

    def of(self, kind: type[_Result]) -> _Result:
        """Return the result of type `kind`; KeyError without that collector."""
        result = self.results[kind]
        if not isinstance(result, kind):
            raise TypeError(f"{result!r} is not a {kind}")
        return result

    def with_results(self, *results: object) -> Capture:
        """Return a copy in which `results` replace those of the same types."""
        return self._replace(results=self.results | {type(one): one for one in results})


def device(dev: int) -> tuple[int, int]:
    """Return (major, minor) of a kernel device number."""
    return dev >> 20, dev & 0xFFFFF


def _key(ino: int, dev: int, gen: int) -> FileKey | None:
    return FileKey(dev, ino, gen) if ino or dev else None


def _text(raw: bytes) -> bytes:
    return raw.split(b"\0", 1)[0]


_FOLLOWED = lay.unpacker(lay.FollowedRecord)


def followed(record: bytes) -> Followed:
    """Decode one record."""
    _type, tgid, at, tid, woken, comm = _FOLLOWED.unpack(record)
    return Followed(at, tgid, tid, _text(comm), woken)


_CALL = lay.unpacker(lay.CallRecord)
_SEGMENT = lay.unpacker(lay.SegmentRecord)
_BLOCK = lay.unpacker(lay.BlockRecord)
_CONTEXTS = ("", *lay.WAKE_CONTEXTS[1:])
_PATH_TEXT = lay.PathRecord.text.offset
_FILE_TEXT = lay.FileRecord.text.offset


class Records:
    """Decoded ring buffer records."""

    def __init__(self, raw: Iterable[bytes]) -> None:
        self.calls: list[Call] = []
        self.segments: list[Segment] = []
        self.block_ios: list[BlockIo] = []
        self.files: dict[FileKey, File] = {}
        self.open_paths: dict[tuple[int, int], tuple[int, int]] = {}
        """(tid, start) of an open call -> addresses of its path arguments."""
        self._paths: dict[tuple[int, int, int], bytes] = {}
        calls: list[bytes] = []
        decode = {
            lay.RECORD_CALL: calls.append,
            lay.RECORD_PATH: self._path,
            lay.RECORD_FILE: self._file,
            lay.RECORD_SEGMENT: self._segment,
            lay.RECORD_BLOCK: self._block,
        }
        for record in raw:
            decode[record[0]](record)
        for record in calls:
            self._call(record)

    def _path(self, record: bytes) -> None:
        head = lay.PathRecord.from_buffer_copy(record.ljust(_PATH_TEXT + lay.PATH_BYTES, b"\0"))
        self._paths[head.tid, head.start, head.which] = record[_PATH_TEXT : _PATH_TEXT + head.length - 1]

    def _file(self, record: bytes) -> None:
        head = lay.FileRecord.from_buffer_copy(record.ljust(_FILE_TEXT + lay.PATH_BYTES, b"\0"))
        key = FileKey(head.file.dev, head.file.ino, head.file.gen)
        names = record[_FILE_TEXT : _FILE_TEXT + head.length].split(b"\0")[:-1]
        fs = bytes(head.fs)
        if fs in (b"pipefs", b"sockfs"):  # as in /proc/PID/fd
            path = b"%s:[%d]" % (b"pipe" if fs == b"pipefs" else b"socket", key.ino)
        elif fs == b"anon_inodefs":
            path = b"anon_inode:" + b"/".join(names)
        elif fs == b"pidfs":
            path = b"anon_inode:[pidfd]"
        else:
            path = b"/".join(reversed(names))
            if not head.flags & lay.FILE_TRUNCATED:
                path = b"/" + path
        self.files[key] = File(key, path, head.flags, head.size, head.mode, fs)

    def _call(self, record: bytes) -> None:
        (
            _type, flags, start, end, tgid, tid, nr, fd,
            i1, d1, g1, i2, d2, g2, i3, d3, g3, i4, d4, g4,
            asked, returned, offset, d_ns, s_ns, run_ns, other_ns, stack, longest, path, path2, comm,
        ) = _CALL.unpack(record)  # fmt: skip
        if flags & lay.RECORD_OPEN and (path or path2):
            self.open_paths[tid, start] = (path, path2)
        self.calls.append(
            Call(
                start, end, tgid, tid, _text(comm), nr, fd, flags,
                _key(i1, d1, g1), _key(i2, d2, g2), _key(i3, d3, g3), _key(i4, d4, g4),
                self._paths.get((tid, start, 0), b""), self._paths.get((tid, start, 1), b""),
                asked, returned, None if offset < 0 else offset,
                max(0, end - start - d_ns - s_ns - run_ns - other_ns), d_ns, s_ns, run_ns, other_ns,
                stack, longest,
            )
        )  # fmt: skip

    def _segment(self, record: bytes) -> None:
        (
            _type, flags, start, end, run_ns, tgid, tid, nr, off_class, ino, dev, gen,
            futex, kstack, ustack, pystack, wake, asked_ns, waker_tgid, waker_tid, waker_nr, fd, context, ran_tgid,
            waker_comm, ran_comm, comm,
        ) = _SEGMENT.unpack(record)  # fmt: skip
        self.segments.append(
            Segment(
                start, end, run_ns, tgid, tid, _text(comm), lay.OFF_CLASSES[off_class], flags, nr,
                _key(ino, dev, gen), futex, kstack, ustack, pystack, wake, waker_tgid, waker_tid, _text(waker_comm),
                _CONTEXTS[context], waker_nr, fd, asked_ns, ran_tgid, _text(ran_comm),
            )
        )  # fmt: skip

    def _block(self, record: bytes) -> None:
        (_type, dev, insert, issue, complete, sector, size, op, tgid, tid, comm) = _BLOCK.unpack(record)
        self.block_ios.append(
            BlockIo(dev, lay.BLOCK_OPS[op], insert, issue, complete, sector, size, tgid, tid, _text(comm))
        )


def call_totals(items: lay.Items) -> list[CallTotal]:
    """Return the rows of map call_totals."""
    rows = []
    for (tgid, tid, nr, _), (count, wall, longest, size, d, s, run, other) in lay.decode(
        items, lay.CallKey, lay.CallTotal
    ):
        cpu = max(0, wall - d - s - run - other)
        rows.append(CallTotal(tgid, tid, nr, count, wall, longest, size, cpu, d, s, run, other))
    return rows


def call_failures(items: lay.Items) -> list[CallFailures]:
    """Return the rows of map call_failures."""
    return [CallFailures(*key, *value) for key, value in lay.decode(items, lay.FailureKey, lay.FailureTotal)]


def file_slots(items: lay.Items) -> list[FileSlot]:
    """Return the rows of map file_slots."""
    return [
        FileSlot(FileKey(dev, ino, gen), tgid, nr, slot, *value)
        for (ino, dev, gen, tgid, nr, slot), value in lay.decode(items, lay.SlotKey, lay.SlotValue)
    ]


def off_totals(items: lay.Items) -> list[OffTotal]:
    """Return the rows of map off_totals."""
    rows = []
    for key, value in lay.decode(items, lay.OffKey, lay.OffTotal):
        ino, dev, gen, kstack, ustack, pystack, tgid, tid, nr, off_class = key
        file, state = _key(ino, dev, gen), lay.OFF_CLASSES[off_class]
        rows.append(OffTotal(tgid, tid, state, nr, file, kstack, ustack, pystack, *value))
    return rows


def threads(items: lay.Items) -> dict[int, Thread]:
    """Return the rows of map threads by thread id."""
    value = lay.unpacker(lay.ThreadInfoValue)
    found = {}
    for k, v in items:
        tid = int.from_bytes(k, "little")
        tgid, flags, comm = value.unpack(v)
        found[tid] = Thread(tid, tgid, _text(comm), bool(flags & lay.RECORD_KTHREAD))
    return found


_STACK_HEAD = lay.StackRecord.ip.offset


def stack(record: bytes) -> tuple[int, Stack]:
    """Return the id and content of a stack record."""
    depth, kind = int.from_bytes(record[4:6], "little"), int.from_bytes(record[6:8], "little")
    addresses = struct.unpack_from(f"<{depth}Q", record, _STACK_HEAD)
    return int.from_bytes(record[8:16], "little"), Stack(kind, addresses)


def block_slots(items: lay.Items) -> list[BlockSlot]:
    """Return the rows of map block_slots."""
    return [
        BlockSlot(dev, lay.BLOCK_OPS[op], lay.BLOCK_PHASES[phase], slot, *value)
        for (dev, op, phase, slot, _), value in lay.decode(items, lay.BlockKey, lay.BlockSlot)
    ]


def block_totals(items: lay.Items) -> list[BlockTotal]:
    """Return the rows of map block_totals."""
    rows = lay.decode(items, lay.BlockKey, lay.BlockTotal)
    return [BlockTotal(dev, lay.BLOCK_OPS[op], *value) for (dev, op, *_), value in rows]


def open_ios(items: lay.Items, end: int) -> list[BlockIo]:
    """Return the rows of map requests: I/Os in progress when the window ended."""
    value = lay.unpacker(lay.RequestState)
    rows = []
    for _, v in items:
        insert, issue, sector, _, dev, size, op, tgid, tid, _, comm = value.unpack(v)
        rows.append(BlockIo(dev, lay.BLOCK_OPS[op], insert, issue, end, sector, size, tgid, tid, _text(comm)))
    return rows
