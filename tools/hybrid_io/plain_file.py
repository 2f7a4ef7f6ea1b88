"""The result of `hybrid_open` without the engine: the same methods, all requests buffered."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NoReturn

from whystall.tools.hybrid_io.status import FileStatus

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class PlainFile(io.FileIO):
    """A raw file with the methods of `HybridFile`, without the engine."""

    def __init__(self, path: Any, mode: str, note: str) -> None:
        super().__init__(path, mode)
        self._note = note

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, fewer at the end of the file; the rest if negative or None."""
        if size is None or size < 0:
            return self.readall()
        parts = [super().read(size) or b""]
        missing = size - len(parts[0])
        while missing and parts[-1]:
            parts.append(super().read(missing) or b"")
            missing -= len(parts[-1])
        return parts[0] if len(parts) <= 2 else b"".join(parts)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer`; fewer bytes only at the end of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view):
            got = super().readinto(view[done:]) or 0
            if not got:
                break
            done += got
        return done

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data`; return its number of bytes."""
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):
            done += super().write(view[done:]) or 0
        return done

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from `offset`; the position is not used."""
        parts, missing = [os.pread(self.fileno(), size, offset)], size
        while parts[-1] and missing > len(parts[-1]):
            missing -= len(parts[-1])
            offset += len(parts[-1])
            parts.append(os.pread(self.fileno(), missing, offset))
        return b"".join(parts)

    def preadinto(self, buffer: WriteableBuffer, offset: int) -> int:
        """Fill `buffer` from `offset`."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view):
            got = os.preadv(self.fileno(), [view[done:]], offset + done)
            if not got:
                break
            done += got
        return done

    def pwrite(self, data: ReadableBuffer, offset: int) -> int:
        """Write all of `data` at `offset`; the position is not used."""
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):
            done += os.pwrite(self.fileno(), view[done:], offset + done)
        return done

    def fsync(self, data_only: bool = False) -> None:
        """Wait until all written data is on the device."""
        (os.fdatasync if data_only else os.fsync)(self.fileno())

    def status(self) -> FileStatus:
        """Return a status without counters, with the reason why the engine is missing."""
        return FileStatus("plain", False, self._note, 0, 0, 0, 0, (), {"read": {}, "write": {}})

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise: another process does not have the descriptor."""
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")
