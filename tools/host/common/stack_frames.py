"""Choose the frames of a stack that show where a thread waited."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Frames of the scheduler (top) and of kernel entry (bottom) are in every stack.
_PLUMBING = (
    "__schedule",
    "schedule",
    "preempt_schedule",
    "__cond_resched",
    "io_schedule",
    "bit_wait",
    "__x64_sys",
    "__arm64_sys",
    "__se_sys",
    "do_syscall",
    "invoke_syscall",
    "el0",
    "entry_",
)
_FRAMES = 6
# A Python frame as the engines write it: ``save (train.py:212)``.
_PYTHON = re.compile(r".+ \([^()]+:[0-9]{1,9}\)")
# The same in a library: ``get (python3.11/queue.py:180)``, ``_bootstrap (<frozen importlib._bootstrap>:241)``.
_LIBRARY = re.compile(r" \((?:[^()]*/[^()]*|<frozen [^()]*):[0-9]{1,9}\)$")


def kernel_path(frames: Iterable[str]) -> str:
    """Return the significant frames, innermost first: ``folio_wait_writeback < ext4_sync_file < do_fsync``."""
    return " < ".join([f for f in frames if not f.startswith(_PLUMBING)][:_FRAMES])


def python_line(frames: Iterable[str]) -> str:
    """Return the innermost Python frame of user frames given innermost first; empty if there is none."""
    return next((frame for frame in frames if _PYTHON.fullmatch(frame)), "")


def program_line(frames: Sequence[str]) -> str:
    """Return the innermost Python frame of the program itself, of user frames given innermost first: the file of a
    library is written with its package (``torch/serialization.py``). If all are libraries', the innermost of all.
    """
    python = [frame for frame in frames if _PYTHON.fullmatch(frame)]
    own = (frame for frame in python if not _LIBRARY.search(frame))
    return next(own, python[0] if python else "")
