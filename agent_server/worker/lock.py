"""A lock that allows one worker per knowledge base: a ``flock`` on an empty file beside it. The file stays."""

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
    descriptor = take_lock(database.with_name(f"{database.name}.worker"))
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def take_lock(path: Path) -> int | None:
    """Lock the file `path`, created if missing; return its descriptor, or None if it is locked already.

    The kernel releases the lock when the descriptor is closed, or its process ends for whatever reason (flock(2)). Two
    descriptors of one process exclude each other too. Raises `ToolError` (io_error) as `worker_lock`.
    """
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        remedy = "set WHYSTALL_HOME to a directory of a local file system that you can write"
        raise ToolError(ErrorCode.IO_ERROR, f"cannot lock {path}: {error.strerror}", remedy) from None
    return descriptor
