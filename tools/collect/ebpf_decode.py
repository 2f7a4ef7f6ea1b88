"""Build the tables of `syscalls`, `switches` and `block` from the results of a BPF session."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable

import polars as pl

from whystall.bpf import layout
from whystall.bpf.capture import BlockIo, Call, Capture, File, FileKey, device
from whystall.bpf.collectors.block import BlockRows
from whystall.bpf.collectors.switches import SwitchRows
from whystall.bpf.collectors.syscalls import SyscallRows
from whystall.tools.collect.proc_maps import MappedFile
from whystall.tools.collect.tables import BLOCK, SWITCHES, SYSCALLS, filled, table
from whystall.tools.contract.text import clean, clean_path

KernelFrames = Callable[[int], list[str]]
"""Returns the frames of a kernel stack id, from the innermost outward."""
UserFrames = Callable[[int, int, int], list[str]]
"""Returns the frames of a native stack id and a Python stack id (0: none) of a process, innermost first."""
Mapped = Callable[[int, int], MappedFile | None]
"""Returns the file mapped at an address of a process."""
EVERYTHING = "(all file systems)"
UNKNOWN_MAPPING = "[mapped file]"
CallName = Callable[[int], str]
_FRAMES, _USER_FRAMES = 64, 128


def _has_content(file: File) -> bool:
    if file.fs in (b"anon_inodefs", b"pidfs"):  # on some kernels these have the mode of a regular file
        return False
    return stat.S_ISREG(file.mode) or stat.S_ISDIR(file.mode) or stat.S_ISBLK(file.mode)


class Files:
    """Numbers the files of a capture: regular files, directories and block devices."""

    def __init__(self, capture: Capture, mapped: Mapped) -> None:
        self._capture = capture
        self._mapped = mapped
        self._index: dict[FileKey | str, int] = {}
        self._rows: list[tuple[int, str, str, int, str, bool, bool]] = []

    def of(self, key: FileKey | None, *, regular: bool = False) -> int:
        """Return the number of file `key`; -1 for none, pipes, sockets. `regular`: it is regular, even if its path was
        lost."""
        if key is None:
            return -1
        if key in self._index:
            return self._index[key]
        known = self._capture.files.get(key)
        if known is None and not regular:
            return -1
        if known is None:
            path, fstype, complete, deleted = f"[inode {key.ino}]", "", False, False
        elif not _has_content(known):
            return -1
        else:
            path, fstype = clean_path(known.path), clean(known.fs)
            complete = not known.flags & (layout.FILE_TRUNCATED | layout.FILE_NO_MOUNT)
            deleted = bool(known.flags & layout.FILE_UNLINKED)
        major, minor = device(key.dev)
        return self._add(key, path, f"{major}:{minor}", key.ino, fstype, complete, deleted)

    def object(self, key: FileKey | None) -> str:
        """Return the name of an object other than a file with content, as /proc/PID/fd shows it: ``pipe:[123]``,
        ``socket:[456]``, ``anon_inode:[eventpoll]``, the path of a FIFO or a terminal. Empty for files and if there is
        none."""
        known = self._capture.files.get(key) if key is not None else None
        if known is None or _has_content(known):
            return ""
        return clean_path(known.path)

    def block_device(self, dev: int, name: str) -> int:
        """Return the number of the block device `dev` itself, whose pages hold raw reads and metadata."""
        path = f"/dev/{name}"
        if path not in self._index:
            major, minor = device(dev)
            self._add(path, path, f"{major}:{minor}", 0, "", True, False)
        return self._index[path]

    def mapped(self, pid: int, address: int) -> tuple[int, int]:
        """Return the number of the file mapped at `address` of process `pid`, and the position in it (-1: unknown)."""
        found = self._mapped(pid, address)
        if found is None:  # unmapped since, or the process has exited
            if UNKNOWN_MAPPING not in self._index:
                self._add(UNKNOWN_MAPPING, UNKNOWN_MAPPING, "", 0, "", False, False)
            return self._index[UNKNOWN_MAPPING], -1
        key = f"{found.dev} {found.ino} {found.path}"
        if key not in self._index:
            self._add(key, found.path, found.dev, found.ino, "", True, found.deleted)
        return self._index[key], found.offset

    def everything(self) -> int:
        """Return the number of the row for all file systems, which sync(2) waits for."""
        if EVERYTHING not in self._index:
            self._add(EVERYTHING, EVERYTHING, "", 0, "", True, False)
        return self._index[EVERYTHING]

    def named(self, call: Call) -> int:
        """Return the number of the file that a call names by path, resolved against its directory; -1 without one."""
        if not call.path:
            return -1
        path, complete = call.path, call.path.startswith(b"/")
        if not complete and call.dir is not None and call.dir in self._capture.files:
            path, complete = self._capture.files[call.dir].path.rstrip(b"/") + b"/" + path, True
        text = clean_path(path)
        return self._index[text] if text in self._index else self._add(text, text, "", 0, "", complete, False)

    def _add(
        self, key: FileKey | str, path: str, dev: str, ino: int, fstype: str, complete: bool, deleted: bool
    ) -> int:
        number = self._index[key] = len(self._rows)
        self._rows.append((number, path, dev, ino, fstype, complete, deleted))
        return number

    def table(self) -> pl.DataFrame:
        """Return the files numbered so far."""
        return table(SYSCALLS["files"], self._rows)


class Stacks:
    """Numbers the stacks of a capture, and symbolises each once."""

    def __init__(self, kernel: KernelFrames, user: UserFrames) -> None:
        self._kernel = kernel
        self._user = user
        self._rows: dict[tuple[int, int, int], tuple[int, bool, list[str]]] = {}

    def kernel(self, stack: int) -> int:
        """Return the number of a kernel stack; -1 for none. (Its 64-bit id would not fit a signed column.)"""
        if stack == 0:
            return -1
        key = (stack, 0, 0)
        if key not in self._rows:
            self._rows[key] = (len(self._rows), True, [clean(f) for f in self._kernel(stack)[:_FRAMES]])
        return self._rows[key][0]

    def user(self, native: int, python: int, pid: int) -> int:
        """Return the number of a user stack of process `pid` with its Python frames; -1 for none."""
        if native == 0 and python == 0:
            return -1
        key = (native, python, pid)
        if key not in self._rows:
            frames = self._user(native, python, pid)[:_USER_FRAMES]
            self._rows[key] = (len(self._rows), False, [clean(f) for f in frames])
        return self._rows[key][0]

    def table(self) -> pl.DataFrame:
        """Return the stacks numbered so far."""
        return table(SYSCALLS["stacks"], list(self._rows.values()))


def syscall_tables(capture: Capture, files: Files, stacks: Stacks, name: CallName, own: int) -> dict[str, pl.DataFrame]:
    """Return the tables of `syscalls` without rows of process `own` (the tracer)."""
    rows = capture.of(SyscallRows)
    calls = []
    for c in rows.calls:
        if c.tgid == own:
            continue
        file, offset = _place(c, name(c.nr), files)
        calls.append(
            (
                c.start, c.end, c.tgid, c.tid, clean(c.comm), name(c.nr), file, c.fd, _signed(c.asked), c.returned,
                offset, bool(c.flags & layout.RECORD_DIRECT), c.cpu_ns, c.d_ns, c.s_ns + c.other_ns, c.runnable_ns,
                bool(c.flags & layout.RECORD_OPEN), stacks.kernel(c.stack),
            )
        )  # fmt: skip
    totals = [
        (
            t.tgid, t.tid, _comm(capture, t.tid), name(t.nr), t.count, t.wall_ns, t.cpu_ns, t.d_ns,
            t.s_ns + t.other_ns, t.runnable_ns, t.max_ns, _signed(t.bytes),
        )
        for t in rows.call_totals
        if t.tgid != own
    ]  # fmt: skip
    latency = []
    for s in rows.file_slots:
        if s.tgid == own:
            continue
        low, high = layout.slot_bounds(s.slot)
        major, minor = device(s.file.dev)
        dev = f"{major}:{minor}"
        number = files.of(s.file)
        latency.append((number, dev, s.file.ino, s.tgid, name(s.nr), low, high, s.count, s.sum_ns, _signed(s.bytes)))
    found = {
        "calls": table(SYSCALLS["calls"], calls),
        "totals": table(SYSCALLS["totals"], totals),
        "latency": table(SYSCALLS["latency"], latency),
    }
    return found if rows.failures is None else {**found, "failures": _failures(capture, files, name, own)}


def _failures(capture: Capture, files: Files, name: CallName, own: int) -> pl.DataFrame:
    rows = capture.of(SyscallRows)
    failures = []
    for f in rows.failures or ():
        if f.tgid == own:
            continue
        first = rows.failed.get((f.tid, f.nr, f.error))
        called, comm = name(f.nr), clean(first.comm) if first else _comm(capture, f.tid)
        file = _place(first, called, files)[0] if first else -1
        thing = files.object(first.file) if first else ""
        error = errno.errorcode.get(f.error, str(f.error))
        failures.append((f.tgid, f.tid, comm, called, error, f.count, f.first, f.last, file, thing))
    return table(SYSCALLS["failures"], failures)


def _place(call: Call, called: str, files: Files) -> tuple[int, int]:
    """Return file and position of a call: by descriptor, by address (msync), by name, or everything (sync)."""
    offset = -1 if call.offset is None else call.offset
    if called == "msync":
        return files.mapped(call.tgid, offset)
    if called == "sync":
        return files.everything(), -1
    if call.file is not None:
        return files.of(call.file, regular=bool(call.flags & layout.RECORD_REGULAR)), offset
    return files.named(call), offset


def switch_tables(capture: Capture, files: Files, stacks: Stacks, name: CallName, own: int) -> dict[str, pl.DataFrame]:
    """Return the tables of `switches`. Of kernel threads only D waits: when they sleep, they have no work."""
    rows = capture.of(SwitchRows)
    segments = [
        (
            s.start, s.end, s.tgid, s.tid, clean(s.comm), s.off_class, _call(name, s.nr), files.of(s.file),
            stacks.kernel(s.kstack), stacks.user(s.ustack, s.pystack, s.tgid), _signed(s.futex),
            s.waker_tgid, s.waker_tid, clean(s.waker_comm), s.wake,
            bool(s.flags & layout.RECORD_OPEN), bool(s.flags & layout.RECORD_SEEDED),
            s.runnable_ns, s.context, _call(name, s.waker_nr), files.object(s.file), s.fd, s.asked_ns,
            s.ran_tgid or -1, clean(s.ran_comm),
        )
        for s in rows.segments
        if s.tgid != own and not (s.flags & layout.RECORD_KTHREAD and s.off_class != "D")
    ]  # fmt: skip
    totals = [
        (
            t.tgid, t.tid, _comm(capture, t.tid), t.off_class, _call(name, t.nr), files.of(t.file),
            stacks.kernel(t.kstack), stacks.user(t.ustack, t.pystack, t.tgid), t.count, t.total_ns, t.max_ns,
        )
        for t in rows.off_totals
        if t.tgid != own and not (_is_kernel(capture, t.tid) and t.off_class != "D")
    ]  # fmt: skip
    wakers = [(f.at, f.tgid, f.tid, clean(f.comm), f.woken_tgid) for f in rows.followed]
    return filled(SWITCHES, segments=segments, totals=totals, followed=wakers)


def block_tables(rows: BlockRows, disk: Callable[[int], str]) -> dict[str, pl.DataFrame]:
    """Return the tables of `block`; `disk` names a kernel device number."""
    latency = []
    for s in rows.block_slots:
        low, high = layout.slot_bounds(s.slot)
        latency.append((disk(s.dev), s.op, s.phase, low, high, s.count))
    longest: dict[tuple[int, str], int] = {}
    for i in rows.block_ios:
        took = i.complete - (i.insert or i.issue)
        longest[i.dev, i.op] = max(took, longest.get((i.dev, i.op), 0))
    totals = []
    for t in rows.block_totals:
        # queue and device together if such a request was recorded, else the longer phase
        most = max(t.queue_max_ns, t.device_max_ns, longest.get((t.dev, t.op), 0))
        totals.append((disk(t.dev), t.op, t.count, t.bytes, t.queue_ns, t.device_ns, most))
    requests = [(i, False) for i in rows.block_ios] + [(i, True) for i in rows.block_open]
    slow = [
        (i.insert or i.issue, i.issue, i.complete, disk(i.dev), i.op, i.bytes, _sector(i), i.tgid, clean(i.comm), open_)
        for i, open_ in requests
    ]
    return filled(BLOCK, latency=latency, totals=totals, slow=slow)


def _sector(io: BlockIo) -> int:
    """Return the sector; -1 for a request without one (a flush has all bits set)."""
    return -1 if io.sector >> 63 else io.sector


def _is_kernel(capture: Capture, tid: int) -> bool:
    thread = capture.threads.get(tid)
    return thread is not None and thread.kernel


def _comm(capture: Capture, tid: int) -> str:
    thread = capture.threads.get(tid)
    return clean(thread.comm) if thread is not None else ""


def _call(name: CallName, nr: int) -> str:
    return name(nr) if nr >= 0 else ""


def _signed(value: int) -> int:
    """Limit `value`, any 64 bits of user memory, to a signed column."""
    return min(value, (1 << 63) - 1)
