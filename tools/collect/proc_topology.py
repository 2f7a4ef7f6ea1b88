"""Read the topology of CPUs: node, package and core.

Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node of the kernel.
"""

from __future__ import annotations

import re
from pathlib import Path

from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.collect.proc_parse import UNKNOWN
from whystall.tools.contract.errors import ToolError

_SYSTEM = Path("/sys/devices/system")


def cpu_rows(system: Path = _SYSTEM) -> list[tuple[int, int, int, int, bool]]:
    """Return one row per present CPU: number, node, core, package (-1: unknown), online."""
    online, present = (_listed(system / "cpu" / name) for name in ("online", "present"))
    nodes = {cpu: number for number, path in _nodes(system) for cpu in _listed(path / "cpulist")}
    rows = []
    for cpu in sorted({*present, *online}):
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        core, package = _number(topology / "core_id"), _number(topology / "physical_package_id")
        rows.append((cpu, nodes.get(cpu, UNKNOWN), core, package, cpu in online))
    return rows


def _nodes(system: Path) -> list[tuple[int, Path]]:
    try:
        found = [path for path in (system / "node").iterdir() if re.fullmatch(r"node[0-9]{1,5}", path.name)]
    except OSError:
        return []  # a kernel without NUMA
    return sorted((int(path.name.removeprefix("node")), path) for path in found)


def _listed(path: Path) -> tuple[int, ...]:
    try:
        return parse_cpus(path.read_text("ascii", "replace").strip())
    except (OSError, ToolError):
        return ()


def _number(path: Path) -> int:
    try:
        return int(path.read_text("ascii", "replace"))
    except (OSError, ValueError):
        return UNKNOWN
