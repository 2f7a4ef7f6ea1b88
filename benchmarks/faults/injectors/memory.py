"""Memory: swap, limits, and other programs that use it."""

from __future__ import annotations

import errno
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import Case, CaseError
from benchmarks.faults.injectors.cgroups import enter, group
from benchmarks.faults.injectors.disks import call

_LOWER_S = 20.0
_STEP_MIB = 16


def compressed_swap(case: Case, mib: int, limit_mib: int, later_mib: int) -> Generator[None, None, None]:
    """Add swap in compressed memory, and lower the limit of the job's memory below its use."""
    if Path("/proc/swaps").read_text().count("\n") > 1:
        raise CaseError("the host has swap already")
    place = group(case, "memory")
    (place / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
    (place / "memory.swappiness").write_text("100")
    case.wrappers["job"] = enter(place)
    device = call("zramctl", "--find", "--size", f"{mib}M")
    case.journal.add("run", ["zramctl", "--reset", device])
    call("mkswap", device)
    case.journal.add("run", ["swapoff", device])
    call("swapon", device)
    yield
    _lower(place / "memory.limit_in_bytes", later_mib)


def _lower(limit: Path, mib: int) -> None:
    """Lower a limit in small steps: the kernel gives up (EBUSY) if it cannot reclaim enough at once.

    A limit that stays higher is no error: the oracle decides whether it has an effect.
    """
    deadline = time.monotonic() + _LOWER_S
    now = int(limit.read_text()) >> 20
    step = _STEP_MIB
    while now > mib and time.monotonic() < deadline:
        try:
            limit.write_text(str(max(mib, now - step) << 20))
            now = max(mib, now - step)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            step = max(1, step // 2)
