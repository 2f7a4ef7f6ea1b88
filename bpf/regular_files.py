"""Open untrusted paths only if they are regular files."""

from __future__ import annotations

import os
import stat


def open_regular(path: str, flags: int = 0) -> int:
    """Return a descriptor to read the regular file `path`; `OSError` for anything else, without opening it.

    A pipe would block, and opening a device may have effects (a watchdog starts). `flags`: more, such as O_NOFOLLOW.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise FileNotFoundError(f"not a regular file: {path}")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(place)
