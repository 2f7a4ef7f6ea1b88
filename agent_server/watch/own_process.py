"""What the kernel states of this process, of the threads that it watches, and of suspensions of the host."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

# syscr: 4312
_IO_CALLS = re.compile(rb"^sysc[rw]: (\d+)$", re.M)
_OOM_SCORE = 500  # of 1000: under memory pressure the watcher is killed before the jobs


def yield_memory() -> None:
    """Let the kernel's killer choose this process before a job."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    except OSError:
        return  # it may only be lowered with a capability, and stays as it is


def used_ns(pid: int, tid: int) -> int:
    """Return for how long a thread has run or waited for a CPU, ns; 0 if it has ended or the kernel does not tell."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes().split()
        return int(ran) + int(waited)
    except (OSError, ValueError):
        return 0


def thread_ended(pid: int, tid: int, start_ticks: int) -> bool:
    """Return whether a thread has ended although its process still runs, or the process id was given to another
    process. `start_ticks`: when the process started, since boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19]) != start_ticks or not Path(f"/proc/{pid}/task/{tid}").exists()
    except (OSError, IndexError, ValueError):  # it has ended as a whole
        return False


def io_calls(pid: int, tid: int) -> int | None:
    """Return how many system calls a thread has made that read or write; None if it has ended or the kernel does not
    tell."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/io").read_bytes()
    except OSError:
        return None
    return sum(int(found) for found in _IO_CALLS.findall(text)) if text else None


def suspended_ns() -> int:
    """Return how long the host has been suspended since it started, ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def run_delay_s() -> float:
    """Return how long this process has waited for a CPU, s; 0 if the kernel does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def resident_mib() -> float:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, IndexError, ValueError):
        return 0.0
