"""Write a file atomically: beside its path, then moved into place."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it replaces `path` on success, and is removed otherwise.

    Raises `ToolError`: disk_full, or io_error with the system's message; also if `path` must not be replaced (a device,
    a pipe).
    """
    if path.is_dir():  # before the work, and for "." and "/"
        raise _failure(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if path.exists() and not path.is_file():
        raise ToolError(ErrorCode.IO_ERROR, f"{path} is no regular file", "choose a file to write to")
    beside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())  # a full disk may show only now
        beside.replace(path)
    except (OSError, sqlite3.Error) as error:
        raise _failure(path, error) from error
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


def _failure(path: Path, error: OSError | sqlite3.Error) -> ToolError:
    if isinstance(error, OSError):
        full, word = error.errno in (errno.ENOSPC, errno.EDQUOT), error.strerror
    else:
        full, word = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" or "is full" in str(error), str(error)
    if full:
        return ToolError(
            ErrorCode.DISK_FULL,
            f"no space left to write {path}",
            "free space or choose another output; nothing was left",
        )
    return ToolError(ErrorCode.IO_ERROR, f"cannot write {path}: {word}", "choose an output that can be written")
