"""One worker per knowledge base: what it does in steps, no other process may do between them.

A lock of the kernel on a file beside the knowledge base: it is given back by whatever ends its holder, at once, and
asks no clock. The file itself says nothing and stays.
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
    """Within the block this process is the one that works on what waits in `database`; yields False where another is.

    Raises `ToolError` (io_error) where the file system has no locks or the file cannot be made.
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
