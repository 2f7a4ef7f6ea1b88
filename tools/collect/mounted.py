"""Resolve paths that BPF programs recorded relative to their file system, to paths that the observed processes see.

A container may mount a part of a file system (a volume's directory), and its root is an overlay: the pages of mapped
files belong to files of its layers, on a file system of the node.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from whystall.bpf import layout
from whystall.bpf.capture import File, FileKey
from whystall.tools.contract.text import clean
from whystall.tools.node.mounts import Mount, below, mountinfo
from whystall.tools.node.vantage import in_sidecar, node_process

_MOST = 64
"""Limit of mount namespaces."""
Table = Sequence[Mount]


def tables(pids: Iterable[int], proc: Path = Path("/proc")) -> list[Table]:
    """Return the mount tables of `pids`, each mount namespace once, and the node's last."""
    found: dict[str, Table] = {}
    node = node_process(proc) if in_sidecar(proc) else None
    for pid in [*pids, node.name if node is not None else "self"]:
        try:
            namespace = os.readlink(proc / str(pid) / "ns/mnt")
            if namespace not in found and len(found) < _MOST:
                found[namespace] = mountinfo((proc / str(pid) / "mountinfo").read_bytes())
        except OSError:
            if pid == "self":  # /proc may hide the namespace
                found[""] = []
                with suppress(OSError):
                    found[""] = mountinfo((proc / "self/mountinfo").read_bytes())
    return list(found.values())


def whole_paths(files: Mapping[FileKey, File], known: Sequence[Table]) -> dict[FileKey, File]:
    """Return `files` with paths resolved by the first of the `known` mount tables that contains them (the last one is
    the node's); the others are unchanged."""
    found = {}
    for key, file in files.items():
        if file.flags & layout.FILE_NO_MOUNT and not file.flags & layout.FILE_TRUNCATED:
            dev = f"{key.dev >> 20}:{key.dev & 0xFFFFF}"
            path = resolve(dev, file.path, known)
            if path is not None:
                file = file._replace(path=path, flags=file.flags & ~layout.FILE_NO_MOUNT)
        found[key] = file
    return found


def resolve(dev: str, path: bytes, known: Sequence[Table]) -> bytes | None:
    """Return the full path of `path` in file system `dev` by the first table that contains it; None if none does."""
    if not known:
        return None
    node = _shown(dev, path, known[-1], most=True)
    for table in known[:-1]:
        name = _shown(dev, path, table)
        if name is None and node is not None:
            name = _layered(node, table)
        if name is not None:
            return name
    return node


def _shown(dev: str, path: bytes, table: Table, *, most: bool = False) -> bytes | None:
    """Resolve by the mount with the deepest root, the volume's own; `most`: by the mount with the shallowest root, as
    the node's administrator knows it."""
    fitting = [(m, rest) for m in table if m.dev == dev and (rest := below(path, m.root)) is not None]
    if not fitting:
        return None
    mount, rest = (min if most else max)(fitting, key=lambda one: len(one[0].root))
    return mount.point.rstrip(b"/") + rest


def _layered(path: bytes, table: Table) -> bytes | None:
    """Resolve the node's `path` through an overlay that has its directory as a layer."""
    for mount in table:
        if mount.fstype != "overlay":
            continue
        for layer in _layers(mount):
            rest = below(path, os.fsencode(layer)) if layer.startswith("/") else None
            if rest is not None and layer != "/":
                return mount.point.rstrip(b"/") + rest
    return None


def _layers(mount: Mount) -> list[str]:
    """Return the directories of an overlay's layers; ``lowerdir+`` and ``datadir+`` hold one each (Linux 6.8)."""
    found = []
    for option in mount.super_options:
        name, _, value = option.partition("=")
        if name in ("upperdir", "lowerdir+", "datadir+"):
            found.append(value)
        elif name == "lowerdir":
            found += value.split(":")
    return found


def disk_name_of(major: int, minor: int) -> str:
    """Return the name of a block device, ``8:0`` if it has none."""
    try:
        return clean(os.path.basename(os.readlink(f"/sys/dev/block/{major}:{minor}")))
    except OSError:
        return f"{major}:{minor}"
