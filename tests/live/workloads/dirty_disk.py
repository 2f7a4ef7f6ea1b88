"""A slow disk whose writers are throttled early: its device may hold little dirty data, and is slow for everybody.

``SlowDisk`` alone binds the processes enrolled; with control groups v1 the kernel's flusher threads are not among them,
so a buffered write would never wait.  Here the limit is that of the root group, for this one loop device, and the
device's share of dirty memory is bounded (``strict_limit`` and ``max_bytes`` of its backing device, Linux 6.2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from slow_disk import SlowDisk, mounts

MIB = 1 << 20


@contextlib.contextmanager
def dirty_disk(*, write_mib_s: int, dirty_mib: int, size_mib: int = 512) -> Iterator[SlowDisk]:
    """A disk that takes `write_mib_s`, of which at most about `dirty_mib` may be dirty; raises OSError where the kernel
    cannot bound them.
    """
    with SlowDisk(write_mib_s=None, size_mib=size_mib) as disk, contextlib.ExitStack() as stack:
        number = disk.device_number
        backing = Path("/sys/class/bdi") / number
        before = (backing / "max_ratio_fine").read_text()
        (backing / "strict_limit").write_text("1")
        stack.callback((backing / "strict_limit").write_text, "0")
        (backing / "max_bytes").write_text(str(dirty_mib * MIB))
        stack.callback((backing / "max_ratio_fine").write_text, before)
        root = _root_throttle()
        root.write_text(f"{number} {write_mib_s * MIB}")
        stack.callback(root.write_text, f"{number} 0")
        yield disk


def _root_throttle() -> Path:
    """The file that limits writes for everybody; OSError where there is none (version 2 has none in its root)."""
    for mount in mounts():
        if mount.kind == "cgroup" and "blkio" in mount.options:
            return mount.path / "blkio.throttle.write_bps_device"
    raise FileNotFoundError("blkio (cgroup v1) is not mounted")
