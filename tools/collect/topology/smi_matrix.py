"""Read the text that `nvidia-smi topo -m` prints.

        GPU0    GPU1    NIC0    mlx5_1  CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    PIX     SYS     0-55,112-167    0               N/A

Columns are separated by tabs or, where it was copied from a terminal, by blanks. The driver 410 prints no NUMA column,
470 names NICs (mlx5_0) in the matrix, since 510 they are NIC0 with a legend; since 535 there is "GPU NUMA ID". Empty
cells (the affinity of a NIC) cannot be distinguished where tabs became blanks, so that cells are read from the left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from whystall.tools.collect.topology.rows import UNKNOWN, Rows, cpus_of
from whystall.tools.contract.text import clean

RELATION = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|NVB|PSB|C2C|N/A")
"""SOC and NVB, PSB: before driver 390 and of NVML's other levels; SOC is SYS."""
_DEVICE = re.compile(r"\w[\w.-]{0,31}")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s*(\S{1,64})\s*$")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MOST_DEVICES = 512
_AFFINITY = re.compile(r"CPU Affinity")


@dataclass
class Matrix:
    """A matrix: names of devices, relation by ordered pair, CPUs and NUMA node by device. `odd`: lines left out."""

    names: list[str] = field(default_factory=list)
    relations: dict[tuple[str, str], str] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    odd: int = 0


def parse(text: str) -> Matrix | None:
    """Return the first matrix of `text`; None if there is none."""
    found: Matrix | None = None
    legend: dict[str, str] = {}
    columns: list[str] = []
    for raw in text.splitlines():
        line = _COLOURS.sub("", raw).rstrip("\r")
        head = _AFFINITY.split(line)[0].split()
        if (
            found is None
            and _AFFINITY.search(line)
            and head[:1] == ["GPU0"]
            and all(_DEVICE.fullmatch(name) for name in head)
        ):
            columns, found = head[:_MOST_DEVICES], Matrix()
        elif one := _LEGEND.fullmatch(line):
            legend[one[1]] = clean(one[2])
        elif found is not None and (cells := line.split()) and cells[0] in columns and cells[0] not in found.names:
            _row(found, columns, cells, line)
    return None if found is None or not found.names else _renamed(found, legend)


def _row(found: Matrix, columns: list[str], cells: list[str], line: str) -> None:
    name, values = cells[0], cells[1 : 1 + len(columns)]
    if len(values) != len(columns) or not all(RELATION.fullmatch(value) for value in values):
        found.odd += 1
        return
    found.names.append(name)
    for other, value in zip(columns, values, strict=True):
        if other != name and value not in ("X", "N/A"):
            found.relations[name, other] = "SYS" if value == "SOC" else value
    rest = cells[1 + len(columns) :]
    if rest and (cpus := cpus_of(rest[0])):
        found.cpus[name] = cpus
        # a range (0-1) is of a host that does not state which
        if len(rest) > 1 and re.fullmatch(r"[0-9]{1,4}", rest[1]):
            found.nodes[name] = int(rest[1])


def _renamed(found: Matrix, legend: dict[str, str]) -> Matrix:
    """Return `found` with the names of the legend for NICs."""

    def name(one: str) -> str:
        return legend.get(one, one)

    return Matrix(
        [name(one) for one in found.names],
        {(name(a), name(b)): value for (a, b), value in found.relations.items()},
        found.cpus,
        found.nodes,
        found.odd,
    )


def add(rows: Rows, host: str, matrix: Matrix) -> None:
    """Add `matrix` of `host` to `rows`."""
    for name in matrix.names:
        kind = "gpu" if name.startswith("GPU") else "nic"
        node, cpus = matrix.nodes.get(name, UNKNOWN), matrix.cpus.get(name, "")
        rows.devices.append((host, kind, name, "", node, cpus, "", ""))
        if node != UNKNOWN and cpus:
            rows.numa.append((host, node, cpus))
    for (one, other), value in matrix.relations.items():
        if one < other or (other, one) not in matrix.relations:
            rows.links.append((host, *sorted((one, other)), value, True))
    if matrix.odd:
        rows.not_seen.append(("odd_lines", str(matrix.odd)))
