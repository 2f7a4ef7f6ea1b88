"""Limits of control groups, version 2."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import Case, CaseError
from benchmarks.faults.injectors.cgroups import enter
from benchmarks.faults.injectors.disks import loop_ext4
from benchmarks.faults.needs import hierarchy

_PERIOD_US = 100_000


def _group(case: Case, controller: str, role: str) -> Path:
    """Start a role in a cgroup with this controller; it is removed with all processes in it."""
    root = hierarchy()
    if root is None:
        raise CaseError("no cgroup v2 hierarchy with the controllers cpu, io and memory")
    enabled = root / "cgroup.subtree_control"
    if controller not in enabled.read_text().split():
        case.journal.add("write", str(enabled), f"-{controller}")
        enabled.write_text(f"+{controller}")
    place = root / case.name
    case.journal.add("remove_cgroup", str(place))
    place.mkdir()
    case.facts |= {"cgroup": str(place), "cgroup_name": place.name}
    case.wrap(role, enter(place))
    return place


def cpu_max(case: Case, cpus: float, role: str = "job") -> Generator[None, None, None]:
    """Limit a process to so many CPUs (cpu.max)."""
    place = _group(case, "cpu", role)
    yield
    (place / "cpu.max").write_text(f"{int(cpus * _PERIOD_US)} {_PERIOD_US}")


def io_max(case: Case, read_mib_s: float, mib: int = 128, role: str = "job") -> Generator[None, None, None]:
    """Put the case's data on a loop device, and limit the reads of a process there (io.max)."""
    _, number = loop_ext4(case, mib)
    place = _group(case, "io", role)
    yield
    (place / "io.max").write_text(f"{number} rbps={int(read_mib_s * (1 << 20))}")


def memory_high(case: Case, share: float, role: str = "job") -> Generator[None, None, None]:
    """Set memory.high to a share of the process's anonymous memory, which the kernel cannot reclaim without swap."""
    place = _group(case, "memory", role)
    yield
    for line in (place / "memory.stat").read_text().splitlines():
        name, value = line.split()
        if name == "anon":
            (place / "memory.high").write_text(str(int(int(value) * share)))
