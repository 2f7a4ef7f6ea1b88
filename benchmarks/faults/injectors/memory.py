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
    """Lower a limit in small steps: the kernel gives up (EBUSY) if it cannot reclaim enough at once."""
    deadline = time.monotonic() + _LOWER_S
    now = int(limit.read_text()) >> 20
    while now > mib:
        try:
            limit.write_text(str(max(mib, now - 16) << 20))
            now = max(mib, now - 16)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
