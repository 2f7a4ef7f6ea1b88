"""Classes of PCI devices, and how two devices are connected, in the terms of `nvidia-smi topo -m`."""

from __future__ import annotations

from typing import NamedTuple

from whystall.tools.collect.topology.rows import UNKNOWN

NVIDIA, AMD, HUAWEI = "10de", "1002", "19e5"
# display controllers, and processing accelerators (pci.ids); a server's own VGA chip is of another vendor
_GPU_CLASSES, _VENDORS = ("03", "12"), frozenset({NVIDIA, AMD, HUAWEI})
_NIC_CLASSES = ("0200", "0207")


class Place(NamedTuple):
    """Where a device is. `bridges`: the root (host bridge), and the bridges down to the device; `node`: -1 unknown."""

    bus: str
    bridges: tuple[str, ...]
    node: int
    cpus: str


def is_gpu(pci_class: str, vendor: str) -> bool:
    """Return whether a class (``0302``) of a vendor (``10de``) is of an accelerator."""
    return pci_class[:2] in _GPU_CLASSES and vendor in _VENDORS


def is_nic(pci_class: str) -> bool:
    """Return whether a class is of an Ethernet or InfiniBand controller."""
    return pci_class in _NIC_CLASSES


def relation(one: Place, other: Place) -> str:
    """Return PIX (at most one switch between), PXB (several), PHB (the host bridge), NODE (host bridges of a NUMA
    node), SYS (nodes), by the legend of `nvidia-smi topo -m`; empty if the nodes are not known."""
    if one.bridges and other.bridges and one.bridges[0] == other.bridges[0]:
        common = 0
        for a, b in zip(one.bridges, other.bridges, strict=False):
            if a != b:
                break
            common += 1
        if common == 1:
            return "PHB"
        # a switch has one upstream and several downstream ports, each of them a bridge
        return "PIX" if max(len(one.bridges), len(other.bridges)) - common <= 1 else "PXB"
    if UNKNOWN in (one.node, other.node):
        return ""
    return "NODE" if one.node == other.node else "SYS"
