"""Find the file of another process's descriptor; files of network file systems, which may hang, are not touched."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.contract.text import clean
from whystall.tools.node.mounts import REMOTE, Mount, mountinfo

_NOT_FILES = ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "tracefs", "debugfs")


class OpenFile(NamedTuple):
    """The regular file of a descriptor. `key`: its row in the files table."""

    key: int
    position: int
    direct: bool


class Files:
    """Numbers the regular files of a window."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._keys: dict[tuple[str, str, int], int] = {}
        self._mounts: dict[int, dict[int, Mount]] = {}
        self.rows: list[tuple[object, ...]] = []

    def resolve(self, pid: int, fd: int) -> OpenFile | None:
        """Return the regular file of descriptor `fd` of `pid`; None for anything else, or without permission."""
        base = f"{self._root}/{pid}"
        try:
            link = os.readlink(os.fsencode(f"{base}/fd/{fd}"))
            if not link.startswith(b"/"):
                return None  # a pipe, a socket, or something else without a path
            with open(f"{base}/fdinfo/{fd}", "rb") as file:
                info = parse.fdinfo(file.read(4096))
        except (OSError, ValueError):
            return None
        mount = self._mount(pid, info.mount_id)
        fstype = mount.fstype if mount else ""
        inode = info.inode
        if info.flags & os.O_DIRECTORY or fstype in _NOT_FILES:
            return None
        if not fstype.startswith(REMOTE):
            try:
                found = os.stat(f"{base}/fd/{fd}")
            except OSError:
                return None
            if not stat.S_ISREG(found.st_mode):
                return None
            inode = found.st_ino
        path, deleted = parse.link_path(link)
        dev = mount.dev if mount else ""
        key = self._keys.setdefault((path, dev, inode), len(self._keys))
        if key == len(self.rows):
            self.rows.append((key, path, dev, inode, fstype, True, deleted))
        return OpenFile(key, info.position, bool(info.flags & os.O_DIRECT))

    def named(self, pid: int, fd: int) -> tuple[str, int]:
        """Return the target of descriptor `fd` of `pid` as its link in /proc states it (``pipe:[123]``, a path), and
        the row of the file if it is a regular one (-1: none); empty if unknown."""
        try:
            link = os.readlink(os.fsencode(f"{self._root}/{pid}/fd/{fd}"))
        except OSError:
            return "", -1
        if not link.startswith(b"/"):
            return clean(link), -1
        opened = self.resolve(pid, fd)
        return parse.link_path(link)[0], opened.key if opened is not None else -1

    def fstype(self, key: int) -> str:
        """Return the file system type of the file in row `key`; empty if unknown."""
        return str(self.rows[key][4])

    def _mount(self, pid: int, mount_id: int) -> Mount | None:
        if pid not in self._mounts:
            try:
                with open(f"{self._root}/{pid}/mountinfo", "rb") as file:
                    self._mounts[pid] = {m.mount_id: m for m in mountinfo(file.read())}
            except OSError:
                self._mounts[pid] = {}
        return self._mounts[pid].get(mount_id)
