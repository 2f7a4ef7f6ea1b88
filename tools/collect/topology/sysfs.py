"""Read the GPUs and NICs of this host, and their NUMA nodes and bridges, from sysfs.

/sys/bus/pci/devices/0000:1b:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/.../0000:1b:00.0
(Documentation/ABI/testing/sysfs-bus-pci: numa_node, local_cpulist).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from whystall.tools.collect.topology.pci import Place, is_gpu, is_nic, relation
from whystall.tools.collect.topology.rows import UNKNOWN, Rows, cpus_of
from whystall.tools.contract.text import clean

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_MOST = 4096


def add(rows: Rows, host: str, numbers: Mapping[str, tuple[int, str, str]], sysfs: Path = Path("/sys")) -> int:
    """Add the devices of this host to `rows`, and return how many. `numbers`: number, UUID and model of GPUs by PCI
    address, as NVML has them; a GPU without is named by its address."""
    for node in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        if cpus := cpus_of(_text(node / "cpulist")):
            rows.numa.append((host, int(node.name.removeprefix("node")), cpus))
    places: list[tuple[str, Place]] = []
    for path in sorted((sysfs / "bus/pci/devices").glob("*"))[:_MOST]:
        pci_class, vendor = (_text(path / name).removeprefix("0x") for name in ("class", "vendor"))
        if not _ADDRESS.fullmatch(path.name):
            continue
        place = _place(path)
        if is_gpu(pci_class, vendor):
            number, uuid, model = numbers.get(path.name, (UNKNOWN, "", ""))
            kind, name = "gpu", path.name if number == UNKNOWN else f"GPU{number}"
        elif is_nic(pci_class[:4]):
            names = [*_names(path / "infiniband"), *_names(path / "net"), path.name]
            kind, name, uuid, model = "nic", names[0], "", ""
        else:
            continue
        rows.devices.append((host, kind, name, path.name, place.node, place.cpus, uuid, model))
        places.append((name, place))
    for at, (one, first) in enumerate(places):
        for other, second in places[at + 1 :]:
            if found := relation(first, second):
                rows.links.append((host, *sorted((one, other)), found, False))
    return len(places)


def _place(path: Path) -> Place:
    parts = path.resolve().parts[:-1]
    bridges = tuple(part for part in parts if _ADDRESS.fullmatch(part) or _ROOT.fullmatch(part))
    node = _text(path / "numa_node")
    # -1: the firmware does not say; on a host with one node that is no reason to guess
    return Place(path.name, bridges, int(node) if node.isdigit() else UNKNOWN, cpus_of(_text(path / "local_cpulist")))


def _names(path: Path) -> list[str]:
    try:
        return sorted(clean(one.name, 64) for one in path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()[:4096]
    except OSError:
        return ""
