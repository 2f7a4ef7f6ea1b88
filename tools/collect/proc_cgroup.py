"""Control groups of a target: where they are mounted, which ones matter, and their limits (v1 and v2).

A limit binds everything below it, so a process's cgroups are its own and all their ancestors. Files:
Documentation/admin-guide/cgroup-v1/{memory,../../scheduler/sched-bwc}.rst and cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.node.mounts import Mount

NO_LIMIT_V1 = 1 << 62
_ROOT_LEVEL = 64
"""Limit of top-level cgroups that are read without a target."""


class Place(NamedTuple):
    """A cgroup: `version` 1 or 2, its path below the hierarchy's mount, and the directories of its controllers."""

    version: int
    path: bytes
    cpu: bytes | None
    memory: bytes | None

    @property
    def name(self) -> str:
        """The path as shown, inert, with a leading slash."""
        return clean_path(b"/" + self.path.strip(b"/"))


class Limits(NamedTuple):
    """Counters and limits of a cgroup at one instant; -1 if there is no such limit or file."""

    periods: int = parse.UNKNOWN
    throttled_periods: int = parse.UNKNOWN
    throttled_ns: int = parse.UNKNOWN
    quota_us: int = parse.UNKNOWN
    period_us: int = parse.UNKNOWN
    memory_bytes: int = parse.UNKNOWN
    memory_limit_bytes: int = parse.UNKNOWN
    memory_limit_hits: int = parse.UNKNOWN


class Hierarchies:
    """The cgroup hierarchies behind `mounts` (see `CgroupView`)."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._v1: dict[str, Mount] = {}
        self._v2: Mount | None = None
        self._cpuset_v1: Mount | None = None
        for mount in mounts:
            if mount.fstype == "cgroup2":
                self._v2 = self._v2 or mount
            elif mount.fstype == "cgroup":
                for controller in ("cpu", "memory"):
                    if controller in mount.super_options:
                        self._v1.setdefault(controller, mount)
                if "cpuset" in mount.super_options:
                    self._cpuset_v1 = self._cpuset_v1 or mount

    def places(self, memberships: Iterable[Mapping[str, bytes]]) -> list[Place]:
        """Return the cgroups of `memberships` (see `CgroupView.membership`) and their ancestors."""
        v1: dict[bytes, dict[str, bytes]] = {}
        v2: set[bytes] = set()
        for membership in memberships:
            for controller, mount in self._v1.items():
                for path in lineage(below_mount(membership.get(controller), mount)):
                    v1.setdefault(path, {})[controller] = directory_of(mount, path)
            if self._v2 is not None:
                v2.update(lineage(below_mount(membership.get(""), self._v2)))
        found = [Place(1, path, d.get("cpu"), d.get("memory")) for path, d in sorted(v1.items())]
        return found + self._unified(v2)

    def cpuset(self, membership: Mapping[str, bytes]) -> str:
        """Return the CPUs that the cgroup of a process may use, a list like ``0-3,8``; empty if unknown."""
        found = [
            (mount, below_mount(membership.get(controller), mount), name)
            for mount, controller, name in (
                (self._cpuset_v1, "cpuset", b"cpuset.effective_cpus"),
                (self._v2, "", b"cpuset.cpus.effective"),
            )
            if mount is not None
        ]
        for mount, path, name in found:
            for place in reversed(lineage(path)):  # where the controller is off, that of the nearest ancestor applies
                if text := clean(read_file(directory_of(mount, place) + b"/" + name).strip()):
                    return text
        return ""

    def top_level(self) -> list[Place]:
        """Return the cgroups just below each hierarchy's root."""
        v1: dict[bytes, dict[str, bytes]] = {}
        for controller, mount in self._v1.items():
            for path in _children(mount):
                v1.setdefault(path, {})[controller] = directory_of(mount, path)
        found = [Place(1, path, d.get("cpu"), d.get("memory")) for path, d in sorted(v1.items())]
        return (found + self._unified(set(_children(self._v2)) if self._v2 else set()))[:_ROOT_LEVEL]

    def _unified(self, paths: set[bytes]) -> list[Place]:
        if self._v2 is None:
            return []
        found = []
        for path in sorted(paths):
            directory = directory_of(self._v2, path)
            # Without the cpu controller, cpu.stat is still there but counts no throttling.
            cpu = directory if os.path.exists(directory + b"/cpu.max") else None
            memory = directory if os.path.exists(directory + b"/memory.current") else None
            if cpu or memory:
                found.append(Place(2, path, cpu, memory))
        return found


