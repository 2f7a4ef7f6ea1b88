"""Memory of a cgroup in full, of both versions: what it holds, its limits, what was reclaimed and came back.

Files: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of the kernel. Of version 1 the ``total_*``
lines are taken, which hold the descendants as version 2 always does. A cgroup of version 1 has neither pressure (PSI)
of its own nor counters of scanning; its ``workingset_refault_file`` came with Linux 6.6, that of version 2 with 5.9
(before, ``workingset_refault``, when only file pages had one). Reading ``memory.stat`` makes the kernel flush what its
CPUs have counted (all files of a cgroup of version 1: 56 us here at the median), so it is read once per period.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_cgroup import NO_LIMIT_V1, Place, read_file, read_keyed, read_number

_UNKNOWN = parse.UNKNOWN


class Memory(NamedTuple):
    """A memory cgroup at one instant; -1 where it does not say, or has no such limit. Bytes, but for the counters:
    `refaults_file`, `scanned` and `reclaimed` are pages. `psi_*_us`: microseconds that its tasks lost to memory."""

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
    """Read the memory controller's files of `place`; None when it has none, or is gone."""
    if place.memory is None:
        return None
    stat = read_keyed(place.memory + b"/memory.stat")
    if not stat:
        return None
    return _first(place.memory, stat) if place.version == 1 else _second(place.memory, stat)


def _first(base: bytes, stat: Mapping[str, int]) -> Memory:
    """Version 1."""

    def total(name: str) -> int:
        return stat.get(f"total_{name}", stat.get(name, _UNKNOWN))

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


def _second(base: bytes, stat: Mapping[str, int]) -> Memory:
    """Version 2, where a limit may be the word ``max``."""

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
        # memory.high throttles its cgroup as the limit does: reclaim on its behalf
        limit_hits=_sum(events.get("max", _UNKNOWN), events.get("high", _UNKNOWN)),
        oom_kills=events.get("oom_kill", _UNKNOWN),
        psi_some_us=psi.get("some", _UNKNOWN),
        psi_full_us=psi.get("full", _UNKNOWN),
    )


def _sum(*counts: int) -> int:
    known = [count for count in counts if count >= 0]
    return sum(known) if known else _UNKNOWN
