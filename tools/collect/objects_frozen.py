"""Read whether a process is frozen by a freezer cgroup (version 1: freezer.state; version 2: cgroup.events)."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.collect import proc_parse as parse
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.node.mounts import Mount, below


class Freezers:
    """The cgroups that can be frozen. States are cached until `forget`."""

    def __init__(self, root: str = "/proc") -> None:
        self._view = CgroupView(Path(root))
        self._v2 = next((m for m in self._view.mounts if m.fstype == "cgroup2"), None)
        self._v1 = next((m for m in self._view.mounts if m.fstype == "cgroup" and "freezer" in m.super_options), None)
        self._known: dict[bytes, bool] = {}

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()

    def frozen(self, membership: bytes) -> bool:
        """Return whether one of the cgroups in `membership` (/proc/PID/cgroup) or above it is frozen."""
        paths = self._view.membership(membership)
        return self._state(self._v2, paths.get("")) or self._state(self._v1, paths.get("freezer"))

    def _state(self, mount: Mount | None, path: bytes | None) -> bool:
        place = below(path, mount.root) if mount is not None and path is not None else None
        if mount is None or place is None or b".." in place.split(b"/"):
            return False
        directory = mount.point + place
        if directory not in self._known:
            self._known[directory] = _is_frozen(directory)
        return self._known[directory]


def _is_frozen(directory: bytes) -> bool:
    """Return the effective state, which includes that of the cgroups above."""
    try:
        with open(directory + b"/cgroup.events", "rb") as file:
            return parse.keyed(file.read()).get("frozen") == 1
    except OSError:
        pass
    try:
        with open(directory + b"/freezer.state", "rb") as file:
            return file.read().strip() == b"FROZEN"
    except OSError:
        return False
