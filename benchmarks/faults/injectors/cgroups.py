"""Limits of control groups (v1)."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from benchmarks.faults.case import Case, CaseError

_ROOT = Path("/sys/fs/cgroup")


def group(case: Case, controller: str, suffix: str = "") -> Path:
    """Make a cgroup of the case below the runner's own; it is removed with all processes in it."""
    base = _ROOT / controller
    if not (base / "cgroup.procs").exists():
        raise CaseError(f"no cgroup controller {controller} (v1)")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            base /= path.lstrip("/")
    place = base / f"{case.name}{suffix}"
    case.journal.add("remove_cgroup", str(place))
    place.mkdir()
    case.facts[f"{controller}_cgroup"] = str(place)
    case.facts[f"{controller}_cgroup_name"] = place.name
    return place


def enter(place: Path) -> list[str]:
    """Return the command-line prefix that runs a program in a cgroup from its first instruction."""
    return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(place / "cgroup.procs")]


def cpu_quota(case: Case, cpus: float, role: str = "job") -> Generator[None, None, None]:
    """Limit a process to so many CPUs."""
    place = group(case, "cpu")
    case.wrap(role, enter(place))
    yield
    (place / "cpu.cfs_quota_us").write_text(str(int(cpus * 100_000)))


def freeze(case: Case, role: str = "job") -> Generator[None, None, None]:
    """Freeze the cgroup of a process."""
    place = group(case, "freezer")
    case.wrap(role, enter(place))
    yield
    (place / "freezer.state").write_text("FROZEN")


def memory_limit(
    case: Case, limit_mib: int, role: str = "job", later_mib: int | None = None, beside: tuple[str, ...] = ()
) -> Generator[None, None, None]:
    """Limit the memory of a process, and of those `beside` it; `later_mib`: the limit after the injection."""
    place = group(case, "memory")
    (place / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
    for one in (role, *beside):
        case.wrap(one, enter(place))
    yield
    if later_mib is not None:
        (place / "memory.limit_in_bytes").write_text(str(later_mib << 20))
