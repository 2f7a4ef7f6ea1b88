"""A circular log in a mapped file of fixed size, or in memory: the newest entries replace the oldest.

The file is allocated in full and written through the mapping, without a system call: what was appended is in the page
cache, so that the kill of its writer loses nothing, and nothing waits for a disk. A reader in another process verifies
each entry, since the writer may overwrite it meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from whystall.tools.contract.errors import ErrorCode, ToolError

_MAGIC = b"whystall-slices-1"
_HEAD = struct.Struct(
    "<24s40sQQQ"
)  # magic, boot, bytes of data, head, tail (both count from the file's beginning of use)
_PAGE = 4096
_ENTRY = struct.Struct("<IIQQQII")  # mark, kind, position, start_ns, end_ns, bytes, checksum
_MARK = 0x5753_4C45
_PADDING = 0
LEAST_BYTES = 1 << 20


class Entry(NamedTuple):
    """One entry: `kind` is the caller's (not 0); times by CLOCK_MONOTONIC, in a log of every boot by CLOCK_REALTIME."""

    kind: int
    start_ns: int
    end_ns: int
    data: bytes


class SliceLog:
    """See the module. One writer at a time; `note` tells why it is in memory only."""

    def __init__(self, path: Path | None, size: int, *, every_boot: bool = False) -> None:
        """Open or make the log at `path`, of `size` bytes of data. Entries of this boot are kept, or of `every_boot`;
        of a log of another size the newest. Where that is not possible, keep it in memory. Raises `ToolError` (busy)
        while another process writes it."""
        self._every_boot, self._path = every_boot, path
        self._boot = b"every" if every_boot else _boot()
        self.note = ""
        self._size = max(LEAST_BYTES, size // _PAGE * _PAGE)
        self._descriptor = -1
        before: list[Entry] = []
        if path is not None:
            try:
                self._map = self._mapped(path, before)
            except OSError as error:
                self.close()
                self.note = f"kept in memory only: {path}: {error.strerror}"
        if self._descriptor < 0:
            self._map = mmap.mmap(-1, _PAGE + self._size)
        self._head = self._tail = 0
        self._last = -1
        magic, boot, size, head, tail = _HEAD.unpack_from(self._map)
        known = (magic.rstrip(b"\0"), boot.rstrip(b"\0"), size) == (_MAGIC, self._boot, self._size)
        if known and tail <= head <= tail + self._size:
            self._head, self._tail = int(head), int(tail)
        self._write_head()
        self._append_newest(before)

    @property
    def on_disk(self) -> bool:
        """Whether it is in a file."""
        return self._descriptor >= 0

    @property
    def used(self) -> int:
        """Bytes of the entries that are kept."""
        return self._head - self._tail

    @property
    def appended(self) -> int:
        """Bytes of all entries ever appended."""
        return self._head

    @property
    def size(self) -> int:
        """Bytes that it can keep."""
        return self._size

    def append(self, kind: int, start_ns: int, end_ns: int, data: bytes) -> bool:
        """Append an entry; return False if it is too large (more than a quarter of the log)."""
        length = _ENTRY.size + (len(data) + 7 & ~7)
        if not self._fits(data):
            return False
        left = self._size - self._head % self._size
        if left < length:  # no entry is cut at the end of the file
            self._put(_PADDING, 0, 0, b"", left)
        self._last = self._head
        self._put(kind, start_ns, end_ns, data, length)
        return True

    def replace_last(self, kind: int, start_ns: int, end_ns: int, data: bytes) -> bool:
        """Replace the last entry that this writer has appended; append one if there is none. Returns as `append`."""
        if self._last >= self._tail and self._fits(data):
            self._head = self._last
        return self.append(kind, start_ns, end_ns, data)

    def _fits(self, data: bytes) -> bool:
        return _ENTRY.size + (len(data) + 7 & ~7) <= self._size // 4

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, oldest first. Do not append meanwhile."""
        return _entries(memoryview(self._map)[_PAGE:], self._tail, self._head)

    def resized(self, size: int) -> SliceLog:
        """Return a log of another size in the place of this one, with its newest entries, and close this one; this one
        where there is no space for the other. In a file, a reader finds the one or the other, whole."""
        partial = self._path.with_name(f".{self._path.name}") if self._path is not None and self.on_disk else None
        try:
            if partial is not None:
                partial.unlink(missing_ok=True)
            made = SliceLog(partial, size, every_boot=self._every_boot)
        except (OSError, ToolError):  # a file system that is read-only by now, or of another writer
            return self
        if made.on_disk != self.on_disk:
            made.close()
            return self
        made._path, made.note = self._path, self.note
        data, first = memoryview(self._map)[_PAGE:], self._tail
        while self._head - first > made._size * 3 // 4:  # each entry may need padding
            first = _next(data, first, self._head, self._size)
        for entry in _entries(data, first, self._head):
            made.append(*entry)
        data.release()
        if partial is not None and self._path is not None:
            try:
                partial.replace(self._path)
            except OSError:
                made.close()
                return self
        self.close()
        return made

    def forget_pages(self) -> None:
        """Have the pages of the file no longer count as memory of this process; they stay in the page cache."""
        if self.on_disk:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap, and unlock; idempotent."""
        made = getattr(self, "_map", None)
        if made is not None and not made.closed:
            with suppress(BufferError):  # a reader of `entries` is left over
                made.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append_newest(self, entries: Sequence[Entry]) -> None:
        """Append the newest of `entries`, as far as there is surely room for them."""
        room, first = self._size * 3 // 4, len(entries)  # each may need padding
        while first and room > 0:
            first -= 1
            room -= _ENTRY.size + len(entries[first].data) + 7
        for entry in entries[first + (room < 0) :]:
            self.append(*entry)

    def _mapped(self, path: Path, before: list[Entry]) -> mmap.mmap:
        """Return the file at `path`, mapped; add what it had to `before` if it had another size."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ToolError(
                ErrorCode.BUSY, f"another process records to {path}", "stop it, or use another directory"
            ) from None
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_size != _PAGE + self._size:
            with suppress(ToolError):  # damaged, of another version or boot
                before += read_log(path)
            os.ftruncate(self._descriptor, 0)
        try:
            # all blocks now: a store to a page without one would kill this process if the disk is full
            os.posix_fallocate(self._descriptor, 0, _PAGE + self._size)
        except OSError:
            os.ftruncate(self._descriptor, 0)  # what was allocated would fill the disk
            raise
        return mmap.mmap(self._descriptor, _PAGE + self._size)

    def _put(self, kind: int, start_ns: int, end_ns: int, data: bytes, length: int) -> None:
        while self._head + length - self._tail > self._size:
            self._tail = _next(memoryview(self._map)[_PAGE:], self._tail, self._head, self._size)
        self._write_head()  # first: a reader must not take what is overwritten now
        at = _PAGE + self._head % self._size
        if length >= _ENTRY.size:
            self._map[at + _ENTRY.size : at + _ENTRY.size + len(data)] = data
            checksum = zlib.crc32(data)
            size = length - _ENTRY.size if kind == _PADDING else len(data)
            _ENTRY.pack_into(self._map, at, _MARK, kind, self._head, start_ns, end_ns, size, checksum)
        self._head += length
        self._write_head()

    def _write_head(self) -> None:
        _HEAD.pack_into(self._map, 0, _MAGIC, self._boot, self._size, self._head, self._tail)


def read_log(path: Path) -> list[Entry]:
    """Return the entries of the log at `path` of this boot, oldest first, while another process may append to it.

    Raises `ToolError`: not_found, bad_recording when it is not such a log.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ToolError(
            ErrorCode.NOT_FOUND, f"cannot open {path}: {error.strerror}", "run `whystall watch` first"
        ) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= _PAGE:
            raise _bad(path, "it is too short")
        with mmap.mmap(descriptor, found.st_size, prot=mmap.PROT_READ) as made:
            magic, boot, size, head, tail = _HEAD.unpack_from(made)
            if magic.rstrip(b"\0") != _MAGIC or size != found.st_size - _PAGE or not tail <= head <= tail + size:
                raise _bad(path, "it is of another version, or damaged")
            if boot.rstrip(b"\0") not in (b"every", _boot()):
                raise _bad(path, "it was recorded before the last boot")
            data = bytes(made[_PAGE:])
            overwritten = _HEAD.unpack_from(made)[4]
        return list(_entries(memoryview(data), max(tail, overwritten), head))
    finally:
        os.close(descriptor)


def _next(data: memoryview, position: int, head: int, size: int) -> int:
    """Return the position of the entry after the one at `position`; `head` if that one is damaged."""
    left = size - position % size
    if left < _ENTRY.size:
        return position + left
    mark, _, at, _, _, length, _ = _ENTRY.unpack_from(data, position % size)
    following = position + _ENTRY.size + (length + 7 & ~7)
    return following if mark == _MARK and at == position and following <= head else head


def _entries(data: memoryview, position: int, head: int) -> Iterator[Entry]:
    size = len(data)
    while position < head:
        following = _next(data, position, head, size)
        at = position % size
        if size - at >= _ENTRY.size:
            mark, kind, place, start, end, length, checksum = _ENTRY.unpack_from(data, at)
            content = data[at + _ENTRY.size : at + _ENTRY.size + length]
            whole = mark == _MARK and place == position and len(content) == length
            if kind != _PADDING and whole and zlib.crc32(content) == checksum:
                yield Entry(kind, start, end, bytes(content))
        position = following


def _boot() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def _bad(path: Path, why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_RECORDING, f"{path} is not a usable log of slices: {why}", "start the watch again")
