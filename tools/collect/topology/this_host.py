"""Read the topology of this host: devices by sysfs and NVML, and the processes that have a rank by /proc."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from whystall.tools.collect.nvml_engine import library
from whystall.tools.collect.topology import sysfs
from whystall.tools.collect.topology.nvml_links import NvmlLinks
from whystall.tools.collect.topology.rows import Rows, cpus_of
from whystall.tools.contract.text import clean
from whystall.tools.node import environment

_STATUS = re.compile(r"^(Cpus_allowed_list|Mems_allowed_list|PPid|Name):\s*(.*)$", re.MULTILINE)
_VERBS = re.compile(r"/dev/infiniband/(uverbs[0-9]{1,4})")
_MOST_FILES = 65_536


def read(rows: Rows, host: str, proc: Path = Path("/proc"), sys: Path = Path("/sys"), nvml: Any | None = None) -> None:
    """Add this host to `rows`. `nvml`: the module pynvml; without it the installed one."""
    module = nvml if nvml is not None else library()
    found = None
    if module is None:
        rows.not_seen.append(("no_nvml", "the library nvidia-ml-py is not installed (`pip install 'whystall[nvml]'`)"))
    else:
        found = NvmlLinks(module)
        found.start()
        rows.not_seen += [spot for spot in found.read().not_seen if spot[0] != "no_gpus"]
        if found.refused:
            rows.not_seen.append(("no_nvml", found.refused))
    names = found.gpus if found else {}
    count = sysfs.add(rows, host, names, sys)
    gpus = {row[3]: str(row[2]) for row in rows.devices if row[0] == host and row[1] == "gpu"}
    for one, other, links in found.links() if found else ():
        if one in gpus and other in gpus:
            rows.links.append((host, *sorted((gpus[one], gpus[other])), f"NV{links}", True))
    if not gpus:
        rows.not_seen.append(("no_gpus", "sysfs lists none on this host"))
    if count:
        rows.sources.append(("/sys", "sysfs", host))
    used = {pid: [gpus[bus] for bus in sorted(buses) if bus in gpus] for pid, buses in _processes(found).items()}
    _ranks(rows, host, used, proc, sys)


def _processes(found: NvmlLinks | None) -> dict[int, set[str]]:
    return found.of_process if found else {}


def _ranks(rows: Rows, host: str, used: dict[int, list[str]], proc: Path, sys: Path) -> None:
    """Add the processes whose environment states a rank, but their children that inherited it."""
    known: dict[int, tuple[int, dict[str, str]]] = {}
    denied = 0
    for path in proc.glob("[0-9]*"):
        try:
            raw = (path / "environ").read_bytes()[: environment.LIMIT]
            status = dict(_STATUS.findall((path / "status").read_text("utf-8", "replace")))
        except PermissionError:
            denied += 1
            continue
        except OSError:  # it has ended
            continue
        rank = environment.identity(raw).rank
        if rank is not None:
            known[int(path.name)] = (rank, status)
    if denied:
        rows.not_seen.append(("not_permitted", f"the environment of {denied} processes"))
    for pid, (rank, status) in sorted(known.items()):
        parent = int(status["PPid"]) if status.get("PPid", "").isdigit() else 0
        if known.get(parent, (None,))[0] == rank:
            continue
        gpus = used.get(pid, [])
        cpus, memory = (cpus_of(status.get(f"{name}_allowed_list", "")) for name in ("Cpus", "Mems"))
        nics = " ".join(_nics(proc / str(pid) / "fd", sys))
        # a process with several GPUs drives them all: none of them is its own
        device = gpus[0] if len(gpus) == 1 else ""
        rows.ranks.append((host, rank, pid, clean(status.get("Name", "")), device, cpus, memory, nics))


def _nics(folder: Path, sys: Path) -> list[str]:
    """Return the RDMA devices that a process has open (sysfs-class-infiniband_verbs, ibdev)."""
    found = set()
    try:
        for at, one in enumerate(folder.iterdir()):
            if at > _MOST_FILES:
                break
            if match := _VERBS.fullmatch(str(one.readlink())):
                found.add((sys / "class/infiniband_verbs" / match[1] / "ibdev").read_text("ascii", "replace"))
    except OSError:  # it has ended, or is another user's: no NIC is known
        return []
    return sorted(clean(name, 64).strip() for name in found)
