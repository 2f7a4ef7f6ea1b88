"""Inputs of a cluster's topology, made by hand in the shapes that nvidia-smi, lstopo and whystall write."""

from __future__ import annotations

import json
from typing import Any


def matrix(gpus: int = 8, nics: int = 8, *, tabs: bool = True, link: str = "NV18", form: int = 535) -> str:
    """Return the text of `nvidia-smi topo -m` of a host with two NUMA nodes; GPU N and NIC N share a switch.

    `form`: 410 has no NUMA column, 470 names NICs in the matrix, 510 has a legend, 535 "GPU NUMA ID". The shapes are
    those of github.com/deepseek-ai/DeepEP/issues/128 (535, blanks) and github.com/NVIDIA/nccl/issues/933 (510).
    """
    of_nic = [f"mlx5_{at}" if form < 510 else f"NIC{at}" for at in range(nics)]
    names = [f"GPU{at}" for at in range(gpus)] + of_nic
    last = ["CPU Affinity", *(["NUMA Affinity"] if form >= 470 else []), *(["GPU NUMA ID"] if form >= 535 else [])]
    lines = [["", *names, *last]]
    for row, name in enumerate(names):
        cells = [name]
        for column in range(len(names)):
            if row == column:
                cells.append(" X ")
            elif row < gpus and column < gpus:
                cells.append(link)
            else:
                one, other = (at if at < gpus else (at - gpus) * gpus // nics for at in (row, column))
                near = "PIX" if one == other else "NODE"
                cells.append(near if (one * 2 // gpus) == (other * 2 // gpus) else "SYS")
        if row < gpus:
            node = row * 2 // gpus
            cells.append("0-55,112-167" if node == 0 else "56-111,168-223")
            cells += [str(node)] * (form >= 470) + ["", "N/A"] * (form >= 535)
        lines.append(cells)
    text = "\n".join(("\t" if tabs else "    ").join(cells) for cells in lines)
    text += "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    if form >= 510:
        text += "\nNIC Legend:\n\n" + "".join(f"  NIC{at}: mlx5_{at}\n" for at in range(nics))
    return text


def lstopo(version: int = 2, *, nvml: bool = True) -> str:
    """Return XML of a host with two NUMA nodes, a GPU and a NIC below one switch of each; the shapes are those of
    tests/hwloc/xml/32em64t-2n8c2t-pci-normalio.xml in github.com/open-mpi/hwloc."""
    parts = []
    network = "0280" if version == 3 else "0207"
    for node, (cpus, bus) in enumerate((("0x00ff00ff", "03"), ("0xff00ff00", "83"))):
        name = f'<object type="OSDev" name="nvml{1 - node}" osdev_type="5"/>' if nvml else ""
        devices = (
            f'<object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[{bus[0]}0-{bus[0]}5]">'
            f'<object type="Bridge" bridge_type="1-1" pci_busid="0000:{bus[0]}0:03.0" pci_type="0604">'
            f'<object type="PCIDev" pci_busid="0000:{bus}:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1">'
            f'{name}<info name="GPUModel" value="H100"/></object>'
            f'<object type="PCIDev" pci_busid="0000:{bus}:01.0" pci_type="{network} [15b3:1021] [15b3:0041] 00">'
            f'<object type="OSDev" name="ib{node}" osdev_type="{16 if version == 3 else 2}"/>'
            f'<object type="OSDev" name="mlx5_{node}" osdev_type="{32 if version == 3 else 3}"/>'
            "</object></object></object>"
        )
        memory = f'<object type="NUMANode" os_index="{node}" cpuset="{cpus}"'
        whole = f"{memory}/>{devices}" if version > 1 else f"{memory}>{devices}</object>"
        parts.append(f'<object type="{"Package" if version > 1 else "Machine"}" cpuset="{cpus}">{whole}</object>')
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
    named = '<info name="HostName" value="node9.example.org"/>'
    inside = f'<object type="Machine" cpuset="0xffffffff">{named}{"".join(parts)}</object>'
    return f'{head}<topology version="{version}.0">{inside}</topology>\n'


def own(hosts: int, gpus: int = 8, **changed: dict[str, Any]) -> str:
    """Return our own data of `hosts` hosts with a rank on each GPU, near its GPU and with its own NIC open.

    `changed`: columns of the row of a rank, by ``r`` and its number.
    """
    tables: dict[str, list[list[Any]]] = {
        name: [] for name in ("sources", "numa", "devices", "links", "ranks", "marks")
    }
    columns = ("host", "rank", "pid", "comm", "device", "cpus", "memory", "nics")
    cpus = ("0-55", "56-111")
    for at in range(hosts):
        host = f"node{at}"
        tables["sources"].append([f"/x/{host}", "nvidia-smi", host])
        tables["numa"] += [[host, node, cpus[node]] for node in (0, 1)]
        for gpu in range(gpus):
            node, rank = gpu * 2 // gpus, at * gpus + gpu
            tables["devices"].append([host, "gpu", f"GPU{gpu}", "", node, cpus[node], "", "H100"])
            tables["devices"].append([host, "nic", f"mlx5_{gpu}", "", node, "", "", ""])
            tables["links"] += [[host, f"GPU{gpu}", f"GPU{other}", "NV18", True] for other in range(gpu + 1, gpus)]
            for other in range(gpus):
                near = "PIX" if gpu == other else "NODE" if other * 2 // gpus == node else "SYS"
                tables["links"].append([host, f"GPU{gpu}", f"mlx5_{other}", near, True])
            row = [host, rank, 1000 + rank, "python", f"GPU{gpu}", cpus[node], str(node), f"mlx5_{gpu}"]
            row = [changed.get(f"r{rank}", {}).get(name, value) for name, value in zip(columns, row, strict=True)]
            tables["ranks"].append(row)
    return json.dumps({"whystall_topology": 1, "tables": tables})


def result(tool: str, *findings: tuple[str, dict[str, Any], str]) -> str:
    """Return the JSON of a tool's result; each finding is its kind, subject and severity."""
    rows = [
        {"kind": kind, "subject": {"type": "x", **subject}, "severity": severity, "polarity": "abnormal"}
        for kind, subject, severity in findings
    ]
    return json.dumps({"tool": tool, "findings": rows})
