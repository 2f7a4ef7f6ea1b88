"""Read how much memory a process, a cgroup or the host uses, and of which kind.

Files: proc(5), Documentation/filesystems/proc.rst (status, smaps_rollup, meminfo), cgroup-v1/memory.rst and
cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_cgroup import NO_LIMIT_V1, Place, read_file, read_keyed, read_number
from whystall.tools.collect.proc_memory import memory_stat, total_of

_UNKNOWN = parse.UNKNOWN


class ProcessMemory(NamedTuple):
    """A process at one instant; -1: unknown."""

    pid: int
    ppid: int
    comm: str
    start_ticks: int
    rss_bytes: int
    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    swap_bytes: int
    page_table_bytes: int


class Rollup(NamedTuple):
    """What a process shares; -1: not read."""

    pss_bytes: int = _UNKNOWN
    private_dirty_bytes: int = _UNKNOWN
    private_clean_bytes: int = _UNKNOWN
    shared_bytes: int = _UNKNOWN


class GroupMemory(NamedTuple):
    """A cgroup or the host at one instant; -1: unknown, or no limit. See the table ``memory_use.groups``."""

    used_bytes: int
    limit_bytes: int
    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    slab_bytes: int
    kernel_stack_bytes: int
    swap_bytes: int
    reclaimable_bytes: int
    oom_kills: int


def read_process(proc: str, pid: int) -> ProcessMemory | None:
    """Read a process; None for a zombie and a kernel thread, which have no memory. Raises OSError."""
    with open(f"{proc}/{pid}/stat", "rb") as file:
        stat = parse.pid_stat(file.read())
    with open(f"{proc}/{pid}/status", "rb") as file:
        status = parse.keyed(file.read())
    if "VmRSS" not in status:
        return None

    def of(name: str) -> int:
        return status.get(name, _UNKNOWN)

    sizes = (of("VmRSS"), of("RssAnon"), of("RssFile"), of("RssShmem"), of("VmSwap"), of("VmPTE"))
    return ProcessMemory(pid, stat.ppid, stat.comm, stat.start_ticks, *sizes)


def read_rollup(proc: str, pid: int) -> Rollup:
    """Read what a process shares. Walks its page tables. Raises OSError: also for lack of permission (ptrace)."""
    with open(f"{proc}/{pid}/smaps_rollup", "rb") as file:
        found = parse.keyed(file.read())
    if "Pss" not in found:
        return Rollup()
    shared = found.get("Shared_Clean", 0) + found.get("Shared_Dirty", 0)
    return Rollup(found["Pss"], found.get("Private_Dirty", 0), found.get("Private_Clean", 0), shared)


def read_group(place: Place) -> GroupMemory | None:
    """Read a memory cgroup; None if it was removed, or has no memory controller."""
    stat = memory_stat(place)
    if place.memory is None or not stat:
        return None
    return _version_1(place.memory, stat) if place.version == 1 else _version_2(place.memory, stat)


def _version_1(base: bytes, stat: dict[str, int]) -> GroupMemory:
    """Read version 1; `total_*` include the groups below. Its kernel memory is not split: slab and stacks together."""
    total = partial(total_of, stat)
    limit = read_number(base + b"/memory.limit_in_bytes")
    cache, shmem = total("cache"), total("shmem")
    return GroupMemory(
        used_bytes=read_number(base + b"/memory.usage_in_bytes"),
        limit_bytes=_UNKNOWN if limit >= NO_LIMIT_V1 else limit,
        anon_bytes=total("rss"),
        file_bytes=cache,
        shmem_bytes=shmem,
        slab_bytes=read_number(base + b"/memory.kmem.usage_in_bytes"),
        kernel_stack_bytes=_UNKNOWN,
        swap_bytes=total("swap"),
        reclaimable_bytes=max(0, cache - max(0, shmem)),
        oom_kills=read_keyed(base + b"/memory.oom_control").get("oom_kill", _UNKNOWN),
    )


def _version_2(base: bytes, stat: dict[str, int]) -> GroupMemory:
    def of(name: str) -> int:
        return stat.get(name, _UNKNOWN)

    limit = read_number(base + b"/memory.max")
    if limit < 0:
        limit = read_number(base + b"/memory.high")  # above memory.high allocations are throttled
    events = read_keyed(base + b"/memory.events.local") or read_keyed(base + b"/memory.events")  # local: since 5.2
    kernel = [of(name) for name in ("slab_reclaimable", "slab_unreclaimable") if name in stat]
    return GroupMemory(
        used_bytes=read_number(base + b"/memory.current"),
        limit_bytes=limit,
        anon_bytes=of("anon"),
        file_bytes=of("file"),
        shmem_bytes=of("shmem"),
        slab_bytes=stat.get("slab", sum(kernel) if kernel else _UNKNOWN),
        kernel_stack_bytes=of("kernel_stack"),
        swap_bytes=read_number(base + b"/memory.swap.current"),
        reclaimable_bytes=max(0, of("file") - max(0, of("shmem"))) + max(0, of("slab_reclaimable")),
        oom_kills=events.get("oom_kill", _UNKNOWN),
    )


def read_host(proc: str) -> GroupMemory | None:
    """Read the host's memory; `reclaimable_bytes` is by the kernel's own estimate (MemAvailable)."""
    found = parse.keyed(read_file(f"{proc}/meminfo".encode()))
    if "MemTotal" not in found or "MemFree" not in found:
        return None

    def of(name: str) -> int:
        return found.get(name, _UNKNOWN)

    free = found["MemFree"]
    return GroupMemory(
        used_bytes=found["MemTotal"] - free,
        limit_bytes=found["MemTotal"],
        anon_bytes=of("AnonPages"),
        file_bytes=found.get("Cached", 0) + found.get("Buffers", 0),
        shmem_bytes=of("Shmem"),
        slab_bytes=of("Slab"),
        kernel_stack_bytes=of("KernelStack"),
        swap_bytes=found.get("SwapTotal", 0) - found.get("SwapFree", 0),
        reclaimable_bytes=max(0, found.get("MemAvailable", free + found.get("Cached", 0)) - free),
        oom_kills=parse.keyed(read_file(f"{proc}/vmstat".encode())).get("oom_kill", _UNKNOWN),
    )
