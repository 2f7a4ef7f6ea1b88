"""How many processes and threads cgroups hold, and how many they may hold (the controller pids).

Documentation/admin-guide/cgroup-v1/pids.rst of the kernel: at the limit, fork(2) and clone(2) fail with EAGAIN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from whystall.tools.collect.proc_cgroup import below_mount, directory_of, lineage, read_number
from whystall.tools.contract.text import clean_path
from whystall.tools.node.mounts import Mount

_MOST_CGROUPS = 64
Row = tuple[object, ...]


def task_limits(
    mounts: Iterable[Mount], memberships: Iterable[Mapping[str, bytes]], clock: Callable[[], int]
) -> list[Row]:
    """Return rows of ``proc.task_limits``: the cgroups of `memberships`, and those above them, that have a limit.

    `mounts` and `memberships` as those of `CgroupView`.
    """
    found = list(mounts)
    mount = next((m for m in found if m.fstype == "cgroup" and "pids" in m.super_options), None)
    controller = "pids"
    if mount is None:
        mount, controller = next((m for m in found if m.fstype == "cgroup2"), None), ""
    if mount is None:
        return []
    rows: dict[bytes, Row] = {}
    for membership in memberships:
        for path in lineage(below_mount(membership.get(controller), mount)):
            directory = directory_of(mount, path)
            if path in rows or len(rows) >= _MOST_CGROUPS:
                continue
            limit, tasks = read_number(directory + b"/pids.max"), read_number(directory + b"/pids.current")
            if limit > 0 and tasks >= 0:
                rows[path] = (clock(), clean_path(b"/" + path.strip(b"/")), tasks, limit)
    return list(rows.values())
