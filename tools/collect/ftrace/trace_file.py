"""Write a capture's text to one file or to rotated ones, complete up to a whole line. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BLOCK = 4096
_TAIL = 1 << 16


class TraceFile:
    """The text of one capture in `path`.

    `head` returns the first lines of every file by its number (1, 2 ...), `foot` the last. With `rotate_bytes` a full
    file is renamed to the next free ``NAME.0001.EXT``, ``NAME.0002.EXT`` ..., and `path` starts again; the newest
    `keep` files remain, `path` included. When the file system has less than `min_free_bytes` left, `short` becomes True
    and nothing more is written. If a write fails, the file is cut after a whole line and gets its foot, and `ToolError`
    (disk_full or io_error) is raised. Creation raises `ToolError`: busy if another capture writes `path`, bad_argument
    if it is no regular file, disk_full if there is too little space.
    """

    def __init__(
        self,
        path: Path,
        head: Callable[[int], bytes],
        foot: Callable[[], bytes],
        *,
        rotate_bytes: int = 0,
        keep: int = 0,
        min_free_bytes: int = 0,
    ) -> None:
        self._path, self._head, self._foot = path, head, foot
        self._rotate, self._keep, self._min_free = rotate_bytes, keep, min_free_bytes
        self._older: list[Path] = []
        self._part, self._size = 0, 0
        self._before = 0
        self.short = False
        self._descriptor: int | None = None
        try:
            self._begin()
        except ToolError as error:
            if error.code is ErrorCode.DISK_FULL:
                self._path.unlink(missing_ok=True)
            raise
        if self.short:
            self.discard()
            raise ToolError(
                ErrorCode.DISK_FULL,
                f"less than {min_free_bytes >> 20} MiB are free where {clean_path(str(path))} would be",
                "free space, or write to another file system",
            )

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the existing files, oldest first."""
        return (*self._older, self._path)

    @property
    def written(self) -> int:
        """Return the bytes written in total, including removed files."""
        return self._before + self._size

    def write(self, text: bytes) -> bool:
        """Append whole lines; return whether there is space for more. Once there is none, nothing is written."""
        if self.short:
            return False
        if self._rotate and self._size and self._size + len(text) > self._rotate:
            self._next()
        self._append(text)
        return not self.short

    def close(self) -> None:
        """Write the foot and close; idempotent."""
        if self._descriptor is not None:
            self._append(self._foot())
            self._release()

    def abandon(self) -> None:
        """Close after another failure, with a foot if possible; idempotent."""
        if self._descriptor is not None:
            with suppress(ToolError):
                self.close()
            self._release()

    def discard(self) -> None:
        """Close and remove the newest file, which is empty."""
        if self._descriptor is not None:
            with suppress(OSError):
                self._path.unlink()
            self._release()

    def _begin(self) -> None:
        shown = clean_path(str(self._path))
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            code = ErrorCode.DISK_FULL if error.errno in _FULL else ErrorCode.IO_ERROR
            raise ToolError(code, f"cannot write {shown}: {error.strerror}", "name a file you can write") from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{shown} is no plain file", "name a file to write")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ToolError(
                    ErrorCode.BUSY, f"another capture writes {shown}", "wait until it ends, or name another file"
                ) from None
            os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._size = descriptor, 0
        self._part += 1
        self._append(self._head(self._part))

    def _next(self) -> None:
        """Rename the full file and start the next one."""
        self._append(self._foot())
        numbered = self._numbered()
        try:
            os.rename(self._path, numbered)
        except OSError as error:
            raise self._failed(error) from None
        self._before += self._size
        self._older.append(numbered)
        self._release()
        self._begin()
        while self._keep and len(self._older) >= self._keep:
            with suppress(FileNotFoundError):
                self._older.pop(0).unlink()

    def _numbered(self) -> Path:
        stem, suffix = self._path.stem, self._path.suffix
        taken = re.compile(re.escape(stem) + r"\.([0-9]{4,})" + re.escape(suffix), re.ASCII)
        numbers = [int(m[1]) for name in os.listdir(self._path.parent) if (m := taken.fullmatch(name))]
        return self._path.with_name(f"{stem}.{max(numbers, default=0) + 1:04d}{suffix}")

    def _append(self, text: bytes) -> None:
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError("the file is closed")
        try:
            view = memoryview(text)
            while view:
                done = os.write(descriptor, view)
                view = view[done:]
                self._size += done
            room = os.fstatvfs(descriptor)
            self.short = room.f_bavail * room.f_frsize < self._min_free
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> ToolError:
        """End the file with a whole line and its foot; return the error to raise."""
        shown, descriptor = clean_path(str(self._path)), self._descriptor
        if descriptor is not None:
            with suppress(OSError, ToolError):
                foot = self._foot()
                self._cut(descriptor, len(foot) + _BLOCK)
                os.write(descriptor, foot)
            with suppress(OSError):
                self._cut(descriptor, 0)  # if there is no space for the foot
            self._release()
        if error.errno in _FULL:
            return ToolError(
                ErrorCode.DISK_FULL,
                f"no room left for {shown}; it is whole up to then ({self._size} bytes)",
                "free space, write elsewhere, or rotate and keep fewer files",
            )
        return ToolError(ErrorCode.IO_ERROR, f"cannot write {shown}: {error.strerror}", "read the kernel's log (dmesg)")

    def _cut(self, descriptor: int, room: int) -> None:
        """Free at least `room` bytes by dropping lines at the end, an incomplete one included."""
        end = max(os.fstat(descriptor).st_size - room, 0)
        while end:
            start = max(end - _TAIL, 0)
            line_end = os.pread(descriptor, end - start, start).rfind(b"\n")
            end = start + line_end + 1 if line_end >= 0 else start
            if line_end >= 0:
                break
        os.ftruncate(descriptor, end)
        self._size = os.lseek(descriptor, end, os.SEEK_SET)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
