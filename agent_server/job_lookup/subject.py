"""What an alert is about, besides a job: a device, a file system, a host. Pure.

The label names are those of NVIDIA's DCGM exporter (``gpu``, ``device``, ``UUID``), node_exporter (``device``,
``mountpoint``, ``interface``), smartctl_exporter (``disk``) and common custom ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from whystall.tools.contract.text import clean

_LENGTH = 100
_GPU_LABELS = ("gpu", "gpu_id", "gpu_index", "minor_number", "npu", "npu_id", "card")
_PART_LABELS = ("mountpoint", "device", "disk", "interface", "nic", "port", "gpu_uuid", "uuid")
_GPU = re.compile(
    r"\b(?:gpu|npu|card)\s*#?\s?(?P<a>\d{1,2})\b(?!\s*(?:%|(?:gi?b|x|w)\b))|(?P<b>\d{1,2})\s*号卡", re.I | re.A
)
_PART = re.compile(r"\b(?:nvme\d+n\d+(?:p\d+)?|sd[a-z]\d?|md\d+|ib\d+|eth\d+|bond\d+|mlx5_\d+|en[ps]\d\w*)\b", re.A)
_MOUNT = re.compile(r"(?<![\w:/.])/(?:[\w.-]+/?)+", re.A)


def part_of_host(labels: Mapping[str, str], text: str) -> str:
    """Return the part of a host that an alert is about: ``GPU 3``, ``nvme0n1``, ``/data``; empty if it names none.

    `text`: its title, searched if no label names one.
    """
    known = {name.lower(): value.strip() for name, value in labels.items() if value.strip()}
    for name in _GPU_LABELS:
        if (value := known.get(name)) is not None:
            return clean(f"GPU {value}" if value.isdigit() else value, _LENGTH)
    for name in _PART_LABELS:
        if (value := known.get(name)) is not None:
            return clean(value, _LENGTH)
    if (gpu := _GPU.search(text)) is not None:
        return f"GPU {gpu['a'] or gpu['b']}"
    part = _PART.search(text) or _MOUNT.search(text)
    return clean(part[0], _LENGTH) if part is not None else ""
