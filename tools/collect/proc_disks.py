"""Names of disks and their partitions, from /sys."""

from __future__ import annotations

import os
from collections.abc import Iterator

from whystall.tools.contract.text import clean

_MOST_PARTITIONS = 4096


def whole_disks() -> frozenset[str] | None:
    """Return the names of disks, without partitions; None if /sys has none."""
    try:
        # a ! in a sysfs name stands for a / in the device's (cciss!c0d0)
        return frozenset(name.replace("!", "/") for name in os.listdir("/sys/block"))
    except OSError:
        return None


def partitions(root: str = "/sys/class/block") -> Iterator[tuple[str, str]]:
    """Yield the device number of each partition, and the disk on which it is; nothing without /sys."""
    try:
        names = sorted(os.listdir(root))[:_MOST_PARTITIONS]
    except OSError:
        return
    for name in names:
        try:
            if not os.path.exists(f"{root}/{name}/partition"):
                continue
            with open(f"{root}/{name}/dev", "rb") as file:
                dev = clean(file.read(32).strip())
            disk = os.path.basename(os.path.dirname(os.path.realpath(f"{root}/{name}")))
        except OSError:
            continue  # removed meanwhile
        yield dev, clean(disk.replace("!", "/"))
