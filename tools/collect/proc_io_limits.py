"""Read which limits of block I/O bind processes, and what their cgroups moved (versions 1 and 2).

Version 2 (Documentation/admin-guide/cgroup-v2.rst): io.max of a process's cgroup and of all above it. Version 1
(cgroup-v1/blkio-controller.rst): the limits of its own cgroup alone, since throttling is not hierarchical there.
io.stat counts with the cgroups below, blkio.throttle.io_* without them: each as its limits do. Version 1 counts a
request before it is held back, version 2 afterwards (block/blk-throttle.c, blk-core.c).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_cgroup import below_mount, directory_of, lineage
from whystall.tools.contract.text import clean_path
from whystall.tools.node.mounts import Mount

_MOST_PROCESSES = 64
_MOST_DEVICES = 64
_MOST_ROWS = 20_000
_FILE_BYTES = 1 << 16
_DEV = re.compile(rb"[0-9]{1,7}:[0-9]{1,7}")
Amounts = tuple[int, int, int, int]
"""Of reads and writes: bytes, bytes, operations, operations. Limits are per second; -1: none."""
_NONE: Amounts = (-1, -1, -1, -1)
_ZERO: Amounts = (0, 0, 0, 0)
_V1_LIMITS = ("read_bps", "write_bps", "read_iops", "write_iops")
_V2_LIMITS = (b"rbps", b"wbps", b"riops", b"wiops")
_V2_USE = (b"rbytes", b"wbytes", b"rios", b"wios")


class IoGroup(NamedTuple):
    """A cgroup of the blkio (version 1) or io controller. `name`: its path, inert."""

    version: int
    name: str
    directory: bytes


def io_groups(mounts: Iterable[Mount], membership: Mapping[str, bytes]) -> tuple[list[IoGroup], bool]:
    """Return the cgroups whose limits bind a process (see `CgroupView.membership`), and whether these are all: not in a
    container, which cannot see the cgroups above its own.
    """
    found = list(mounts)
    v1 = next((m for m in found if m.fstype == "cgroup" and "blkio" in m.super_options), None)
    if v1 is not None:
        path = below_mount(membership.get("blkio"), v1)
        return ([_group(1, v1, path)], True) if path is not None else ([], False)
    v2 = next((m for m in found if m.fstype == "cgroup2"), None)
    path = below_mount(membership.get(""), v2) if v2 is not None else None
    if v2 is None or path is None:
        return [], False
    top = directory_of(v2, b"")
    # Only the root has no cgroup.type. Without `io` the controller belongs to version 1, not mounted here.
    whole = b"io" in (_read(top + b"/cgroup.controllers") or b"").split() and not os.path.exists(top + b"/cgroup.type")
    return [_group(2, v2, one) for one in lineage(path)], whole


def _group(version: int, mount: Mount, path: bytes) -> IoGroup:
    return IoGroup(version, clean_path(b"/" + path), directory_of(mount, path))


def read_io_limits(group: IoGroup) -> dict[str, Amounts] | None:
    """Return the limits of `group` by device number; None if they cannot be read.

    Lines: ``7:0 20971520`` (version 1, a file per limit), ``7:0 rbps=2097152 wbps=max riops=max wiops=120``.
    """
    if group.version == 2:
        raw = _read(group.directory + b"/io.max")
        if raw is None:  # the root, and cgroups for which the controller is not enabled, have no limits
            return {} if _lacks(group.directory, b"io.max") else None
        limits = {dev: _keyed(words, _V2_LIMITS) for dev, words in _lines(raw)}
    else:
        limits = {}
        for index, name in enumerate(_V1_LIMITS):
            raw = _read(group.directory + f"/blkio.throttle.{name}_device".encode())
            if raw is None:
                return None
            for dev, words in _lines(raw):
                known = list(limits.get(dev, _NONE))
                known[index] = _number(words[-1])
                limits[dev] = (known[0], known[1], known[2], known[3])
    return {dev: amounts for dev, amounts in limits.items() if max(amounts) > 0}


def read_io_use(group: IoGroup) -> dict[str, Amounts] | None:
    """Return what `group` has moved so far by device number; None if that cannot be read.

    Lines: ``7:0 Read 4096`` (version 1), ``7:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0``.
    """
    if group.version == 2:
        raw = _read(group.directory + b"/io.stat")
        return None if raw is None else {dev: _keyed(words, _V2_USE) for dev, words in _lines(raw)}
    found: dict[str, list[int]] = {}
    for index, name in ((0, b"io_service_bytes"), (2, b"io_serviced")):
        raw = _read(group.directory + b"/blkio.throttle." + name)
        if raw is None:
            return None
        for dev, words in _lines(raw):
            if words[0] in (b"Read", b"Write"):
                found.setdefault(dev, list(_ZERO))[index + (words[0] == b"Write")] = _number(words[-1])
    return {dev: (each[0], each[1], each[2], each[3]) for dev, each in found.items()}


class IoLimitReader:
    """Reads the rows of ``proc.io_limits`` and ``proc.io_use``. `membership`: of a pid, None if it cannot be read.

    Call `find` at the start and once per period, `sample` more often: what a cgroup moves comes in bursts.
    """

    def __init__(
        self, mounts: Iterable[Mount], membership: Callable[[int], Mapping[str, bytes] | None], clock: Callable[[], int]
    ) -> None:
        self.limits: list[tuple[object, ...]] = []
        self.use: list[tuple[object, ...]] = []
        self._mounts = list(mounts)
        self._membership = membership
        self._clock = clock
        self._processes: dict[int, tuple[list[IoGroup], bool]] = {}
        self._limited: dict[IoGroup, dict[str, Amounts]] = {}
        self._told: dict[int, list[tuple[object, ...]]] = {}

    def find(self, pids: Iterable[int]) -> None:
        """Read the limits that bind `pids`, and note those that are new or have changed."""
        for pid in pids:
            if pid not in self._processes and len(self._processes) < _MOST_PROCESSES:
                membership = self._membership(pid)
                if membership is not None:
                    self._processes[pid] = io_groups(self._mounts, membership)
        known = {group: read_io_limits(group) for groups, _ in self._processes.values() for group in groups}
        self._limited = {group: limits for group, limits in known.items() if limits}
        for pid, (groups, whole) in self._processes.items():
            rows: list[tuple[object, ...]] = [
                (pid, group.name, group.version, dev, *amounts)
                for group in groups
                for dev, amounts in self._limited.get(group, {}).items()
            ]
            if groups and whole and all(known[group] is not None for group in groups):
                rows.append((pid, groups[-1].name, groups[-1].version, "", *_NONE))
            if rows != self._told.get(pid) and len(self.limits) < _MOST_ROWS:
                self._told[pid] = rows
                now = self._clock()
                self.limits += [(now, *row) for row in rows]

    def sample(self) -> None:
        """Read what the cgroups with limits have moved."""
        for group, limits in self._limited.items():
            moved = read_io_use(group) if len(self.use) < _MOST_ROWS else None
            if moved is not None:
                now = self._clock()
                self.use += [(now, group.name, dev, *moved.get(dev, _ZERO)) for dev in limits]

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return bool(self._limited)


def _read(path: bytes) -> bytes | None:
    """Return the beginning of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_BYTES)
    except OSError:
        return None


def _lacks(directory: bytes, name: bytes) -> bool:
    try:
        return name not in os.listdir(directory)
    except OSError:
        return False  # removed, or no permission


def _lines(raw: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield device number and further words of each line about a device."""
    for line in raw.splitlines()[: 8 * _MOST_DEVICES]:
        words = line.split()
        if len(words) > 1 and _DEV.fullmatch(words[0]):
            yield words[0].decode(), words[1:]


def _keyed(words: list[bytes], names: tuple[bytes, ...]) -> Amounts:
    pairs = dict(word.partition(b"=")[::2] for word in words)
    found = [_number(pairs.get(name, b"")) for name in names]
    return (found[0], found[1], found[2], found[3])


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 19 else parse.UNKNOWN
