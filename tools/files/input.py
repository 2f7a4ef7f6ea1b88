"""Open untrusted files for reading: no pipes, which would block; packed ones unpacked, with a limit against bombs."""

from __future__ import annotations

import gzip
import importlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from whystall.tools.contract.errors import ErrorCode, ToolError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# A bomb unpacks to more than this much and this many times its size. Profiles pack 13 to 35 times, gzip at most 1032.
_UNPACKED = 256 << 20
_TIMES_PACKED = 100
_ZSTD_MODULES = ("compression.zstd", "backports.zstd", "zstandard")
_BLOCK = 1 << 20
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""Exceptions of reading a damaged file."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, unpacking gzip and zstd. Raises OSError; `ToolError` (bad_trace) for a pipe.

    Reading raises `ToolError` (bad_trace) beyond 256 MiB and a hundred times the packed size; one of `DAMAGED` for a
    truncated or corrupt packed file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise bad(path, "not a regular file")
        start = file.read(len(ZSTD))
        file.seek(0)
        most = max(_UNPACKED, _TIMES_PACKED * status.st_size)
        if start.startswith(GZIP):
            yield cast("BinaryIO", _Gzip(path, file, most))
        elif start == ZSTD:
            yield io.BufferedReader(_Zstd(path, file, most), _BLOCK)
        else:
            yield file


class _Gzip(gzip.GzipFile):
    """The content of a gzip file, with a limit against bombs."""

    def __init__(self, path: Path, file: BinaryIO, most: int) -> None:
        super().__init__(fileobj=file)
        self._path, self._most = path, most

    def read(self, size: int | None = -1) -> bytes:
        """Read at most `size` bytes. Raises `ToolError` (bad_trace) beyond the limit."""
        data = super().read(size)
        _weigh(self._path, self.tell(), self._most)
        return data

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line of at most `size` bytes. Raises `ToolError` (bad_trace) beyond the limit."""
        data = super().readline(size)
        _weigh(self._path, self.tell(), self._most)
        return data

    def read1(self, size: int = -1) -> bytes:
        """Like `read`, and return the bytes before damage."""
        data = super().read1(size)
        _weigh(self._path, self.tell(), self._most)
        return data


class _Zstd(io.RawIOBase):
    """The content of a zstd file, with a limit against bombs; read by Python 3.14 or an installed package."""

    def __init__(self, path: Path, file: BinaryIO, most: int) -> None:
        self._path, self._most, self._done = path, most, 0
        for name in _ZSTD_MODULES:
            try:
                self._module = importlib.import_module(name)
                break
            except ModuleNotFoundError:
                continue
        else:
            raise ToolError(
                ErrorCode.BAD_TRACE,
                f"{path.name} is packed with zstd, which this Python does not know",
                "unpack it with `zstd -d`, or install the package zstandard",
            )
        self._file: BinaryIO = self._module.open(file, "rb")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer`; 0 at the end."""
        try:
            data = self._file.read(len(buffer))
        except self._module.ZstdError as error:
            raise EOFError(str(error)) from None
        self._done += len(data)
        _weigh(self._path, self._done, self._most)
        buffer[: len(data)] = data
        return len(data)


def _weigh(path: Path, done: int, most: int) -> None:
    if done > most:
        raise bad(path, f"it unpacks to more than {most >> 20} MiB, out of proportion to its size")


REMEDY = "export it from the profiler again"


def bad(path: Path, why: str, remedy: str = REMEDY) -> ToolError:
    """Return the error of an unreadable profile."""
    return ToolError(ErrorCode.BAD_TRACE, f"{path} is not a usable profile: {why}", remedy)


def unreadable(path: Path, error: OSError) -> ToolError:
    """Return the error of a file that cannot be opened."""
    return ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {error.strerror or error}", "check path and permission")
