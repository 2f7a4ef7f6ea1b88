"""Which frames of a kernel stack tell a reader where it waited."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The scheduler's own frames on top, and the way into the kernel below, are in every stack and say nothing.
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
# As engines write a Python frame: ``save (train.py:212)``.
_PYTHON = re.compile(r".+ \([^()]+:[0-9]{1,9}\)")


def kernel_path(frames: Iterable[str]) -> str:
    """The telling frames, innermost first: ``folio_wait_writeback < ext4_sync_file < do_fsync``."""
    return " < ".join([f for f in frames if not f.startswith(_PLUMBING)][:_FRAMES])


def python_line(frames: Iterable[str]) -> str:
    """The innermost Python frame among a thread's user frames, innermost first, as they name it; empty without one."""
    return next((frame for frame in frames if _PYTHON.fullmatch(frame)), "")
