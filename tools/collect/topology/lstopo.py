"""Read the XML of lstopo (hwloc 1 to 3).

<object type="PCIDev" pci_busid="0000:1b:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" ...>
  <object type="OSDev" name="nvml0" osdev_type="5"> ... </object>

In hwloc 1 a NUMANode contains the objects of its CPUs; in hwloc 2 it is a child beside them, and the locality of an
object of I/O is the cpuset of its next ancestor. The DTD is not read; a document with an entity is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.collect.topology.pci import Place, is_gpu, is_nic, relation
from whystall.tools.collect.topology.rows import UNKNOWN, Rows
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_DEPTH, _MOST_OBJECTS = 128, 500_000
_MASK = re.compile(r"(?:0x[0-9a-f]{1,8})?(?:,(?:0x[0-9a-f]{1,8})?)*", re.IGNORECASE)
_MOST_WORDS = 8192 // 32
_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):[0-9a-f]{4}\]", re.IGNORECASE)
_NVML = re.compile(r"nvml([0-9]{1,4})")
# hwloc 3 has a bit for each type, before it they are numbered
_RDMA, _NETWORK = {"3", "32"}, {"2", "16"}


@dataclass
class _Device:
    place: Place
    pci_class: str
    vendor: str
    names: list[tuple[str, str]] = field(default_factory=list)
    uuid: str = ""
    model: str = ""


@dataclass
class Machine:
    """What a file states. `host`: its name, empty if it is not stated; `numa`: CPUs by node."""

    host: str = ""
    numa: dict[int, str] = field(default_factory=dict)
    devices: list[_Device] = field(default_factory=list)


class _Reader:
    def __init__(self) -> None:
        self.machine = Machine()
        self._open: list[tuple[str, dict[str, str], _Device | None]] = []
        self._count = 0
        self._begun = False

    def start(self, tag: str, given: dict[str, str]) -> None:
        self._count += 1
        if self._count > _MOST_OBJECTS or len(self._open) >= _DEPTH:
            raise _bad("too large or too deep")
        if not self._begun and tag != "topology":
            raise _bad("it is no topology of lstopo")
        self._begun = True
        device = self._open[-1][2] if self._open else None
        if tag == "object":
            device = self._object(given, device)
        elif tag == "info":
            self._info(given.get("name", ""), given.get("value", ""), device)
        self._open.append((tag, given, device))

    def end(self, tag: str) -> None:
        self._open.pop()

    def _object(self, given: dict[str, str], device: _Device | None) -> _Device | None:
        kind = given.get("type", "")
        if kind in ("NUMANode", "Node"):
            cpus = mask_list(given.get("cpuset", ""))
            number = given.get("os_index", "")
            if cpus and re.fullmatch("[0-9]{1,4}", number):
                self.machine.numa[int(number)] = cpus
        elif kind == "PCIDev" and (one := _TYPE.match(given.get("pci_type", ""))):
            place = Place(clean(given.get("pci_busid", ""), 20), self._bridges(), UNKNOWN, self._cpus())
            device = _Device(place, one[1].lower(), one[2].lower())
            self.machine.devices.append(device)
        elif kind == "OSDev" and device is not None:
            device.names.append((given.get("osdev_type", ""), clean(given.get("name", ""), 64)))
        return device

    def _info(self, name: str, value: str, device: _Device | None) -> None:
        if name == "HostName" and not self.machine.host:
            self.machine.host = clean(value, 64)
        elif device is not None and name == "NVIDIAUUID":
            device.uuid = clean(value, 64)
        elif device is not None and name == "GPUModel":
            device.model = clean(value, 64)

    def _bridges(self) -> tuple[str, ...]:
        """Return the host bridge, by its buses, and the bridges below it."""
        of = [given for _, given, _ in self._open if given.get("type") == "Bridge"]
        return tuple(clean(one.get("pci_busid") or one.get("bridge_pci", ""), 20) for one in of)

    def _cpus(self) -> str:
        return next((cpus for _, given, _ in reversed(self._open) if (cpus := mask_list(given.get("cpuset", "")))), "")


def parse(data: bytes) -> Machine:
    """Return what the XML `data` states. Raises `ToolError` (bad_trace) if it is none of lstopo, or has entities."""
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError) as error:
        raise _bad(clean(str(error))) from None
    return reader.machine


def _refuse_entity(*_: object) -> None:
    raise _bad("it declares an entity")


def _bad(why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_TRACE, f"the XML cannot be read: {why}", "give the output of `lstopo --of xml`")


def mask_list(text: str) -> str:
    """Return a cpuset (``0x00ff00ff``, ``0x1,,0x0``: 32 bits each, the most significant first) as a list: 0-7,16-23.

    Empty if it is none, infinite (``0xf...f``), or has more CPUs than Linux.
    """
    words = text.split(",")
    if not text or not _MASK.fullmatch(text) or len(words) > _MOST_WORDS:
        return ""
    bits = 0
    for word in words:
        bits = bits << 32 | int(word or "0", 16)
    cpus = [at for at in range(bits.bit_length()) if bits >> at & 1]
    return format_cpus(cpus)


def add(rows: Rows, host: str, machine: Machine) -> None:
    """Add the GPUs and NICs of `machine` to `rows`. A GPU without its NVML number is named by its PCI address: the
    order of NVML need not be that of the addresses."""
    nodes = {cpus: node for node, cpus in machine.numa.items()}
    rows.numa += [(host, node, cpus) for node, cpus in machine.numa.items()]
    places = []
    for device in machine.devices:
        place = device.place
        known = place._replace(node=nodes.get(place.cpus, UNKNOWN))
        if is_gpu(device.pci_class, device.vendor):
            number = next((one[1] for _, name in device.names if (one := _NVML.fullmatch(name))), None)
            name, kind = f"GPU{number}" if number is not None else place.bus, "gpu"
        # adapters of InfiniBand may be of the class of other networks (0280)
        elif is_nic(device.pci_class) or any(of_type in _RDMA for of_type, _ in device.names):
            named = [name for types in (_RDMA, _NETWORK) for of_type, name in device.names if of_type in types and name]
            name, kind = next(iter(named), place.bus), "nic"
        else:
            continue
        rows.devices.append((host, kind, name, place.bus, known.node, place.cpus, device.uuid, device.model))
        places.append((name, known))
    for at, (here, first) in enumerate(places):
        for other, second in places[at + 1 :]:
            if found := relation(first, second):
                rows.links.append((host, *sorted((here, other)), found, False))
