"""What may keep processes outside of the target from the CPUs: the quota of their cgroup, and their affinity.

A job may wait for such a process. Quotas: Documentation/scheduler/sched-bwc.rst of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.collect.proc_cgroup import Hierarchies, Place, read_quota

_MOST_PROCESSES = 4096
Row = tuple[object, ...]


class BoundsReader:
    """Reads rows of ``proc.cpu_bounds``; call `look` at the start and at the end of a window."""

    def __init__(self, hierarchies: Hierarchies, clock: Callable[[], int]) -> None:
        self._hierarchies = hierarchies
        self._clock = clock
        self._host = os.cpu_count() or 1
        self._quotas: dict[bytes, bool] = {}

    def look(self, memberships: Mapping[int, Mapping[str, bytes]], but: Collection[int]) -> list[Row]:
        """Return a row for each process that a quota or an affinity binds, besides those in `but`.

        `memberships`: the cgroups of processes by pid (see `CgroupView.membership`).
        """
        rows: list[Row] = []
        places: dict[frozenset[tuple[str, bytes]], list[Place]] = {}
        read: dict[bytes, tuple[int, ...]] = {}
        for pid in [pid for pid in memberships if pid not in but][:_MOST_PROCESSES]:
            cpus = self._narrow(pid)
            shared = frozenset(memberships[pid].items())  # most processes share one with others
            if shared not in places:
                found = self._hierarchies.places([memberships[pid]])
                places[shared] = [place for place in found if place.cpu is not None and self._has_quota(place)]
            # the quota that bound most: of the cgroup itself, or of one above it
            bound = max(
                ((self._counts(place, read), place.name) for place in places[shared]),
                key=lambda found: found[0][0],
                default=None,
            )
            if bound is not None:
                rows.append((self._clock(), pid, bound[1], *bound[0], cpus))
            elif cpus:
                rows.append((self._clock(), pid, "", -1, -1, -1, -1, -1, cpus))
        return rows

    def _counts(self, place: Place, read: dict[bytes, tuple[int, ...]]) -> tuple[int, ...]:
        """Return throttled time, periods, throttled periods, quota and period of a cgroup, read once per look."""
        if place.path not in read:
            read[place.path] = read_quota(place)
        return read[place.path]

    def _has_quota(self, place: Place) -> bool:
        if place.path not in self._quotas:
            self._quotas[place.path] = read_quota(place)[3] > 0
        return self._quotas[place.path]

    def _narrow(self, pid: int) -> str:
        """Return the CPUs that the main thread may use, a list; empty if all of the host, or unknown."""
        try:
            cpus = os.sched_getaffinity(pid)
        except OSError:
            return ""  # exited
        return format_cpus(cpus) if len(cpus) < self._host else ""
