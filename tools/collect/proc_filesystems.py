"""Read how full the local file systems of processes are, and which of them have files open for writing.

Network file systems, FUSE, and mounts below them are left out, since statfs(2) may wait for their server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from whystall.tools.collect import proc_parse as parse
from whystall.tools.contract.text import clean_path
from whystall.tools.node.mounts import REMOTE, Mount, below, mountinfo

_MOST_NAMESPACES = 8
_MOST_MOUNTS = 64
_MOST_PROCESSES = 32
_MOST_DESCRIPTORS = 512
_VIRTUAL = frozenset({"proc", "sysfs", "devpts", "cgroup", "cgroup2", "autofs", "devtmpfs", "ramfs", "mqueue"})
Row = tuple[str, str, str, int, int, int, int, int]


def filesystems(proc: str, pids: Sequence[int]) -> list[Row]:
    """Return (path, dev, type, size, free, inodes, free inodes, files open for writing) of each file system, once.

    `free`: bytes that the process may use; only root may use the reserved part. Sizes in bytes; inodes 0: not limited.
    """
    opened = _open_files(proc, pids)
    found: dict[str, Row] = {}
    namespaces: set[str] = set()
    for pid in pids[:_MOST_PROCESSES]:
        try:
            namespace = os.readlink(f"{proc}/{pid}/ns/mnt")
            root = os.stat(f"{proc}/{pid}").st_uid == 0
            if namespace in namespaces or len(namespaces) >= _MOST_NAMESPACES:
                continue
            mounts = _mounts(proc, pid)
        except OSError:
            continue  # exited, or no permission
        namespaces.add(namespace)
        for mount in _local(mounts):
            if mount.dev not in found and len(found) < _MOST_MOUNTS:
                with suppress(OSError):
                    size = os.statvfs(f"{proc}/{pid}/root".encode() + mount.point)
                    if size.f_blocks and not size.f_flag & os.ST_RDONLY:
                        free = (size.f_bfree if root else size.f_bavail) * size.f_frsize
                        inodes = (size.f_files, size.f_ffree if root else size.f_favail)
                        sizes = (size.f_blocks * size.f_frsize, free, *inodes)
                        path = clean_path(mount.point)
                        found[mount.dev] = (path, mount.dev, mount.fstype, *sizes, opened.get(mount.dev, 0))
    return list(found.values())


def _mounts(proc: str, pid: int) -> list[Mount]:
    with open(f"{proc}/{pid}/mountinfo", "rb") as file:
        return mountinfo(file.read())


def _local(mounts: list[Mount]) -> list[Mount]:
    remote = [mount.point for mount in mounts if mount.fstype.startswith(REMOTE)]
    return [
        mount
        for mount in mounts
        if not mount.fstype.startswith(REMOTE)
        and mount.fstype not in _VIRTUAL
        and not any(below(mount.point, point) is not None for point in remote)
    ]


def _open_files(proc: str, pids: Sequence[int]) -> dict[str, int]:
    """Return how many descriptors for writing the processes have per device number; no file is touched."""
    counts: dict[str, int] = {}
    for pid in pids[:_MOST_PROCESSES]:
        try:
            names = os.listdir(f"{proc}/{pid}/fdinfo")[:_MOST_DESCRIPTORS]
            devices = {mount.mount_id: mount.dev for mount in _mounts(proc, pid)}
        except OSError:
            continue  # exited, or no permission
        for name in names:
            try:
                with open(f"{proc}/{pid}/fdinfo/{name}", "rb") as file:
                    info = parse.fdinfo(file.read(4096))
            except (OSError, ValueError):
                continue  # closed
            dev = devices.get(info.mount_id)
            if dev is not None and info.flags & os.O_ACCMODE != os.O_RDONLY:
                counts[dev] = counts.get(dev, 0) + 1
    return counts
