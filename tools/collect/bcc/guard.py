"""Run a program that dies with us: ``guard.py PARENT PROGRAM WORD...``. Standard library only.

A stock tool of BCC watches nobody, and its probes live as long as it does. The kernel kills it when its parent dies
(prctl(2), PR_SET_PDEATHSIG), however that happens. It is also the first to go where memory ends, so that it never
costs the job that is observed its life.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def main(words: list[str]) -> None:
    """Become the program, bound to the parent."""
    parent, argv = int(words[0]), words[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(1)
    with suppress(OSError):  # a hardened host: it may then be as long-lived as others
        Path("/proc/self/oom_score_adj").write_text("900")
    try:
        os.execv(argv[0], argv)  # noqa: S606 - the point of it
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
