"""The page cache of the whole host: who reads pages in, uses them again, evicts them and waits for them.

Everything but what enters and leaves the cache is optional: kernels differ in their tracepoints (`KernelPages`), and
the result names those that are absent.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from whystall.bpf import capture_pages as cap
from whystall.bpf.collector import Collector, Setup, Window
from whystall.bpf.libbpf import KernelTypes

_CLOCK_MONOTONIC_COARSE = 6  # include/uapi/linux/time.h; Python has no name for it
CHUNKS = 32768
"""Chunks of 512 pages that are followed: 64 GiB of files, of pages of 4 KiB."""

class _Hook(NamedTuple):
    program: str
    event: str
    """As tracefs names it: ``category:name``."""
    arguments: int = -1
    """So many or none, where kernels differ."""
    on_bits: bool = False
    """Works on bits of single pages."""


_DIRTY, _DIRTY_OLD = "writeback:writeback_dirty_folio", "writeback:writeback_dirty_page"
# In this order: what ends a stall after what begins it, what takes pages out before what puts them in.
_HOOKS = (
    _Hook("on_direct_begin", "vmscan:mm_vmscan_direct_reclaim_begin"),
    _Hook("on_direct_end", "vmscan:mm_vmscan_direct_reclaim_end"),
    _Hook("on_cgroup_begin", "vmscan:mm_vmscan_memcg_reclaim_begin"),
    _Hook("on_cgroup_end", "vmscan:mm_vmscan_memcg_reclaim_end"),
    _Hook("on_throttled", "vmscan:mm_vmscan_throttled", 4),
    _Hook("on_throttle", "writeback:balance_dirty_pages", 8),
    _Hook("on_throttle_old", "writeback:balance_dirty_pages", 12),
    _Hook("on_lock_wait", "lock:contention_begin"),
    _Hook("on_lock_got", "lock:contention_end"),
    _Hook("on_bio", "block:block_bio_queue", 1),  # alone, and with the bi_bdev it is asked for, since 5.12
    _Hook("on_page_delete", "filemap:mm_filemap_delete_from_page_cache", on_bits=True),
    _Hook("on_page_dirty", _DIRTY, on_bits=True),
    _Hook("on_page_dirty_old", _DIRTY_OLD, on_bits=True),
    _Hook("on_page_fault", "filemap:mm_filemap_fault", 2),
    _Hook("on_pages_mapped", "filemap:mm_filemap_map_pages", 3),
    _Hook("on_pages_read", "filemap:mm_filemap_get_pages", 3),
    _Hook("on_page_add", "filemap:mm_filemap_add_to_page_cache", on_bits=True),
    _Hook("on_page_call", "raw_syscalls:sys_exit", on_bits=True),
)


@dataclass(frozen=True)
class KernelPages:
    """What the running kernel tells of its page cache."""

    events: Mapping[str, int]
    """Number of arguments of every event of ours (``category:name``) that is there."""
    atomics: bool
    """Whether BPF has atomic operations beside adding (5.12; on aarch64 5.18)."""

    def _found(self) -> list[_Hook]:
        return [h for h in _HOOKS if h.event in self.events and h.arguments in (-1, self.events[h.event])]

    def programs(self) -> list[str]:
        """Programs to attach, in this order."""
        return [f"{h.program}_plain" if h.on_bits and not self.atomics else h.program for h in self._found()]

    def absent(self) -> list[str]:
        """Events that would have told more, as ``category:name``."""
        found = {hook.event for hook in self._found()}
        if found & {_DIRTY, _DIRTY_OLD}:  # one name or the other
            found |= {_DIRTY, _DIRTY_OLD}
        return sorted({hook.event for hook in _HOOKS} - found)

    @property
    def reads_told(self) -> bool:
        """Whether the kernel tells which pages a read gets; else the calls do."""
        return "on_pages_read" in self.programs()

    @property
    def maps_told(self) -> bool:
        """Whether it tells which pages faults map."""
        return {"on_page_fault", "on_pages_mapped"} <= set(self.programs())


@lru_cache(maxsize=1)
def _here() -> KernelPages:
    with KernelTypes() as kernel:
        helpers = kernel.enum_names("bpf_func_id")
        counted = {hook.event: kernel.tracepoint_arguments(hook.event.split(":")[1]) for hook in _HOOKS}
    # The youngest helpers of the versions that brought them.
    sign = "BPF_FUNC_ima_file_hash" if os.uname().machine == "aarch64" else "BPF_FUNC_check_mtu"
    return KernelPages({event: count for event, count in counted.items() if count >= 0}, sign in helpers)


def kernel_pages(forced: Mapping[str, bool]) -> KernelPages:
    """The running kernel's; `forced`: events (``category:name``) and ``atomics`` to do without (False)."""
    here = _here()
    return KernelPages(
        {event: count for event, count in here.events.items() if forced.get(event, True)},
        here.atomics and forced.get("atomics", True),
    )


def constants(kernel: KernelPages, targets: bool) -> dict[str, int]:
    """Members of ``config`` for the page cache."""
    return {
        # of the coarse clocks the resolution is the tick
        "tick_ns": round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9),
        "page_shift": resource.getpagesize().bit_length() - 1,
        "chunks_of_others": CHUNKS // 2 if targets else CHUNKS,
        "pages_reported": kernel.reads_told,
        "maps_folios": _release() >= (6, 18),  # "mm/filemap: map entire large folio faultaround"; no type tells it
    }


def _release() -> tuple[int, ...]:
    """The kernel's version, its first two numbers."""
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


class PageCache(Collector):
    """Follow the page cache of the whole host, whatever the targets: a target's pages are often evicted by others."""

    maps = (
        "page_uses",
        "page_uses_others",
        "page_files",
        "page_chunks",
        "stall_totals",
        "size_totals",
        "size_totals_others",
        "page_storage",
    )
    shared_maps = ("page_hash",)  # the hook on a thread's end names it
    stop_iterators = ("walk_stalls",)

    def prepare(self, setup: Setup) -> None:
        """Find out which of the tracepoints the kernel has."""
        super().prepare(setup)
        self._kernel = kernel_pages(setup.forced)

    def programs(self) -> list[str]:
        """Without storage per task, its state must be removed when a thread ends."""
        ends = [] if self.setup.variants["task_storage"] else ["on_thread_exit"]
        return ends + self._kernel.programs()

    def needed_maps(self) -> Iterable[str]:
        """One of the two maps of state per thread."""
        unused = "page_hash" if self.setup.variants["task_storage"] else "page_storage"
        return {*self.maps, *self.shared_maps} - {unused}

    def constants(self) -> Mapping[str, int]:
        """What the programs need to know of the kernel."""
        return constants(self._kernel, self.setup.targets() is not None)

    def read(self, window: Window) -> cap.Pages:
        """Return the contents of the maps."""

        def items(*names: str) -> cap.Items:
            return [item for name in names for item in window.made.map(name).items()]

        kernel = self._kernel
        once = cap.touched_once(items("page_chunks"))
        return cap.Pages(
            uses=cap.uses(items("page_uses", "page_uses_others"), kernel.maps_told),
            files=cap.files(items("page_files"), once, "block:block_bio_queue" in kernel.events),
            stalls=cap.stalls(items("stall_totals")),
            sizes=cap.sizes(items("size_totals", "size_totals_others")),
            absent=kernel.absent(),
            reads_told=kernel.reads_told,
        )
