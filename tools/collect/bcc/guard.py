"""Run a program that dies with us: ``guard.py PARENT PROGRAM WORD...``. Standard library only.

A stock BCC tool does not notice that its parent died, and its probes last as long as it does: the kernel kills it
(prctl(2), PR_SET_PDEATHSIG). It also raises its OOM score, so that it is killed before the observed job, and lets an
interrupt end it.
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
    if os.getppid() != parent:  # the parent died before prctl
        sys.exit(1)
    with suppress(OSError):  # not allowed on a hardened host
        Path("/proc/self/oom_score_adj").write_text("900")
    # A shell ignores SIGINT for its background jobs, and their children inherit that; here it ends the program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - the point of it
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
