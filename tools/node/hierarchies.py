"""The control groups of the node, also from within a container: paths of their files, and absolute group paths.

/proc/PID/cgroup and mountinfo have paths relative to the cgroup namespace of the reader (cgroup_namespaces(7)): in a
container with its own namespace, another pod is ``/../../podUID/ID``. The start of our namespace is found by searching
for our own process in the node's tree, at the depth given by the ``..``.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from whystall.tools.node.cgroups import proc_cgroup
from whystall.tools.node.mounts import Mount, mountinfo
from whystall.tools.node.vantage import PROC, in_sidecar, node_process

_UP = b"/.."
_MOST = 100_000
"""Most directories searched for our own process."""


class CgroupView:
    """`mounts`: the cgroup mounts (in a sidecar the node's), with absolute roots and accessible mount points.

    Reads a few small files; within a cgroup namespace also a level of the tree, some 20 us per group.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._base: dict[str, bytes] = {}
        node = node_process(proc) if in_sidecar(proc) else None
        found = _mounts(node / "mountinfo", os.fsencode(node / "root")) if node is not None else []
        found = found or _mounts(proc / "self/mountinfo", b"")
        if any(mount.root.startswith(_UP) for mount in found):
            try:
                own = proc_cgroup((proc / "self/cgroup").read_bytes())
            except OSError:
                own = {}
            self._base = _bases(found, own, os.getpid())
        self.mounts = [mount._replace(root=self._absolute(mount.root, *_controllers(mount))) for mount in found]

    def membership(self, raw: bytes) -> dict[str, bytes]:
        """Parse `raw`, the content of /proc/PID/cgroup: controller (``""``: version 2) to absolute path."""
        return {controller: self._absolute(path, controller) for controller, path in proc_cgroup(raw).items()}

    def lines(self, raw: bytes) -> bytes:
        """Return `raw` with absolute paths."""
        if not self._base:
            return raw
        lines = []
        for line in raw.splitlines():
            head, first, rest = line.partition(b":")
            names, second, path = rest.partition(b":")
            place = self._absolute(path, *(name.decode("utf-8", "replace") for name in names.split(b",")))
            lines.append(head + first + names + second + place)
        return b"".join(line + b"\n" for line in lines)

    def _absolute(self, path: bytes, *controllers: str) -> bytes:
        base = next((self._base[c] for c in controllers if c in self._base), next(iter(self._base.values()), None))
        if base is None:
            return path
        return posixpath.normpath(base + b"/" + path.lstrip(b"/"))


def _mounts(table: Path, prefix: bytes) -> list[Mount]:
    """Return the cgroup mounts in `table` that can be opened below `prefix`."""
    try:
        mounts = mountinfo(table.read_bytes())
    except OSError:
        return []
    groups = [m._replace(point=prefix + m.point) for m in mounts if m.fstype in ("cgroup", "cgroup2")]
    return [mount for mount in groups if not prefix or _opens(mount.point)]


def _opens(directory: bytes) -> bool:
    """Return whether its entries can be listed. (access(2) checks the real user, without capabilities.)"""
    try:
        os.scandir(directory).close()
        return True
    except OSError:
        return False


def _controllers(mount: Mount) -> tuple[str, ...]:
    return ("",) if mount.fstype == "cgroup2" else tuple(sorted(mount.super_options))


def _bases(mounts: list[Mount], own: dict[str, bytes], pid: int) -> dict[str, bytes]:
    """Return the start of our cgroup namespace in the hierarchies of `mounts`, by controller, where found."""
    found: dict[str, bytes] = {}
    for mount in mounts:
        if not mount.root.startswith(_UP):
            continue
        names = [name for name in _controllers(mount) if name in own]
        inside = own[names[0]].strip(b"/") if names else b""
        if not names or inside.startswith(b".."):
            continue  # we are outside of our own namespace
        depth = mount.root.count(_UP) + (inside.count(b"/") + 1 if inside else 0)
        for group in _level(mount.point, depth):
            if _holds(group, pid):
                path = group[len(mount.point) :]
                found |= dict.fromkeys(names, path[: len(path) - len(inside)].rstrip(b"/") if inside else path)
                break
    return found


def _level(top: bytes, depth: int) -> Iterator[bytes]:
    """Yield the directories `depth` levels below `top`."""
    level = [top]
    for _ in range(depth):
        deeper = []
        for directory in level:
            try:
                with os.scandir(directory) as entries:
                    deeper += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # removed meanwhile
        level = deeper[:_MOST]
    yield from level


def _holds(group: bytes, pid: int) -> bool:
    try:
        with open(group + b"/cgroup.procs", "rb") as file:
            return b"%d" % pid in file.read().split()
    except OSError:
        return False
