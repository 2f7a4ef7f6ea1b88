"""Read memory usage, limits, reclaim and refaults of a cgroup, version 1 or 2.

Files: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of the kernel. Of version 1 the ``total_*``
lines are used, which include descendants as version 2 always does. Version 1 has no pressure (PSI) per cgroup and no
counters of scanning; it has ``workingset_refault_file`` since Linux 6.6, version 2 since 5.9 (before that
``workingset_refault``, of file pages only). Reading ``memory.stat`` makes the kernel flush per-CPU counts (56 us at the
median for all files of a cgroup of version 1), so it is read once per period.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_cgroup import NO_LIMIT_V1, Place, read_file, read_keyed, read_number

_UNKNOWN = parse.UNKNOWN


class Memory(NamedTuple):
    """A memory cgroup at one instant; -1: unknown, or no such limit. `refaults_file`, `scanned`, `reclaimed`: pages;
    `psi_*_us`: microseconds that its tasks were stalled on memory."""

    usage_bytes: int = _UNKNOWN
    limit_bytes: int = _UNKNOWN
    high_bytes: int = _UNKNOWN
    anon_bytes: int = _UNKNOWN
    file_bytes: int = _UNKNOWN
    active_file_bytes: int = _UNKNOWN
    inactive_file_bytes: int = _UNKNOWN
    dirty_bytes: int = _UNKNOWN
    writeback_bytes: int = _UNKNOWN
    refaults_file: int = _UNKNOWN
    scanned: int = _UNKNOWN
    reclaimed: int = _UNKNOWN
    limit_hits: int = _UNKNOWN
    oom_kills: int = _UNKNOWN
    psi_some_us: int = _UNKNOWN
    psi_full_us: int = _UNKNOWN


def read_memory(place: Place) -> Memory | None:
    """Read the memory controller's files of `place`; None if it has none, or was removed."""
    stat = memory_stat(place)
    if place.memory is None or not stat:
        return None
    return _version_1(place.memory, stat) if place.version == 1 else _version_2(place.memory, stat)


def memory_stat(place: Place) -> dict[str, int]:
    """Return memory.stat of the memory cgroup of `place`; empty if it has none, or was removed."""
    return read_keyed(place.memory + b"/memory.stat") if place.memory is not None else {}


def total_of(stat: Mapping[str, int], name: str) -> int:
    """Return a value of memory.stat of version 1, with the cgroups below; -1 if unknown."""
    return stat.get(f"total_{name}", stat.get(name, _UNKNOWN))


def _version_1(base: bytes, stat: Mapping[str, int]) -> Memory:
    total = partial(total_of, stat)

    limit = stat.get("hierarchical_memory_limit", _UNKNOWN)
    return Memory(
        usage_bytes=read_number(base + b"/memory.usage_in_bytes"),
        limit_bytes=_UNKNOWN if limit >= NO_LIMIT_V1 else limit,
        anon_bytes=total("rss"),
        file_bytes=total("cache"),
        active_file_bytes=total("active_file"),
        inactive_file_bytes=total("inactive_file"),
        dirty_bytes=total("dirty"),
        writeback_bytes=total("writeback"),
        refaults_file=total("workingset_refault_file"),
        limit_hits=read_number(base + b"/memory.failcnt"),
        oom_kills=read_keyed(base + b"/memory.oom_control").get("oom_kill", _UNKNOWN),
    )


def _version_2(base: bytes, stat: Mapping[str, int]) -> Memory:
    def of(*names: str) -> int:
        return next((stat[name] for name in names if name in stat), _UNKNOWN)

    events = read_keyed(base + b"/memory.events")
    psi = parse.pressure(read_file(base + b"/memory.pressure"))
    return Memory(
        usage_bytes=read_number(base + b"/memory.current"),
        limit_bytes=read_number(base + b"/memory.max"),
        high_bytes=read_number(base + b"/memory.high"),
        anon_bytes=of("anon"),
        file_bytes=of("file"),
        active_file_bytes=of("active_file"),
        inactive_file_bytes=of("inactive_file"),
        dirty_bytes=of("file_dirty"),
        writeback_bytes=of("file_writeback"),
        refaults_file=of("workingset_refault_file", "workingset_refault"),
        scanned=of("pgscan"),
        reclaimed=of("pgsteal"),
        # memory.high causes reclaim as the limit does
        limit_hits=_sum(events.get("max", _UNKNOWN), events.get("high", _UNKNOWN)),
        oom_kills=events.get("oom_kill", _UNKNOWN),
        psi_some_us=psi.get("some", _UNKNOWN),
        psi_full_us=psi.get("full", _UNKNOWN),
    )


def _sum(*counts: int) -> int:
    known = [count for count in counts if count >= 0]
    return sum(known) if known else _UNKNOWN
