"""Memory: swap, limits, and other programs that use it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import Case, CaseError
from benchmarks.faults.injectors.cgroups import enter, group
from benchmarks.faults.injectors.disks import call


def compressed_swap(case: Case, mib: int, limit_mib: int) -> Generator[None, None, None]:
    """Add swap in compressed memory, and limit the job's memory."""
    if Path("/proc/swaps").read_text().count("\n") > 1:
        raise CaseError("the host has swap already")
    place = group(case, "memory")
    (place / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
    (place / "memory.swappiness").write_text("100")
    case.wrap("job", enter(place))
    device = call("zramctl", "--find", "--size", f"{mib}M")
    case.journal.add("run", ["zramctl", "--reset", device])
    call("mkswap", device)
    case.journal.add("run", ["swapoff", device])
    call("swapon", device)
    yield
