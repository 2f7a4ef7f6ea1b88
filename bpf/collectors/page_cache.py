"""The page cache of the whole host: which processes read pages in, use them again, evict them and wait for them.

All events but adding and removing pages are optional: kernels differ in their tracepoints (`KernelPages`), and the
result lists absent ones.
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
"""Most chunks of 512 pages that are tracked: 64 GiB of files with pages of 4 KiB."""


class _Hook(NamedTuple):
    program: str
    event: str
    """As tracefs names it: ``category:name``."""
    arguments: int = -1
    """Required number of arguments, where kernels differ."""
    on_bits: bool = False
    """Works on bits of single pages."""


_DIRTY, _DIRTY_OLD = "writeback:writeback_dirty_folio", "writeback:writeback_dirty_page"
# In this order: the end of a stall after its start, removal of pages before adding.
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
    _Hook("on_bio", "block:block_bio_queue", 1),  # one argument, and bio->bi_bdev, since 5.12
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
    """The events of the page cache that the running kernel has."""

    events: Mapping[str, int]
    """Number of arguments of each existing event among `_HOOKS` (``category:name``)."""
    atomics: bool
    """Whether BPF has atomic operations other than adding (5.12; on aarch64 5.18)."""

    def _found(self) -> list[_Hook]:
        return [h for h in _HOOKS if h.event in self.events and h.arguments in (-1, self.events[h.event])]

    def programs(self) -> list[str]:
        """Return the programs to attach, in this order."""
        return [f"{h.program}_plain" if h.on_bits and not self.atomics else h.program for h in self._found()]

    def absent(self) -> list[str]:
        """Return the missing events as ``category:name``."""
        found = {hook.event for hook in self._found()}
        if found & {_DIRTY, _DIRTY_OLD}:  # one name or the other
            found |= {_DIRTY, _DIRTY_OLD}
        return sorted({hook.event for hook in _HOOKS} - found)

    @property
    def reads_reported(self) -> bool:
        """Return whether the kernel reports the pages of a read; else they are derived from the calls."""
        return "on_pages_read" in self.programs()

    @property
    def maps_reported(self) -> bool:
        """Return whether the kernel reports the pages that faults map."""
        return {"on_page_fault", "on_pages_mapped"} <= set(self.programs())


@lru_cache(maxsize=1)
def _here() -> KernelPages:
    with KernelTypes() as kernel:
        helpers = kernel.enum_names("bpf_func_id")
        counted = {hook.event: kernel.tracepoint_arguments(hook.event.split(":")[1]) for hook in _HOOKS}
    # A helper that was added in the same version.
    sign = "BPF_FUNC_ima_file_hash" if os.uname().machine == "aarch64" else "BPF_FUNC_check_mtu"
    return KernelPages({event: count for event, count in counted.items() if count >= 0}, sign in helpers)


def kernel_pages(forced: Mapping[str, bool]) -> KernelPages:
    """Return the running kernel's; `forced`: events (``category:name``) and ``atomics`` to leave out (False)."""
    here = _here()
    return KernelPages(
        {event: count for event, count in here.events.items() if forced.get(event, True)},
        here.atomics and forced.get("atomics", True),
    )


def constants(kernel: KernelPages, targets: bool) -> dict[str, int]:
    """Return the members of ``struct config`` for the page cache."""
    return {
        # the resolution of a coarse clock is the tick
        "tick_ns": round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9),
        "page_shift": resource.getpagesize().bit_length() - 1,
        "chunks_of_others": CHUNKS // 2 if targets else CHUNKS,
        "pages_reported": kernel.reads_reported,
        "maps_folios": _release() >= (6, 18),  # "mm/filemap: map entire large folio faultaround"; not visible in BTF
    }


def _release() -> tuple[int, ...]:
    """Return the first two numbers of the kernel's version."""
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


class PageCache(Collector):
    """Observe the page cache of the whole host, whatever the targets: other processes evict a target's pages."""

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
    shared_maps = ("page_hash",)  # the hook on a thread's end refers to it
    stop_iterators = ("walk_stalls",)

    def prepare(self, setup: Setup) -> None:
        """Find out which of the tracepoints the kernel has."""
        super().prepare(setup)
        self._kernel = kernel_pages(setup.forced)

    def programs(self) -> list[str]:
        """Return the kernel's programs; without task storage also the one that removes an ended thread's state."""
        ends = [] if self.setup.variants["task_storage"] else ["on_thread_exit"]
        return ends + self._kernel.programs()

    def needed_maps(self) -> Iterable[str]:
        """Return its maps with one of the two for state per thread."""
        unused = "page_hash" if self.setup.variants["task_storage"] else "page_storage"
        return {*self.maps, *self.shared_maps} - {unused}

    def constants(self) -> Mapping[str, int]:
        """Return the properties of the kernel."""
        return constants(self._kernel, self.setup.targets() is not None)

    def read(self, window: Window) -> cap.Pages:
        """Return the contents of the maps."""

        def items(*names: str) -> list[tuple[bytes, bytes]]:
            return [item for name in names for item in window.made.map(name).items()]

        kernel = self._kernel
        once = cap.touched_once(items("page_chunks"))
        return cap.Pages(
            uses=cap.uses(items("page_uses", "page_uses_others"), kernel.maps_reported),
            files=cap.files(items("page_files"), once, "block:block_bio_queue" in kernel.events),
            stalls=cap.stalls(items("stall_totals")),
            sizes=cap.sizes(items("size_totals", "size_totals_others")),
            absent=kernel.absent(),
            reads_reported=kernel.reads_reported,
        )