def read_limits(place: Place) -> Limits | None:
    """Read a cgroup's files; None if it was removed."""
    cpu = _cpu(place) if place.cpu else {}
    memory = _memory(place) if place.memory else {}
    return Limits(**cpu, **memory) if cpu or memory else None


def read_quota(place: Place) -> tuple[int, int, int, int, int]:
    """Return throttled time (ns), periods, throttled periods, quota and period (us) of a cgroup; -1 if unknown or
    none."""
    cpu = Limits(**_cpu(place))
    return cpu.throttled_ns, cpu.periods, cpu.throttled_periods, cpu.quota_us, cpu.period_us


def _cpu(place: Place) -> dict[str, int]:
    base = place.cpu or b""
    stat = read_keyed(base + b"/cpu.stat")
    if not stat and not os.path.isdir(base):
        return {}
    if place.version == 1:
        throttled = stat.get("throttled_time", parse.UNKNOWN)
        quota, period = read_number(base + b"/cpu.cfs_quota_us"), read_number(base + b"/cpu.cfs_period_us")
    else:
        throttled = stat.get("throttled_usec", parse.UNKNOWN)
        throttled = throttled * 1000 if throttled >= 0 else throttled
        words = read_file(base + b"/cpu.max").split()
        quota = int(words[0]) if words and words[0].isdigit() else parse.UNKNOWN
        period = int(words[1]) if len(words) > 1 and words[1].isdigit() else parse.UNKNOWN
    return {
        "periods": stat.get("nr_periods", parse.UNKNOWN),
        "throttled_periods": stat.get("nr_throttled", parse.UNKNOWN),
        "throttled_ns": throttled,
        "quota_us": quota if quota > 0 else parse.UNKNOWN,
        "period_us": period,
    }


def _memory(place: Place) -> dict[str, int]:
    base = place.memory or b""
    if place.version == 1:
        usage, hits = read_number(base + b"/memory.usage_in_bytes"), read_number(base + b"/memory.failcnt")
        limit = read_keyed(base + b"/memory.stat").get("hierarchical_memory_limit", parse.UNKNOWN)
        limit = parse.UNKNOWN if limit >= NO_LIMIT_V1 else limit
    else:
        usage, limit = read_number(base + b"/memory.current"), read_number(base + b"/memory.max")
        hits = read_keyed(base + b"/memory.events").get("max", parse.UNKNOWN)
    if usage < 0 and not os.path.isdir(base):
        return {}
    return {"memory_bytes": usage, "memory_limit_bytes": limit, "memory_limit_hits": hits}


def read_file(path: bytes) -> bytes:
    """Return a cgroup's file; empty if it does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # removed, or a controller without this file


def read_keyed(path: bytes) -> dict[str, int]:
    """Return the pairs of a flat-keyed file."""
    return parse.keyed(read_file(path))


def read_number(path: bytes) -> int:
    """Return the number in a file; -1 if there is none, also for ``max``."""
    text = read_file(path).strip()
    return int(text) if text.lstrip(b"-").isdigit() else parse.UNKNOWN


def below_mount(path: bytes | None, mount: Mount) -> bytes | None:
    """Return `path` of /proc/PID/cgroup relative to the root of `mount`; None if outside of it."""
    if path is None or b".." in path.split(b"/"):
        return None
    root = mount.root.rstrip(b"/")
    if path != root and not path.startswith(root + b"/"):
        return None
    return path[len(root) :].strip(b"/")


def lineage(path: bytes | None) -> list[bytes]:
    """Return `path` and its ancestors, with the hierarchy's root (empty path)."""
    if path is None:
        return []
    parts = path.split(b"/") if path else []
    return [b"/".join(parts[:n]) for n in range(len(parts) + 1)]


def directory_of(mount: Mount, path: bytes) -> bytes:
    """Return the directory of a cgroup by its path relative to the root of `mount`."""
    return mount.point + b"/" + path if path else mount.point


def _children(mount: Mount) -> list[bytes]:
    try:
        with os.scandir(mount.point) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []  # unmounted meanwhile
