"""Check accelerators: devices on the bus, driver, and the vendor's tool.

Our tools do not use the device, only its profiles; the check shows whether jobs here can use one.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import View


@dataclass(frozen=True)
class _Vendor:
    """`pci`: vendor id and classes of its accelerators; `nodes`: its device nodes, as (directory, pattern); `version`:
    the file with the driver's version, and a pattern for it; `tools`: names, and directories outside of the path.
    """

    name: str
    pci: tuple[str, tuple[str, ...]]
    nodes: tuple[str, str]
    version: tuple[str, str]
    tools: tuple[str, ...]
    places: str


# Classes: 0x0300 VGA, 0x0302 3D, 0x0380 other display, 0x1200 processing accelerators (PCI Code and ID Assignment).
_VENDORS = (
    _Vendor(
        "NVIDIA",
        ("0x10de", ("0x0300", "0x0302")),
        ("/dev", "nvidia[0-9]*"),
        ("/proc/driver/nvidia/version", r"Module.*?\s(\d+\.\d+(?:\.\d+)?)"),
        ("nvidia-smi",),
        "",
    ),
    _Vendor(
        "Ascend",
        ("0x19e5", ("0x1200",)),
        ("/dev", "davinci[0-9]*"),
        ("/usr/local/Ascend/driver/version.info", r"^Version=(\S+)"),
        ("npu-smi",),
        "/usr/local/bin:/usr/local/sbin:/usr/local/Ascend/driver/tools",
    ),
    _Vendor(
        "AMD",
        ("0x1002", ("0x0302", "0x0380", "0x1200")),
        ("/dev/dri", "renderD*"),
        ("/sys/module/amdgpu/version", r"(\S+)"),
        ("amd-smi", "rocm-smi"),
        "/opt/rocm/bin",
    ),
)
_KFD = "/dev/kfd"  # AMD's compute interface; render nodes alone may be of any vendor


def accelerators(view: View) -> Check:
    """Check each vendor's devices, driver and tool; limited if one of them is missing."""
    seen = [(vendor, _cards(view, vendor), _nodes(view, vendor)) for vendor in _VENDORS]
    present = [(vendor, cards, nodes) for vendor, cards, nodes in seen if cards or nodes]
    if not present:
        return view.ok("accelerators", view.say("accelerators.none"))
    found = "; ".join(_described(view, vendor, cards, nodes) for vendor, cards, nodes in present)
    for vendor, cards, nodes in present:
        if nodes:
            continue
        if _version(view, vendor):
            means, fix = view.say("accelerators.no_node"), view.say("accelerators.no_node_fix", name=vendor.name)
        else:
            means = view.say("accelerators.no_driver", cards=cards, name=vendor.name)
            fix = view.say("accelerators.no_driver_fix", name=vendor.name)
        return view.limited("accelerators", found, means, fix)
    for vendor, _cards_of, _nodes_of in present:
        if _tool(view, vendor) is None:
            means = view.say("accelerators.no_tool", tools="/".join(vendor.tools))
            fix = view.say("accelerators.no_tool_fix", name=vendor.name, tools="/".join(vendor.tools))
            return view.limited("accelerators", found, means, fix)
    return view.ok("accelerators", found)


def _described(view: View, vendor: _Vendor, cards: int, nodes: list[str]) -> str:
    version, tool = _version(view, vendor), _tool(view, vendor)
    parts = [
        view.say("accelerators.nodes", count=len(nodes)) if nodes else view.say("accelerators.cards", count=cards),
        view.say("accelerators.driver", version=version) if version else view.say("accelerators.driver_unknown"),
        tool or view.say("accelerators.tool_none", tools="/".join(vendor.tools)),
    ]
    return f"{vendor.name}: {', '.join(parts)}"


def _cards(view: View, vendor: _Vendor) -> int:
    """Return the vendor's accelerators on the bus."""
    number, classes = vendor.pci
    count = 0
    for device in view.names("/sys/bus/pci/devices"):
        place = f"/sys/bus/pci/devices/{device}"
        if view.read(f"{place}/vendor") == number and (view.read(f"{place}/class") or "")[:6] in classes:
            count += 1
    return count


def _nodes(view: View, vendor: _Vendor) -> list[str]:
    if vendor.name == "AMD" and not view.exists(_KFD):
        return []
    return view.names(*vendor.nodes)


def _version(view: View, vendor: _Vendor) -> str | None:
    path, pattern = vendor.version
    match = next((found for line in view.lines(path) if (found := re.search(pattern, line))), None)
    return match[1] if match else None


def _tool(view: View, vendor: _Vendor) -> str | None:
    """Return the vendor's tool: on the path, or in the directory of its installer."""
    for name in vendor.tools:
        if str(view.root) == "/" and shutil.which(name):
            return name
        for place in ("/usr/bin", *filter(None, vendor.places.split(":"))):
            if view.exists(f"{place}/{name}"):
                return name
    return None
