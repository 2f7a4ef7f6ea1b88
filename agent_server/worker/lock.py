"""A lock that allows one worker per knowledge base: a ``flock`` on an empty file beside it.

The kernel releases it as soon as the holder ends, for whatever reason. The file stays.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError


@contextmanager
def worker_lock(database: Path) -> Iterator[bool]:
    """Hold the worker's lock of `database` during the block. Yield False if another process holds it.

    Raises `ToolError` (io_error) if the file system has no locks or the file cannot be created.
    """
    path = database.with_name(f"{database.name}.worker")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        yield _locked(path, descriptor)
    finally:
        os.close(descriptor)


def _locked(path: Path, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(path, error) from None
    return True


def _unusable(path: Path, error: OSError) -> ToolError:
    remedy = "set WHYSTALL_HOME to a directory of a local file system that you can write"
    return ToolError(ErrorCode.IO_ERROR, f"cannot lock {path}: {error.strerror}", remedy)
