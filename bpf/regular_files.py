"""Files that others laid where we look, opened only if they are regular ones."""

from __future__ import annotations

import os
import stat


def open_regular(path: str, flags: int = 0) -> int:
    """A descriptor to read the regular file `path`; `OSError` for anything else, which is not opened: a pipe would be
    waited for, and a device does what opening it means (a watchdog begins to count), though whoever laid its node in a
    container may not open it there. `flags`: more of them, as O_NOFOLLOW.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise FileNotFoundError(f"no regular file: {path}")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(place)
