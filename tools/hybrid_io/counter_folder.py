"""The folder of the counter files of one run, removed with it; folders of killed runs are removed by the next run."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whystall.tools.hybrid_io.report import REST, REST_BYTES

PREFIX = "whystall-hybrid-"
_MEMORY = Path("/dev/shm")  # noqa: S108  in a folder of our own, not on a disk that is being measured
_LONGEST = 255 - len(f"/{REST}")  # bytes of a path that the shim can hold (src/shim.h)
_SECONDS = 60  # a folder younger than that may be about to be locked


@contextmanager
def counter_folder() -> Iterator[Path | None]:
    """Yield a new folder with the counter file of small programs; None without space. It is locked while in use."""
    for place in (_MEMORY, Path(tempfile.gettempdir()) if _has_temporary() else None):
        made = _made(place) if place else None
        if place and made:
            break
    else:
        yield None
        return
    folder, lock = made
    try:
        _sweep(place, but=folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _has_temporary() -> bool:
    try:
        return bool(tempfile.gettempdir())
    except OSError:
        return False


def _made(place: Path) -> tuple[Path, int] | None:
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    except OSError:
        return None
    lock = -1
    try:
        lock = os.open(folder / REST, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if len(os.fsencode(folder)) <= _LONGEST:
            os.posix_fallocate(lock, 0, REST_BYTES)
            return folder, lock
    except OSError:
        pass  # full, or a limit on the size of files: another place may do
    if lock >= 0:
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _sweep(place: Path, but: Path) -> None:
    """Remove the folders that killed runs of this user left."""
    for path in place.glob(f"{PREFIX}*"):
        try:
            about = path.lstat()
            if path == but or path.is_symlink() or about.st_uid != os.geteuid():
                continue
            if time.time() - about.st_mtime < _SECONDS:
                continue
            lock = os.open(path / REST, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)
